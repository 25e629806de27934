package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/tools/example/website"
	"github.com/clusterring/clusterring/tools/testkit/history"
)

// lastWrites is how long the end of the process waits for careless workers.
const lastWrites = 2 * time.Second

// extras are what only tests and demonstrations need: reconciles that are recorded, that take longer, or that write
// without their Lease. The zero value adds nothing.
type extras struct {
	options  options
	recorder *history.Recorder
	careless *history.Careless
	client   client.Client
}

// open sets up what the options ask for. Its files stay open: workers may write to the end. The context ends when the
// process is told to stop.
func (e *extras) open(ctx context.Context, o options, mgr *shard.Manager) error {
	e.options, e.client = o, mgr.GetClient()

	if o.historyFile != "" {
		file, err := history.Open(o.historyFile)
		if err != nil {
			return fmt.Errorf("--history-file: %w", err)
		}

		e.recorder = history.NewRecorder(file, os.Getpid(), mgr.Shard().Name, history.Now)
	}

	if o.carelessFile != "" {
		file, err := history.Open(o.carelessFile)
		if err != nil {
			return fmt.Errorf("--careless-file: %w", err)
		}

		unchecked, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
		if err != nil {
			return fmt.Errorf("create the client of careless writes: %w", err)
		}

		e.careless = history.NewCareless(unchecked, mgr.Shard().Name, ctx.Done(), file)
	}

	return nil
}

// decorate implements [decorate].
func (e *extras) decorate(name string, obj client.Object, inner reconcile.Reconciler) reconcile.Reconciler {
	if name == "website" {
		inner = website.Slow(e.client, e.options.changeDuration, e.options.changeCPU, inner)
	}

	inner = history.Delay(clock.RealClock{}, e.options.workDuration, inner)
	if e.recorder != nil {
		inner = e.recorder.Reconciler(history.Subject{Controller: name, Object: obj, Reader: e.client}, inner)
	}

	if e.careless != nil {
		inner = e.careless.Reconciler(obj, inner)
	}

	return inner
}

// wait waits for careless workers, but not for ever: one of them may be who waits.
func (e *extras) wait() {
	if e.careless == nil {
		return
	}

	done := make(chan struct{})
	go func() {
		defer close(done)
		e.careless.Wait()
	}()

	timer := clock.RealClock{}.NewTimer(lastWrites)
	defer timer.Stop()

	select {
	case <-done:
	case <-timer.C():
	}
}

// exit ends the process when the Lease is lost and workers have not stopped.
func (e *extras) exit(err error) {
	e.wait()
	klog.Background().Error(err,
		"Exiting: the Lease is lost, and only the end of the process stops its workers for certain")
	klog.Flush()
	os.Exit(1) //nolint:revive // nothing less stops a worker that ignores its context
}

// unsharded runs the controllers as an ordinary program, which has all objects.
func unsharded(ctx context.Context, config *rest.Config, managerOptions ctrl.Options, o options) error {
	mgr, err := ctrl.NewManager(config, managerOptions)
	if err != nil {
		return explain(err, config)
	}

	e := &extras{options: o, client: mgr.GetClient()}

	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping),
		addControllers(ctx, mgr, e.decorate, o.controllers)); err != nil {
		return fmt.Errorf("set up the controllers: %w", err)
	}

	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the controllers: %w", err)
	}

	return nil
}
