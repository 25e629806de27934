package shard

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/shard/former"
)

// placed is a controller or another runnable as the manager runs it: where it was declared to run, and with a mark for the checks.
type placed struct {
	runnable manager.Runnable
	manager  *Manager
	sharded  bool             // it starts when this process works as a shard
	mark     *mark            // nil: none
	former   *former.Election // it starts after the former leader election; nil if there is none, or if it does not wait
	election *election        // it starts in the elected replica; nil: in every replica
}

// Start implements manager.Runnable.
func (p *placed) Start(ctx context.Context) error {
	ctx, end := p.manager.work(ctx)
	defer end()

	if p.sharded && !waitFor(ctx, p.manager.working) || p.former != nil && !waitFor(ctx, p.former.Held()) {
		return nil
	}

	if p.election != nil {
		if !waitFor(ctx, p.election.elected) || !p.election.crew.enter() {
			return nil
		}

		defer p.election.crew.leave()
	}

	return p.runnable.Start(p.marked(ctx)) //nolint:wrapcheck // it is the runnable's
}

func (p *placed) marked(ctx context.Context) context.Context {
	if p.mark == nil {
		return ctx
	}

	return marked(ctx, *p.mark)
}

// waitFor reports whether the channel is closed before the context ends.
func waitFor(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-c:
		return ctx.Err() == nil
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable. A manager stops what needs none first.
func (p *placed) NeedLeaderElection() bool { return p.election == nil && !everywhere(p.runnable) }

// Warmup starts the watches of a sharded controller before it works, so that the caches of kinds that are not sharded are full when the shard takes its Lease.
func (p *placed) Warmup(ctx context.Context) error {
	if w, ok := p.runnable.(interface {
		Warmup(ctx context.Context) error
	}); ok {
		// The queue of the controller ends with this context, and its workers wait for that.
		ctx, cancel := context.WithCancelCause(p.marked(ctx))
		context.AfterFunc(p.manager.stopping, func() { cancel(context.Cause(p.manager.stopping)) })

		return w.Warmup(ctx) //nolint:wrapcheck // it is the runnable's
	}

	return nil
}
