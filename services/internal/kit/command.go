package kit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
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

// Main runs the command until it ends or the process gets SIGINT or SIGTERM. It returns the exit code: 0 after a
// graceful stop, or 1 after an error, which it prints to stderr as one line. A second signal ends the process
// immediately.
func Main(cmd *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	context.AfterFunc(ctx, stop) // so that the second signal has its usual effect

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

// addressSuffix ends the name of every flag that holds a listening address.
const addressSuffix = "bind-address"

// bindFlags returns the flags that hold a listening address which is in use ("" and "0" turn a server off).
func bindFlags(fs *pflag.FlagSet) []*pflag.Flag {
	var flags []*pflag.Flag
	fs.VisitAll(func(f *pflag.Flag) {
		if v := f.Value.String(); strings.HasSuffix(f.Name, addressSuffix) && v != "" && v != "0" {
			flags = append(flags, f)
		}
	})

	return flags
}

// validateAddresses checks the form of every listening address, and that no two flags ask for the same port.
func validateAddresses(fs *pflag.FlagSet) error {
	var errs []error

	taken := map[string]string{}

	for _, f := range bindFlags(fs) {
		address := f.Value.String()

		host, port, err := net.SplitHostPort(address)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s %q is no address: want host:port, :port, or 0 for off", f.Name, address))
			continue
		}

		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s %q: port must be a number from 0 to 65535", f.Name, address))
			continue
		}

		key := net.JoinHostPort(host, port)
		if other, ok := taken[key]; ok && number != 0 {
			errs = append(errs, fmt.Errorf("--%s and --%s are both %q; each needs a port of its own", other, f.Name, address))
		}

		taken[key] = f.Name
	}

	return errors.Join(errs...)
}

// probeAddresses listens on every address for a moment. The servers bind later, some of them only once the caches are
// filled; a taken port shall be told before anything has happened.
func probeAddresses(fs *pflag.FlagSet) error {
	var errs []error

	for _, f := range bindFlags(fs) {
		listener, err := net.Listen("tcp", f.Value.String())
		if err != nil {
			errs = append(errs, listenError(f, err))
			continue
		}

		if err := listener.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close the probe of --%s: %w", f.Name, err))
		}
	}

	return errors.Join(errs...)
}

func listenError(f *pflag.Flag, err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		err = errno
	}

	return fmt.Errorf("cannot listen on %s (--%s): %w; choose another address or stop what uses it", f.Value, f.Name, err)
}

// Version is the released version of this build. Set it with
// -ldflags "-X github.com/clusterring/clusterring/services/internal/kit.Version=v1.2.3".
var Version = "dev"

// commit returns the first digits of the commit that Go recorded in the binary, "" where it did not.
func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}

	revision, modified := "", ""

	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "+changes"
		}
	}

	if revision == "" {
		return ""
	}

	return revision + modified
}

// versionLine is what --version prints, without the name: "dev (1a2b3c4d5e6f, go1.26.0)".
func versionLine() string {
	if c := commit(); c != "" {
		return fmt.Sprintf("%s (%s, %s)", Version, c, runtime.Version())
	}

	return fmt.Sprintf("%s (%s)", Version, runtime.Version())
}

// buildInfo tells dashboards which version of which service a process is.
var buildInfo = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "clusterring_build_info",
	Help: "Always 1; the labels identify the service and its build.",
}, []string{"service", "version", "commit", "go_version"})

var registerBuildInfo = sync.OnceFunc(func() { metrics.Registry.MustRegister(buildInfo) })

func recordBuild(service string) {
	registerBuildInfo()
	buildInfo.WithLabelValues(service, Version, commit(), runtime.Version()).Set(1)
}
