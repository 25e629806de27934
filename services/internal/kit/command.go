package kit

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
)

// NewCommand returns the command of a service. Run it with [Main], or with ExecuteContext in tests: cancelling the
// context has the effect of a signal. Several commands may run in one process.
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
		PreRunE: func(*cobra.Command, []string) error {
			err := o.validate()
			if err == nil && s.Validate != nil {
				err = s.Validate()
			}

			if err != nil {
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

// Main runs the command until it ends or the process gets SIGINT or SIGTERM. It returns the exit code: 0 after a
// graceful stop, or 1 after an error, which it prints to stderr as one line. A second signal ends the process
// immediately.
func Main(cmd *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	context.AfterFunc(ctx, stop) // so that the second signal has its usual effect

	if err := cmd.ExecuteContext(context.WithValue(ctx, ownsProcess{}, true)); err != nil {
		// Also several mistakes are one line to grep for.
		fmt.Fprintln(cmd.ErrOrStderr(), "error: "+strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; "))
		return 1
	}

	return 0
}

// Version is the released version of this build. Set it with
// -ldflags "-X github.com/clusterring/clusterring/services/internal/kit.Version=v1.2.3".
var Version = "dev"

// versionLine is what --version prints, without the name: "v1.2.3 (go1.26.0)".
func versionLine() string { return fmt.Sprintf("%s (%s)", Version, runtime.Version()) }

// buildInfo tells dashboards which version of which service a process is.
var buildInfo = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "clusterring_build_info",
	Help: "Always 1; the labels identify the service and its build.",
}, []string{"service", "version", "go_version"})
