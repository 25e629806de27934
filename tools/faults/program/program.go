// Package program contains the common parts of the shards of fault runs that do not run the example: flags, logs, a client, and a history.
package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// Options are the flags of the example that fault runs set. Create them with [Flags].
type Options struct {
	// Ring is the name of the ClusterRing, Name the name of the shard and its Lease, Namespace the namespace of the Lease.
	Ring, Name, Namespace string
	// LeaseDuration, RenewDeadline, and RetryPeriod configure the Lease.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration

	kubeconfig, historyFile string
	work                    time.Duration
}

// Flags adds the flags to the command line. The options contain their values after parsing.
func Flags() *Options {
	o := &Options{}
	pflag.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file of the API server")
	pflag.StringVar(&o.Ring, "ring", "", "name of the ClusterRing")
	pflag.StringVar(&o.Name, "shard-name", "", "name of the shard and its Lease")
	pflag.StringVar(&o.Namespace, "lease-namespace", "", "namespace of the Lease")
	pflag.DurationVar(&o.LeaseDuration, "lease-duration", 0, "how long the Lease is healthy after a renewal")
	pflag.DurationVar(&o.RenewDeadline, "lease-renew-deadline", 0, "how long to try to renew the Lease")
	pflag.DurationVar(&o.RetryPeriod, "lease-retry-period", 0, "time between renewals")
	pflag.DurationVar(&o.work, "work-duration", 0, "make each reconcile take longer by this time")
	pflag.StringVar(&o.historyFile, "history-file", "", "append each reconcile's start and end to this file")

	return o
}

// Main runs a program until it returns or a signal ends its context, and returns the exit code. It prints an error and returns 1 for it.
func Main(run func(context.Context) error) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctrl.SetLogger(funcr.New(func(prefix, args string) { fmt.Fprintln(os.Stderr, prefix, args) }, funcr.Options{LogTimestamp: true}))

	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}

	return 0
}

// Config returns the client configuration.
func (o *Options) Config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}

	config.QPS, config.Burst = 100, 200

	return config, nil
}

// Run calls add, which adds controllers to the manager, and runs the manager until ctx ends.
func (o *Options) Run(ctx context.Context, mgr ctrl.Manager, add func(Recorder) error) error {
	file, err := os.OpenFile(o.historyFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the history: %w", err)
	}

	if err := add(Recorder{work: o.work, history: history.NewRecorder(file, os.Getpid(), func() string { return o.Name }, now)}); err != nil {
		return errors.Join(err, file.Close())
	}

	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the shard: %w", err) // workers may still write their history
	}

	if err := file.Close(); err != nil {
		return fmt.Errorf("close the history: %w", err)
	}

	return nil
}

// now returns the current time, also by a clock that all processes share.
func now() history.Stamp {
	return history.Stamp{Time: time.Now(), Monotonic: record.Now().Nanoseconds()}
}

// Recorder records a history of reconciles. It is safe for concurrent use.
type Recorder struct {
	work    time.Duration
	history *history.Recorder
}

// Reconciler wraps a reconciler: it adds the work duration of the flags, and records each reconcile.
func (r Recorder) Reconciler(s history.Subject, inner reconcile.Reconciler) reconcile.Reconciler {
	return r.history.Reconciler(s, history.Delay(clock.RealClock{}, r.work, inner))
}
