// Command ordinals is the example controller without a ring: the Pods of a StatefulSet share its Websites by their ordinals. Copy it for your own
// controller. Comments in run.go mark what sharing adds to an ordinary controller.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/clusterring/clusterring/tools/example/setup"
)

const usage = `Usage: ordinals [flags]

Runs one replica of the example controller: it renders each Website that belongs to its ordinal into a ConfigMap.
Run it as a StatefulSet; deploy/example-ordinals has one. Outside a cluster, name a Pod of an existing StatefulSet:

  ordinals --pod-name website-0 --namespace example --metrics-bind-address 0 --health-probe-bind-address 0

Flags:
`

// options are the values of the flags.
type options struct {
	setup.Flags

	podName   string
	namespace string
}

func main() {
	os.Exit(start(os.Args[1:]))
}

// start returns the exit code.
func start(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	o, err := parse(args, os.Stdout)
	if errors.Is(err, pflag.ErrHelp) {
		return 0
	}

	if err == nil {
		err = runLogged(ctx, o)
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)

		return 1
	}

	return 0
}

// runLogged runs the replica with a logger for all of the process.
func runLogged(ctx context.Context, o options) error {
	log, err := o.Logger()
	if err != nil {
		return err
	}
	ctrl.SetLogger(log)
	klog.SetLogger(log)

	return run(ctx, o, log)
}

// parse returns the options, or pflag.ErrHelp after it has printed the help to out.
func parse(args []string, out io.Writer) (options, error) {
	var o options

	flags := pflag.NewFlagSet("ordinals", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.Usage = func() { fmt.Fprint(out, usage, flags.FlagUsages()) }

	flags.StringVar(&o.podName, "pod-name", "", "name of the Pod: that of the StatefulSet, a dash, and the ordinal (default: the host name)")
	flags.StringVar(&o.namespace, "namespace", "", "namespace of the Pod and the StatefulSet (default: the Pod's)")
	o.AddTo(flags)

	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return o, pflag.ErrHelp
		}

		return o, fmt.Errorf("%w; see --help", err)
	}

	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q; see --help", flags.Arg(0))
	}

	err := o.Validate()

	return o, err
}
