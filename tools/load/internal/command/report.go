package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

// figures is the name of the file with the figures of a run, for machines.
const figures = "report.json"

func newReport() *cobra.Command {
	var out string
	c := &cobra.Command{
		Use:   "report FILE.json",
		Short: "Write the report of an earlier run again",
		Long:  `report reads the figures that "load run" has written, and writes tables and plots from them.`,
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			report, err := read(args[0])
			if err != nil {
				return err
			}
			if out == "" {
				out = filepath.Dir(args[0])
			}
			return write(out, report, c.OutOrStdout())
		},
	}
	c.Flags().StringVar(&out, "out", "", "`directory` that gets the report (default: that of the file)")
	return c
}

func read(path string) (report *result.Report, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the figures of a run: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return result.Read(file)
}

// write writes a report into a directory, and its table to out.
func write(dir string, report *result.Report, out io.Writer) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of the report: %w", err)
	}
	if err := writeFile(filepath.Join(dir, figures), report.Write); err != nil {
		return err
	}
	for i := range report.Rows {
		row := &report.Rows[i]
		median, low, high := row.Result()
		fmt.Fprintf(out, "%-45s %8.4g (%.4g to %.4g) %s %g %s: %t\n", row.ID, median, low, high, row.Target.Bound, row.Target.Value, row.Target.Unit, row.Met())
	}
	fmt.Fprintf(out, "\nThe report is in %s.\n", dir)
	return nil
}

func writeFile(path string, content func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := errors.Join(content(file), file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
