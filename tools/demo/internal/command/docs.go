package command

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/tools/demo/internal/page"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/demo/internal/state"
)

// pageTimeout limits the time for all commands of a page.
const pageTimeout = 10 * time.Minute

func newDocs(registry state.Registry) *cobra.Command {
	s := &server{registry: registry}
	c := &cobra.Command{
		Use:   "docs PAGE",
		Short: "Run the commands of a documentation page and record their output",
		Long: `docs starts a system like that of demo up, and runs all commands of a Markdown page in one shell. A command is a line that begins
with "$ " in a code block of the language console. The shell has the variables that demo env prints. The output of each command
replaces the output on the page. Values that differ between runs, such as ages and ports, are normalized. At the end, everything
is stopped. If a command cannot run, the page does not change.`,
		Example: `  make docs                        builds everything, then runs this
  bin/demo docs docs/queries.md`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			s.console = report.NewConsole(c.OutOrStdout())

			content, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("read the page: %w", err)
			}

			p, err := page.Parse(string(content))
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}

			return s.run(c.Context(), state.Run, func(ctx context.Context, stateDir string, how *usage) error {
				return s.update(ctx, document{args[0], p}, how.shell(stateDir))
			})
		},
	}
	s.add(c.Flags(), "a temporary directory")

	return c
}

// document is a page and its file.
type document struct {
	file string
	page *page.Page
}

// shell holds the directory and the environment of a shell for the running system.
type shell struct {
	dir string
	env []string
}

// shell returns the shell that runs the commands of a page. Its environment consists of the variables of demo env, PATH, and the
// variables by which programs find their files.
func (h *usage) shell(stateDir string) shell {
	env := []string{
		"PATH=" + strings.Join(append(h.Path, os.Getenv("PATH")), string(os.PathListSeparator)),
		"HOME=" + stateDir, "LC_ALL=C.UTF-8", "TZ=UTC",
	}
	for _, v := range h.Variables {
		env = append(env, v.Name+"="+v.Value)
	}

	return shell{filepath.Join(stateDir, "page"), env}
}

// update runs the commands of a page and writes the page.
func (s *server) update(ctx context.Context, d document, in shell) (err error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()

	if err := os.Mkdir(in.dir, 0o700); err != nil {
		return fmt.Errorf("create a directory for the shell: %w", err)
	}

	sh, err := page.NewShell(in.dir, in.env)
	if err != nil {
		return fmt.Errorf("run %s: %w", d.file, err)
	}
	s.console.Progress("running the commands of %s", d.file)

	changed, err := d.page.Update(ctx, sh)
	if closing := sh.Close(); err == nil {
		err = closing
	}

	if err != nil {
		return fmt.Errorf("%s: %w", d.file, err)
	}

	for _, c := range changed {
		s.console.Note("%s:%d: the output changed: $ %s", d.file, c.Line, c.Text)
	}
	s.console.OK("%s: %d commands ran, the output of %d changed", d.file, len(d.page.Commands()), len(changed))

	if len(changed) == 0 {
		return nil
	}

	if err := os.WriteFile(d.file, []byte(d.page.String()), 0o644); err != nil { //nolint:gosec // world-readable
		return fmt.Errorf("write the page: %w", err)
	}

	return nil
}
