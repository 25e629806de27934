package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/demo/internal/scenario"
	"github.com/clusterring/clusterring/tools/demo/internal/state"
	"github.com/clusterring/clusterring/tools/lab/commandline"
)

func (c *common) newRun() *cobra.Command {
	const objects = 500

	cmd := &cobra.Command{
		Use:   "run",
		Short: "Demonstrate and verify each guarantee, and leave nothing behind",
		Long: `run starts everything and demonstrates each guarantee in eleven steps: shards join, objects are created, a shard is killed, a shard
stops, two shards join under load, a shard freezes and resumes, the assigner fails, queries are answered, the ring is deleted under
load, shards shard by themselves, and final checks.

Every step does something and then checks what is guaranteed for that case. The exit code is 0 only if all checks pass. The command
leaves nothing behind, also after Ctrl-C. After a failure, it keeps the logs and prints their location; "demo down" removes them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.prepare(cmd.Context()); err != nil {
				return err
			}

			return c.run(cmd.Context(), objects, (*scenario.Story).Steps)
		},
	}
	c.add(cmd.Flags())

	return cmd
}

func (c *common) newModes() *cobra.Command {
	const objects = 100

	names := scenario.ModeNames()
	cmd := &cobra.Command{
		Use:   "modes [MODE...]",
		Short: "Demonstrate and verify other ways to share objects, and leave nothing behind",
		Long: `modes starts everything and runs modes of docs/modes.md one after the other: ` + strings.Join(names, ", ") + `.
Without arguments, it runs all of them. The steps do not depend on each other.

Every step checks what the mode promises. The exit code is 0 only if all checks pass. The command leaves nothing behind, also after
Ctrl-C.`,
		Example: `  make demo-modes                    builds everything, then runs this
  make demo-modes ARGS=standby       runs one mode`,
		ValidArgs: names, Args: cobra.OnlyValidArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.prepare(cmd.Context(), "jobset", "trust-manager", "client-go"); err != nil {
				return err
			}

			return c.run(cmd.Context(), objects, func(s *scenario.Story) []scenario.Step { return s.Modes(args...) })
		},
	}
	c.add(cmd.Flags())

	return cmd
}

// run runs the system and the chosen steps.
func (c *common) run(ctx context.Context, objects int, choose func(*scenario.Story) []scenario.Step) error {
	dir, release, err := state.Claim("")
	if err != nil {
		return err
	}

	rows, err := c.tell(ctx, dir, objects, choose)

	interrupted := errors.Is(err, commandline.ErrInterrupted)
	if err != nil && !interrupted {
		c.console.Text("  ✗ %s\n\nLogs are kept in %s; demo down removes them.", err, dir)
		c.console.Table(rows)

		return errors.Join(commandline.ErrShown, release())
	}

	err = errors.Join(err, state.Discard(context.WithoutCancel(ctx), dir), release())
	if err == nil {
		c.console.Text("")
		c.console.Table(rows)
	}

	return err
}

// tell runs the system and the steps until one fails. It returns the row of each step that was begun.
func (c *common) tell(
	ctx context.Context, dir string, objects int, choose func(*scenario.Story) []scenario.Step,
) (rows []report.Row, err error) {
	c.console.Text("The system starts (state in %s)", dir)

	begin := time.Now()
	rows = []report.Row{{Step: "the system starts",
		Checked: []string{"control plane, manifests, and 5 service processes, each with only its own permissions"}}}

	err = localsystem.Run(ctx, c.options(dir), func(ctx context.Context, sys *localsystem.System) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)

		go func() {
			select {
			case died := <-sys.Died():
				cancel(died)
			case <-ctx.Done():
			}
		}()

		story, err := scenario.New(ctx, sys, c.console, objects)
		if err != nil {
			return err
		}

		for i, step := range choose(story) {
			rows[len(rows)-1].Took = time.Since(begin)

			c.console.Text("\n%d. %s", i+1, strings.ToUpper(step.Title[:1])+step.Title[1:])

			begin = time.Now()
			row := report.Row{Step: fmt.Sprintf("%d %s", i+1, step.Title)}
			row.Checked, err = story.Do(ctx, step)

			if rows = append(rows, row); err != nil {
				return err
			}
		}

		return nil
	})
	last := &rows[len(rows)-1]
	last.Took, last.Err = time.Since(begin), err

	return rows, err
}
