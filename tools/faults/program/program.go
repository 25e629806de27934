// Package program is what the shards of fault runs have in common that are not the example: flags, logs, a client, and a history of what they do.
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

	"github.com/clusterring/clusterring/tools/example/history"
	"github.com/clusterring/clusterring/tools/lab/record"
)

// Options are the flags, those of the example that fault runs set. Make them with [Flags].
type Options struct {
	// Ring is the name of the ClusterRing, Name that of the shard and its Lease, Namespace that of the Lease.
	Ring, Name, Namespace string
	// LeaseDuration, RenewDeadline and RetryPeriod are those of the Lease.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration

	kubeconfig, historyFile string
	work                    time.Duration
}

// Flags adds the flags to those of the command line. The options hold their values when these are parsed.
func Flags() *Options {
	o := &Options{}
	pflag.StringVar(&o.kubeconfig, "kubeconfig", "", "file that says how to reach the API server")
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

// Main runs a program until it ends, or is asked to by a signal, and returns its exit code. An error is printed, and makes that 1.
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

// Config returns how to reach the API server.
func (o *Options) Config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 100, 200
	return config, nil
}

// Run has add give controllers to the manager, and runs that until ctx ends.
func (o *Options) Run(ctx context.Context, mgr ctrl.Manager, add func(Recorder) error) error {
	file, err := os.OpenFile(o.historyFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the history: %w", err)
	}
	if err := add(Recorder{work: o.work, history: history.NewRecorder(file, os.Getpid(), o.Name, now)}); err != nil {
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

// now is a point in time, by a clock that all processes share.
func now() history.Stamp {
	return history.Stamp{Time: time.Now(), Monotonic: record.Now().Nanoseconds()}
}

// Recorder writes a history of reconciles. It is safe for concurrent use.
type Recorder struct {
	work    time.Duration
	history *history.Recorder
}

// Reconciler returns one that does what inner does, takes as much longer as the flags say, and writes that down.
func (r Recorder) Reconciler(s history.Subject, inner reconcile.Reconciler) reconcile.Reconciler {
	return r.history.Reconciler(s, history.Delay(clock.RealClock{}, r.work, inner))
}
