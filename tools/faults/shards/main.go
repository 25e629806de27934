// Command shards is a shard of fault runs that runs the controllers of the example without pkg/shard.
package main

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
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// options are the flags, most of them as of the example.
type options struct {
	ring, name, namespace                     string // of the shard and its Lease
	leaseDuration, renewDeadline, retryPeriod time.Duration
	kubeconfig, historyFile                   string
	work                                      time.Duration
}

func main() {
	o := &options{}
	pflag.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file of the API server")
	pflag.StringVar(&o.ring, "ring", "", "name of the ClusterRing")
	pflag.StringVar(&o.name, "shard-name", "", "name of the shard and its Lease")
	pflag.StringVar(&o.namespace, "lease-namespace", "", "namespace of the Lease")
	pflag.DurationVar(&o.leaseDuration, "lease-duration", 0, "how long the Lease is healthy after a renewal")
	pflag.DurationVar(&o.renewDeadline, "lease-renew-deadline", 0, "how long to try to renew the Lease")
	pflag.DurationVar(&o.retryPeriod, "lease-retry-period", 0, "time between renewals")
	pflag.DurationVar(&o.work, "work-duration", 0, "make each reconcile take longer by this time")
	pflag.StringVar(&o.historyFile, "history-file", "", "append each reconcile's start and end to this file")

	pflag.CommandLine.ParseErrorsAllowlist.UnknownFlags = true // such as addresses, which the example has

	pflag.Parse()
	ctrl.SetLogger(funcr.New(func(prefix, args string) { fmt.Fprintln(os.Stderr, prefix, args) },
		funcr.Options{LogTimestamp: true}))

	if err := o.run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run runs the shard until a signal ends it.
func (o *options) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}

	config.QPS, config.Burst = 100, 200

	file, err := os.OpenFile(o.historyFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the history: %w", err)
	}

	recorder := recorder{work: o.work,
		history: history.NewRecorder(file, os.Getpid(), func() string { return o.name }, now)}

	mgr, err := o.plainShard(ctx, config, recorder)
	if err != nil {
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

// recorder records a history of reconciles. It is safe for concurrent use.
type recorder struct {
	work    time.Duration
	history *history.Recorder
}

// reconciler wraps a reconciler: it adds the work duration of the flags, and records each reconcile.
func (r recorder) reconciler(s history.Subject, inner reconcile.Reconciler) reconcile.Reconciler {
	return r.history.Reconciler(s, history.Delay(clock.RealClock{}, r.work, inner))
}
