package kit

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// running is one service between its start and its stop.
type running struct {
	service  Service
	options  *Options
	log      logr.Logger
	manager  manager.Manager
	phases   *phases
	leader   *leadership  // nil without leader election
	lost     <-chan error // why the leader Lease was lost
	draining *latch
	// embedding restricts the service to one ring; nil for a process of its own.
	embedding *Embedding
}

// run starts the service and returns when it has stopped: nil after a graceful stop, else what went wrong.
func run(ctx context.Context, s Service, o *Options, cmd *cobra.Command) error {
	restConfig, err := restConfig(o, s.Name+"/"+Version)
	if err != nil {
		return err
	}

	if err := preflight(ctx, restConfig); err != nil {
		return err
	}

	setGlobalLoggers(ctx, o)

	log := newLogger(o, s.Name, cmd.ErrOrStderr())
	r := &running{service: s, options: o, log: log, draining: newLatch()}

	// The manager outlives ctx by the shutdown delay, so it has a context of its own, with our logger.
	managerCtx, stop := context.WithCancel(ctrllog.IntoContext(context.WithoutCancel(ctx), log))
	defer stop()

	if err := r.prepare(managerCtx, restConfig); err != nil {
		return err
	}

	_ = metrics.Registry.Register(buildInfo) // it fails if a service has run in this process before
	buildInfo.WithLabelValues(s.Name, Version, runtime.Version()).Set(1)
	log.Info("Starting", "version", versionLine(), "server", restConfig.Host)

	if err := r.supervise(ctx, managerCtx, stop); err != nil {
		return err
	}
	log.Info("Stopped")

	return nil
}

// prepare makes the manager and lets the service set itself up.
func (r *running) prepare(ctx context.Context, restConfig *rest.Config) error {
	workersGone := newLatch()
	if r.options.LeaderElect {
		leader, err := newLeadership(restConfig, r.service.Name, r.options, workersGone)
		if err != nil {
			return err
		}

		r.leader, r.lost = leader, leader.lost
	}

	options := r.managerOptions()
	if r.embedding != nil {
		restConfig = r.embedding.restrict(restConfig, &options, r.leader)
	}

	var err error
	if r.manager, err = manager.New(restConfig, options); err != nil {
		return fmt.Errorf("prepare the manager: %w", err)
	}

	if r.phases, err = addPhases(r.manager, workersGone); err != nil {
		return fmt.Errorf("prepare the manager: %w", err)
	}

	rt := &Runtime{
		Manager: r.manager, Options: r.options, Log: r.log, Clock: clock.RealClock{}, draining: r.draining.Done(),
		embedding: r.embedding,
	}

	if err := r.manager.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("add health check: %w", err)
	}

	rt.AddReady("caches", Until(r.phases.started.closed, "the caches are not filled yet"))
	rt.AddReady("draining", Until(func() bool { return !r.draining.closed() }, "told to stop"))

	if err := r.service.Setup(ctx, rt); err != nil {
		return fmt.Errorf("set up %s: %w", r.service.Name, err)
	}

	return nil
}

func (r *running) managerOptions() manager.Options {
	namespaces, _ := parseNamespaceSelector(r.options.DefaultNamespaceSelector) // options are valid

	o := manager.Options{
		Scheme:                 newScheme(),
		Cache:                  cacheOptions(namespaces),
		Logger:                 r.log,
		Metrics:                metricsserver.Options{BindAddress: r.options.MetricsBindAddress},
		HealthProbeBindAddress: r.options.HealthProbeBindAddress,
		PprofBindAddress:       r.options.PprofBindAddress,
		// Controller names have to be unique per process only for the sake of metrics; tests run several instances in one.
		Controller: config.Controller{SkipNameValidation: new(true)},
	}
	if o.Metrics.BindAddress == "" {
		o.Metrics.BindAddress = "0" // the manager would take the empty string for its own default
	}

	if r.service.Configure != nil {
		r.service.Configure(r.options, &o)
	}
	// The manager waits for its workers for ever, because after a timeout of its own it would release the leader Lease
	// although a worker still runs (engageStopProcedure cancels the elector in either case). supervise bounds the wait: it
	// gives up by ending the process, which keeps the Lease.
	o.GracefulShutdownTimeout = new(-1 * r.options.ShutdownGrace)

	o.LeaderElection = r.leader != nil
	if r.leader != nil {
		o.LeaderElectionResourceLockInterface = r.leader
		o.LeaderElectionID = r.service.Name
		o.LeaderElectionReleaseOnCancel = true
		o.LeaseDuration = &r.options.LeaderElectLeaseDuration
		o.RenewDeadline = &r.options.LeaderElectRenewDeadline
		o.RetryPeriod = &r.options.LeaderElectRetryPeriod
	}

	return o
}

// supervise runs the manager until ctx ends or something fails, and sees to it that every stop ends. An embedded
// service has ended when it returns, however long that takes: its gate refuses all writes from the moment at which the
// leader Lease is lost.
func (r *running) supervise(ctx, managerCtx context.Context, stop context.CancelFunc) error {
	defer r.draining.close()

	done := make(chan error, 1)
	go func() { done <- r.manager.Start(managerCtx) }()

	var reason error

	select {
	case err := <-done:
		return r.failed(err)
	case reason = <-r.lost:
		if r.embedding == nil {
			return reason
		}
	case <-r.phases.stopping.Done(): // a runnable failed; the manager is stopping the others
	case <-ctx.Done():
		if finished, err := r.drain(done); finished {
			return err
		}
	}
	r.draining.close()
	stop()

	if r.embedding != nil {
		return r.ended(ctx, done, reason)
	}

	if finished, err := r.await(r.options.ShutdownGrace, done, nil); finished {
		return err
	}

	return fmt.Errorf("work still runs %s after the stop began (--shutdown-grace); exiting without releasing the "+
		"leader Lease", r.options.ShutdownGrace)
}

// drain reports not ready and goes on serving for the shutdown delay. It returns true, with the reason, when the
// service ended before that time was over.
func (r *running) drain(done <-chan error) (bool, error) {
	r.log.Info("Stopping: no longer ready", "delay", r.options.ShutdownDelay.String(), "grace",
		r.options.ShutdownGrace.String())
	r.draining.close()

	if !r.phases.started.closed() {
		// The manager cannot be stopped while it waits for its caches. Nothing has begun that would have to end in order.
		return true, nil
	}

	return r.await(r.options.ShutdownDelay, done, r.phases.stopping.Done())
}

// await gives the manager a time to end. It returns true, with the reason, when the service ended before that time was
// over, or nothing was to be awaited any more.
func (r *running) await(limit time.Duration, done <-chan error, needless <-chan struct{}) (ended bool, reason error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()

	select {
	case err := <-done:
		return true, r.failed(err)
	case err := <-r.lost:
		return true, err
	case <-needless:
	case <-timer.C:
	}

	return false, nil
}

// failed says why the manager ended; a lost leadership is the better reason where both are known.
func (r *running) failed(err error) error {
	if err == nil {
		return nil
	}

	select {
	case reason := <-r.lost:
		return reason
	default:
		return fmt.Errorf("run %s: %w", r.service.Name, err)
	}
}
