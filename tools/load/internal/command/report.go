package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/tools/load/internal/report"
	"github.com/clusterring/clusterring/tools/load/internal/result"
)

func newReport() *cobra.Command {
	var out, page string

	c := &cobra.Command{
		Use:   "report FILE.json",
		Short: "Write the report of an earlier run again",
		Long: `report reads the figures that "load run" wrote, and writes tables and plots. With --page, it also replaces the content between the
markers of a Markdown page, and writes the plots into a directory beside the page, with the name of the page.`,
		Example: `  bin/load report dist/load/report.json --page docs/performance.md`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			found, err := read(args[0])
			if err != nil {
				return err
			}

			if page != "" {
				if err := intoPage(page, found); err != nil {
					return err
				}
			}

			if out == "" {
				out = filepath.Dir(args[0])
			}

			return write(out, found, c.OutOrStdout())
		},
	}
	c.Flags().StringVar(&out, "out", "", "`directory` of the report (default: the directory of FILE.json)")
	c.Flags().StringVar(&page, "page", "", "Markdown `file` to update with the tables and plots")

	return c
}

func read(path string) (found *result.Report, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the figures of an earlier run: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()

	return result.Read(file)
}

// intoPage updates the page with the report.
func intoPage(page string, found *result.Report) error {
	before, err := os.ReadFile(page)
	if err != nil {
		return fmt.Errorf("read the page: %w", err)
	}

	dir := strings.TrimSuffix(page, filepath.Ext(page))

	after, err := report.Splice(string(before), found, filepath.Base(dir))
	if err != nil {
		return fmt.Errorf("update %s: %w", page, err)
	}

	pictures, err := report.Pictures(found)
	if err != nil {
		return err
	}

	if err := writeFiles(dir, pictures); err != nil {
		return err
	}

	return writeFiles(filepath.Dir(page), map[string][]byte{filepath.Base(page): []byte(after)})
}

// write writes the report into a directory and its table to out.
func write(dir string, found *result.Report, out io.Writer) error {
	files, err := report.Files(found)
	if err != nil {
		return err
	}

	if err := writeFiles(dir, files); err != nil {
		return err
	}

	if err := report.Print(out, found); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nThe report is in %s.\n", filepath.Join(dir, report.Page))

	return nil
}

func writeFiles(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the report directory: %w", err)
	}

	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil { //nolint:gosec // for everybody to read
			return fmt.Errorf("write the report: %w", err)
		}
	}

	return nil
}
