package kit

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// phases learns from the manager how far it has come, by runnables that do nothing but are started and stopped in order.
type phases struct {
	// started closes when the caches are filled.
	started *latch
	// stopping closes when the manager begins to stop, whether it was told to or something failed.
	stopping *latch
	// workersGone closes when the last controller has returned.
	workersGone *latch
}

// addPhases registers the marks. The manager stops its groups one after the other and waits for each: runnables of every
// replica, then those of the leader (controllers), then caches, webhooks and HTTP servers.
func addPhases(mgr manager.Manager, workersGone *latch) (*phases, error) {
	p := &phases{started: newLatch(), stopping: newLatch(), workersGone: workersGone}
	if err := mgr.Add(everyReplica{p}); err != nil {
		return nil, err //nolint:wrapcheck // the caller says what it was doing
	}

	if err := mgr.Add(amongCaches{p, mgr.GetCache()}); err != nil {
		return nil, err //nolint:wrapcheck // the caller says what it was doing
	}

	return p, nil
}

// everyReplica belongs to the first group that is stopped, and is started once the caches have synced.
type everyReplica struct{ *phases }

func (everyReplica) NeedLeaderElection() bool { return false }

func (m everyReplica) Start(ctx context.Context) error {
	m.started.close()
	<-ctx.Done()
	m.stopping.close()

	return nil
}

// amongCaches belongs, by having a cache, to the group that is stopped after the controllers have returned.
type amongCaches struct {
	*phases
	cache cache.Cache
}

func (m amongCaches) GetCache() cache.Cache { return m.cache }

func (m amongCaches) Start(ctx context.Context) error {
	<-ctx.Done()
	m.workersGone.close()

	return nil
}

// latch is a channel that may be closed more than once, by anybody.
type latch struct {
	once sync.Once
	ch   chan struct{}
}

func newLatch() *latch { return &latch{ch: make(chan struct{})} }

func (l *latch) close() { l.once.Do(func() { close(l.ch) }) }

func (l *latch) closed() bool {
	select {
	case <-l.ch:
		return true
	default:
		return false
	}
}
