package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/demo/internal/scenario"
	"github.com/clusterring/clusterring/tools/demo/internal/state"
	"github.com/clusterring/clusterring/tools/lab/commandline"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

// shownLines is the number of lines of a log that are printed after a failure.
const shownLines = 8

// runner is one demo run.
type runner struct {
	*common
	story scenario.Options
	keep  bool
	// others are the binaries that the steps need, and others do not.
	others []string
	// choose returns the steps to run.
	choose func(*scenario.Story) ([]scenario.Step, error)
}

func (c *common) newRun() *cobra.Command {
	r := &runner{common: c, choose: func(s *scenario.Story) ([]scenario.Step, error) { return s.Steps(), nil }}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Demonstrate and verify each guarantee, and leave nothing behind",
		Long: `run starts everything and demonstrates each guarantee in eleven steps: shards join, objects are created, a shard is killed, a shard
stops, two shards join under load, a shard freezes and resumes, the assigner fails, queries are answered, the ring is deleted under
load, shards shard by themselves, and final checks.

Every step does something and then checks what is guaranteed for that case. The exit code is 0 only if all checks pass. The command
leaves nothing behind, also after Ctrl-C. After a failure, it keeps the logs and prints their location; "demo down" removes them.`,
		Example: `  make demo                          builds everything, then runs this
  bin/demo run                       with 3 shards and 500 objects
  bin/demo run --objects 5000        with more objects
  bin/demo run --keep                keep logs, data, and histories`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.run(cmd.Context()) },
	}
	r.addStory(cmd, 500)

	return cmd
}

// addStory adds the flags of a story.
func (r *runner) addStory(c *cobra.Command, objects int) {
	r.add(c.Flags())
	c.Flags().IntVar(&r.story.Shards, "shards", 3, "`number` of shards that join first")
	c.Flags().IntVar(&r.story.Objects, "objects", objects, "`number` of objects that are created first")
	c.Flags().BoolVar(&r.keep, "keep", false, "keep the state directory; its processes are stopped anyway")
}

func (r *runner) run(ctx context.Context) error {
	if err := r.story.Validate(); err != nil {
		return err
	}

	if err := r.prepare(ctx, r.others...); err != nil {
		return err
	}

	claim, err := state.NewClaim(state.Run)
	if err != nil {
		return err
	}

	rows, suspects, err := r.tell(ctx, claim.Dir)

	interrupted := errors.Is(err, commandline.ErrInterrupted)
	switch {
	case interrupted:
		r.console.Text("Interrupted: everything was stopped.")
	case err != nil:
		r.console.Failed("%s", err)
		r.showLogs(claim.Dir, suspects, err)
	}

	keep := r.keep || (err != nil && !interrupted)

	err = errors.Join(err, r.cleanUp(ctx, claim, keep))
	if interrupted {
		return errors.Join(err, commandline.ErrShown)
	}
	r.console.Text("")
	r.console.Table(rows)

	if err != nil {
		return commandline.ErrShown
	}

	return nil
}

// tell runs the system and the story. It returns the row of each step, and the suspects and the error of the step that
// failed.
func (r *runner) tell(ctx context.Context, stateDir string) (rows []report.Row, suspects []string, err error) {
	r.console.Heading("The system starts (state in %s)", stateDir)

	start, begin := report.Row{Step: "the system starts"}, time.Now()

	err = localsystem.Run(ctx, r.options(stateDir), func(ctx context.Context, sys *localsystem.System) error {
		start.Took = time.Since(begin)
		start.Checked = []string{"control plane, manifests, and 5 service processes, each with only its own permissions"}

		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)

		go func() {
			select {
			case died := <-sys.Died():
				cancel(died)
			case <-ctx.Done():
			}
		}()

		story, err := scenario.New(ctx, sys, r.console, r.story)
		if err != nil {
			return err
		}

		steps, err := r.choose(story)
		if err != nil {
			return err
		}

		rows, suspects, err = r.steps(ctx, story, steps)

		return err
	})
	if rows == nil {
		start.Took, start.Err = time.Since(begin), err
	}

	return slices.Concat([]report.Row{start}, rows), suspects, err
}

// steps runs the steps of the story until one fails.
func (r *runner) steps(
	ctx context.Context, story *scenario.Story, steps []scenario.Step,
) (rows []report.Row, suspects []string, failure error) {
	for i, step := range steps {
		row := report.Row{Step: fmt.Sprintf("%d %s", i+1, step.Title), Skipped: failure != nil}
		if failure == nil {
			r.console.Heading("%d. %s", i+1, strings.ToUpper(step.Title[:1])+step.Title[1:])

			begin := time.Now()
			row.Checked, row.Err = story.Do(ctx, step)
			row.Took = time.Since(begin)
			failure, suspects = row.Err, step.Suspects
		}

		rows = append(rows, row)
	}

	return rows, suspects, failure
}

// showLogs prints the last lines of the most relevant logs after a failure.
func (r *runner) showLogs(stateDir string, suspects []string, err error) {
	if fault, is := errors.AsType[*services.FaultError](err); is {
		suspects = []string{fault.Process}
	}

	for _, name := range suspects {
		file := filepath.Join(stateDir, "logs", name+".log")
		if text := process.Tail(file, shownLines); text != "" {
			r.console.Text("\nThe last lines of " + file + ":")
			r.console.Block(text)
		}
	}
}

// cleanUp ends the claim. After a failure, it keeps only logs and histories.
func (r *runner) cleanUp(ctx context.Context, claim *state.Claim, keep bool) error {
	ctx = context.WithoutCancel(ctx)
	if !keep {
		return errors.Join(state.Discard(ctx, claim.Dir), claim.Release())
	}

	var errs []error

	if !r.keep {
		for _, part := range []string{"etcd", "apiserver", "controller-manager", "kubeconfig"} {
			errs = append(errs, os.RemoveAll(filepath.Join(claim.Dir, part)))
		}
	}
	r.console.Text(fmt.Sprintf("\nLogs are kept in %s, histories of reconciles in %s; %s down removes them.",
		filepath.Join(claim.Dir, "logs"), filepath.Join(claim.Dir, "history"),
		localsystem.Display(filepath.Join(r.binDir, "demo"))))

	return errors.Join(append(errs, claim.Release())...)
}

func (c *common) newModes() *cobra.Command {
	r := &runner{common: c, others: []string{"guide", "jobset", "trust-manager", "client-go"}}
	names := (&scenario.Story{}).ModeNames()
	cmd := &cobra.Command{
		Use:   "modes [MODE...]",
		Short: "Demonstrate and verify the other ways to share objects, and leave nothing behind",
		Long: `modes starts everything and runs the modes of docs/modes.md one after the other: ` + strings.Join(names, ", ") + `.
Without arguments, it runs all of them. The steps do not depend on each other.

Every step checks what the mode promises. The exit code is 0 only if all checks pass. The command leaves nothing behind, also after
Ctrl-C.`,
		Example: `  make demo-modes                    builds everything, then runs this
  make demo-modes ARGS=standby       runs one mode
  bin/demo modes slots standby       runs two modes`,
		ValidArgs: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := (&scenario.Story{}).ModesNamed(args); err != nil {
				return err
			}

			r.choose = func(s *scenario.Story) ([]scenario.Step, error) { return s.ModesNamed(args) }

			return r.run(cmd.Context())
		},
	}
	r.addStory(cmd, 100)

	return cmd
}
