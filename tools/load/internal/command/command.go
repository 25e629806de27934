// Package command is the command line of the load tool.
package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// errInterrupted ends what runs when a person, or a parent, says so.
var errInterrupted = errors.New("interrupted")

// Main runs the command line of this process and returns its exit code.
func Main() int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() {
		<-signals
		cancel(errInterrupted)
		// Further signals change nothing: what was started is being stopped, which takes seconds and must not be cut short.
	}()

	// What libraries have to say about a control plane under load helps nobody.
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())

	err := New().ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errInterrupted):
		fmt.Fprintln(os.Stderr, "Interrupted: everything was stopped.")
		return 130 // 128 + SIGINT, as shells have it
	default:
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
}

const long = `load measures what sharding costs: each measurement against its floor, the least that it could cost, in the same run and in
turns, so that whatever else the machine does hits both alike.

  load run            measures, and writes a report with tables, plots and figures for machines into a directory
  load report         writes that report again, from the figures of an earlier run
  load noop-webhook   is a floor: an admission webhook that adds a constant label. "load run" starts it by itself

Shards are Leases that the tool holds, and drains that it acknowledges: thousands of shards and hundreds of thousands of objects
fit on one machine.`

// New returns the command.
func New() *cobra.Command {
	root := &cobra.Command{
		Use:           "load",
		Short:         "Measure what sharding costs, against the least that it could cost",
		Long:          long,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", err, c.CommandPath())
	})
	root.AddCommand(newRun(), newReport(), newNoopWebhook())
	return root
}
