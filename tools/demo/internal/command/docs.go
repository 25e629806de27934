package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/page"
	"github.com/clusterring/clusterring/tools/demo/internal/state"
)

// pageTimeout limits the time for all commands of a page.
const pageTimeout = 10 * time.Minute

func (c *common) newDocs() *cobra.Command {
	s := &server{c}
	cmd := &cobra.Command{
		Use:   "docs PAGE",
		Short: "Run the commands of a documentation page and record their output",
		Long: `docs starts a system like that of demo up, and runs all commands of a Markdown page in one shell. A command is a line that begins
with "$ " in a code block of the language console. The shell has the variables that demo env prints. The output of each command
replaces the output on the page. Values that differ between runs, such as ages and ports, are normalized. At the end, everything
is stopped. If a command cannot run, the page does not change.`,
		Example: `  make docs                        builds everything, then runs this
  bin/demo docs docs/queries.md`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			content, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("read the page: %w", err)
			}

			p, err := page.Parse(string(content))
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}

			return s.run(cmd.Context(), state.Run, func(ctx context.Context, sys *localsystem.System) error {
				if err := s.update(ctx, sys, p, args[0]); err != nil {
					return fmt.Errorf("%s: %w", args[0], err)
				}

				return nil
			})
		},
	}
	s.add(cmd.Flags(), "a temporary directory")

	return cmd
}

// update runs the commands of a page in a shell with the variables of demo env, and writes the page to its file.
func (s *server) update(ctx context.Context, sys *localsystem.System, p *page.Page, file string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()

	dir := filepath.Join(sys.StateDir, "page")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("create a directory for the shell: %w", err)
	}

	sh, err := page.NewShell(dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + sys.StateDir, "LC_ALL=C.UTF-8", "TZ=UTC"})
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, sh.Close()) }()

	if _, err := sh.Run(ctx, exports(sys)); err != nil {
		return err
	}
	s.console.Progress("running the commands of %s", file)

	changed, err := p.Update(ctx, sh)
	if err != nil {
		return err
	}

	for _, c := range changed {
		s.console.Note("%s:%d: the output changed: $ %s", file, c.Line, c.Text)
	}
	s.console.OK("%s: %d commands ran, the output of %d changed", file, len(p.Commands), len(changed))

	if len(changed) == 0 {
		return nil
	}

	if err := os.WriteFile(file, []byte(p.String()), 0o644); err != nil { //nolint:gosec // world-readable
		return fmt.Errorf("write the page: %w", err)
	}

	return nil
}
