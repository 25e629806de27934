package simulation

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/model/simulation/apiserver"
)

// monitor is the loop around lease.Next: it takes the Leases of shards that have failed, and deletes those of shards that have gone.
type monitor struct {
	w      *World
	client apiserver.LeaseClient
	feed   *feed
	wake   chan struct{}

	mu    sync.Mutex
	known map[types.NamespacedName]*coordinationv1.Lease
	ages  *lease.Observer
	// away is until when nobody monitors; the ages begin anew then.
	away time.Time
	// seen is when the API server answered last.
	seen time.Time
}

const (
	// probe is how often the monitor looks whether it still sees anything.
	probe = 5 * time.Second
	// again is when it tries again what has failed.
	again = 5 * time.Second
)

func newMonitor(w *World) *monitor {
	m := &monitor{
		w: w, client: w.server.Client("monitor/0").Leases(), feed: newFeed(), wake: make(chan struct{}, 1),
		known: map[types.NamespacedName]*coordinationv1.Lease{}, ages: &lease.Observer{},
	}

	w.server.FollowLeases("monitor/0", func(id types.NamespacedName, l *coordinationv1.Lease, lag time.Duration) {
		m.feed.put(lag, func() { m.learn(id, l) })
	})

	return m
}

func (m *monitor) learn(id types.NamespacedName, l *coordinationv1.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if l == nil {
		delete(m.known, id)
		m.ages.Forget(id)
	} else {
		m.known[id] = l
		m.ages.Observe(id, lease.RecordOf(l), m.w.clock.Now())
	}

	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// restart has another replica, that knows no ages, carry on after a time.
func (m *monitor) restart(after time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.away = m.w.clock.Now().Add(after)
	m.ages = &lease.Observer{}
}

func (m *monitor) run(ctx context.Context) {
	m.w.group.Go(func() { m.feed.run(ctx) })
	m.w.group.Go(func() { m.look(ctx) })

	for ctx.Err() == nil {
		m.mu.Lock()
		wait := m.away.Sub(m.w.clock.Now())
		all := sortedKeys(m.known)
		m.mu.Unlock()

		if wait <= 0 {
			wait = time.Minute
			for _, id := range all {
				wait = min(wait, m.judge(ctx, id))
			}
		}

		pause(ctx, m.w.clock, wait, m.wake)
	}
}

// look finds out whether the API server answers. Time in which it does not says nothing about shards.
func (m *monitor) look(ctx context.Context) {
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, probe)
		err := m.client.List(limited, &coordinationv1.LeaseList{})

		cancel()
		m.mu.Lock()

		now := m.w.clock.Now()
		if err == nil {
			if !m.seen.IsZero() && now.Sub(m.seen) > 2*probe {
				m.ages = &lease.Observer{}
			}

			m.seen = now
		}
		m.mu.Unlock()

		pause(ctx, m.w.clock, probe, nil)
	}
}

// judge does what is to be done about one Lease, and returns when to look again.
func (m *monitor) judge(ctx context.Context, id types.NamespacedName) time.Duration {
	m.mu.Lock()
	l, ok := m.known[id]
	ages := m.ages
	m.mu.Unlock()

	if !ok {
		return time.Minute
	}

	decide := func(l *coordinationv1.Lease) lease.Decision {
		record := lease.RecordOf(l)
		return lease.Next(lease.Snapshot{Shard: l.Name, Record: record}, ages.Observe(id, record, m.w.clock.Now()))
	}

	d := decide(l)
	if d.Action == lease.None {
		return d.CheckAfter
	}

	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()

	live := &coordinationv1.Lease{}

	err := m.client.Get(ctx, id, live)
	if err == nil {
		switch d = decide(live); d.Action {
		case lease.Acquire:
			err = m.client.Update(ctx, lease.Acquired(live, m.w.clock.Now()))
		case lease.Delete:
			err = m.client.Delete(ctx, live)
		case lease.None:
		}
	}

	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return again
	}

	return time.Second
}
