package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/shard"
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
	files    []io.Closer
}

// open sets up what the options ask for. The context ends when the process is told to stop.
func (e *extras) open(ctx context.Context, o options, mgr *shard.Manager) error {
	e.options, e.client = o, mgr.GetClient()

	if o.historyFile != "" {
		file, err := e.file(o.historyFile)
		if err != nil {
			return err
		}

		e.recorder = history.NewRecorder(file, os.Getpid(), mgr.Shard().Name, history.Now)
	}

	if o.carelessFile != "" {
		file, err := e.file(o.carelessFile)
		if err != nil {
			return errors.Join(err, e.close())
		}

		unchecked, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
		if err != nil {
			return errors.Join(fmt.Errorf("create the client of careless writes: %w", err), e.close())
		}

		e.careless = history.NewCareless(unchecked, mgr.Shard().Name, ctx.Done(), file)
	}

	return nil
}

func (e *extras) file(name string) (io.Writer, error) {
	file, err := history.Open(name)
	if err != nil {
		return nil, fmt.Errorf("--history-file, --careless-file: %w", err)
	}

	e.files = append(e.files, file)

	return file, nil
}

// decorate implements [decorate].
func (e *extras) decorate(name string, obj client.Object, inner reconcile.Reconciler) reconcile.Reconciler {
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

// close closes the files.
func (e *extras) close() error {
	var errs []error

	for _, file := range e.files {
		if err := file.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close a file of records: %w", err))
		}
	}

	return errors.Join(errs...)
}
