package adopt

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/shard/former"
)

// placed is a controller or another runnable as the manager runs it: where it was declared to run, and with a mark for the checks.
type placed struct {
	runnable manager.Runnable
	mark     mark             // zero for none
	former   *former.Election // it starts after the former leader election; nil if there is none, or if it does not wait
	election *election        // it starts in the elected replica; nil: in every replica
}

// Start implements manager.Runnable.
func (p *placed) Start(ctx context.Context) error {
	if p.former != nil && !wait(ctx, p.former.Held()) {
		return nil
	}

	if p.election != nil {
		if !wait(ctx, p.election.elected) || !p.election.enter() {
			return nil
		}

		defer p.election.leave()
	}

	if p.mark != (mark{}) {
		ctx = marked(ctx, p.mark)
	}

	return p.runnable.Start(ctx) //nolint:wrapcheck // it is the runnable's
}

// wait reports whether the channel is closed before the context ends.
func wait(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-c:
		return ctx.Err() == nil
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable. The leader election of the manager is the Lease of the shard.
func (p *placed) NeedLeaderElection() bool { return p.election == nil && !everywhere(p.runnable) }

// Warmup fills the caches of a controller before it starts, if it was built with EnableWarmup.
func (p *placed) Warmup(ctx context.Context) error {
	if w, ok := p.runnable.(interface {
		Warmup(ctx context.Context) error
	}); ok {
		return w.Warmup(ctx)
	}

	return nil
}
