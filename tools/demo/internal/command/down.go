package command

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/demo/internal/state"
)

func newDown(registry state.Registry) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop what demo up has started, and remove what any demo has left behind",
		Long: `down stops every demo of this user, running or killed, and removes its files: the one that demo up has started, what is left
of a demo run that was killed, and kept logs. It finds processes by the state directory in their arguments, so it does not
matter which of them has died.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return down(c.Context(), registry, report.NewConsole(c.OutOrStdout()))
		},
	}
}

func down(ctx context.Context, registry state.Registry, console *report.Console) error {
	records, err := registry.Records()
	if err != nil {
		return err
	}
	var errs []error
	found := len(records) > 0
	for _, record := range records {
		what := "left over"
		if record.Alive() {
			what = "running"
		}
		console.Progress("removing demo %s (%s), state in %s", record.Kind, what, record.Dir)
		if err := record.Remove(ctx); err != nil {
			errs = append(errs, err)
			continue
		}
		console.Text("Removed demo " + string(record.Kind) + " (" + what + ") with its state in " + record.Dir + ".")
	}
	// Records may have been deleted with all else in the user's cache.
	if _, err := os.Stat(defaultUpDir()); err == nil {
		found = true
		errs = append(errs, state.Discard(ctx, defaultUpDir()))
		console.Text("Removed " + defaultUpDir() + ", which demo up has left behind.")
	}
	if !found {
		console.Text("No demo runs here, and none has left anything behind.")
	}
	return errors.Join(errs...)
}
