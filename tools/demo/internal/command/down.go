package command

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/tools/demo/internal/state"
)

func (c *common) newDown() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the system that demo up has started, and remove what all demos have left behind",
		Long: `down stops every demo of this user, running or killed, and removes its files: the system that demo up has started, what a killed
demo run has left behind, and kept logs. It finds processes by the state directory in their arguments, so it also works after some of
them have died.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.down(cmd.Context()) },
	}
}

func (c *common) down(ctx context.Context) error {
	records, err := c.registry.Records()
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
		c.console.Progress("removing demo %s (%s), state in %s", record.Kind, what, record.Dir)

		if err := record.Remove(ctx); err != nil {
			errs = append(errs, err)
			continue
		}
		c.console.Text("Removed demo " + string(record.Kind) + " (" + what + ") with its state in " + record.Dir + ".")
	}
	// The records may have been deleted with the rest of the user's cache.
	if _, err := os.Stat(defaultUpDir()); err == nil {
		found = true

		errs = append(errs, state.Discard(ctx, defaultUpDir()))
		c.console.Text("Removed " + defaultUpDir() + ", which demo up had left behind.")
	}

	if !found {
		c.console.Text("No demo is running, and none has left anything behind.")
	}

	return errors.Join(errs...)
}
