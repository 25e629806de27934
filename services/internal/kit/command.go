package kit

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// NewCommand returns the command of a service. Run it with [Main], or with ExecuteContext in tests: cancelling the context has
// the effect of a signal. Several commands may run in one process.
func NewCommand(s Service) *cobra.Command {
	o := &Options{}
	hint := func(err error) error {
		return fmt.Errorf("%w; see '%s --help'", err, s.Name)
	}
	cmd := &cobra.Command{
		Use:           s.Name + " [flags]",
		Short:         s.Short,
		Long:          s.Long,
		Example:       s.Example,
		Version:       versionLine(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return hint(fmt.Errorf("unexpected argument %q: use flags", args[0]))
			}

			return nil
		},
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := validate(s, o, cmd); err != nil {
				return hint(err)
			}

			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), s, o, cmd)
		},
	}
	cmd.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return hint(err) })

	cmd.Flags().SortFlags = false
	if s.AddFlags != nil {
		s.AddFlags(cmd.Flags())
	}
	o.addFlags(cmd.Flags(), s.LeaderElection)

	return cmd
}

func validate(s Service, o *Options, cmd *cobra.Command) error {
	if err := o.validate(); err != nil {
		return err
	}

	if err := validateAddresses(cmd.Flags()); err != nil {
		return err
	}

	if s.Validate == nil {
		return nil
	}

	return s.Validate()
}

// Main runs the command until it ends or the process gets SIGINT or SIGTERM. It returns the exit code: 0 after a graceful stop,
// or 1 after an error, which it prints to stderr as one line. A second signal ends the process immediately.
func Main(cmd *cobra.Command) int {
	ctx, stop := signalContext(cmd.ErrOrStderr())
	defer stop()

	if err := cmd.ExecuteContext(context.WithValue(ctx, ownsProcess{}, true)); err != nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "error: "+oneLine(err))
		return 1
	}

	return 0
}

// oneLine joins the lines of a joined error, so that one mistake is one line to grep for.
func oneLine(err error) string {
	return strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
}

// signalContext returns a context that ends at the first signal. At the second the process exits: whoever asks twice does
// not want to wait for the grace period.
func signalContext(out io.Writer) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)

	done := make(chan struct{})

	go func() {
		for range 2 {
			select {
			case <-done:
				return
			case <-signals:
				if ctx.Err() != nil {
					fmt.Fprintln(out, "error: second signal: exiting immediately")
					os.Exit(1) //nolint:revive // the point of a second signal
				}
				cancel()
			}
		}
	}()

	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}
