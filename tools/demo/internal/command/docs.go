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

// pageTimeout is how long all commands of a page may take together.
const pageTimeout = 10 * time.Minute

func newDocs(registry state.Registry) *cobra.Command {
	s := &server{registry: registry}
	c := &cobra.Command{
		Use:   "docs PAGE",
		Short: "Run the commands of a page of documentation, and write down what they print",
		Long: `docs starts what demo up starts, beside it if that runs, and executes every command of a Markdown page in one shell: the lines
that begin with "$ " in blocks of the language console. The shell has the variables that demo env prints. What the commands print
takes the place of what the page says they print; what differs from run to run, such as ages and ports, is written in
one way. In the end all is stopped. If a command cannot be run, the page stays as it was.`,
		Example: `  make docs                        builds everything first
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

// shell says how to start a shell that knows how to use what runs.
type shell struct {
	dir string
	env []string
}

// shell returns the shell in which the commands of a page are run. Beside the variables of demo env it has nothing of its user's
// but PATH and what programs need to find their files.
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

// update runs the commands of a page and writes it.
func (s *server) update(ctx context.Context, d document, in shell) (err error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	if err := os.Mkdir(in.dir, 0o700); err != nil {
		return fmt.Errorf("make a directory for the shell: %w", err)
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
		s.console.Note("%s:%d has another output: $ %s", d.file, c.Line, c.Text)
	}
	s.console.OK("%s: %d commands were run, %d have another output than before", d.file, len(d.page.Commands()), len(changed))
	if len(changed) == 0 {
		return nil
	}
	if err := os.WriteFile(d.file, []byte(d.page.String()), 0o644); err != nil { //nolint:gosec // everybody may read it
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}
