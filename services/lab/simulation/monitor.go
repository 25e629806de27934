package simulation

import (
	"context"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
)

// monitor is the loop around lease.Next: it takes the Leases of shards that have failed, and deletes the Leases of
// shards that are gone.
type monitor struct {
	w      *Cluster
	client apiserver.LeaseClient
	feed   *courier
	wake   chan struct{}

	mu    sync.Mutex
	known map[types.NamespacedName]*coordinationv1.Lease
	ages  *lease.Observer
	// doubts are the Leases of shards that fell silent at the same time.
	doubts map[types.NamespacedName]lease.Record
	// lost are the shards from which objects have to be taken, according to the status of the ring.
	lost []string
	// away is the end of a period without a monitor. The ages restart then.
	away time.Time
}

const (
	// beat is how often the monitor checks whether it can see the API server.
	beat = 2 * time.Second
	// again is the pause after a failure.
	again = 5 * time.Second
)

func newMonitor(w *Cluster) *monitor {
	m := &monitor{
		w: w, client: w.server.Client("monitor/0").Leases(), feed: newCourier(), wake: make(chan struct{}, 1),
		known: map[types.NamespacedName]*coordinationv1.Lease{}, ages: &lease.Observer{Sight: &lease.Sight{}},
		doubts: map[types.NamespacedName]lease.Record{},
	}

	w.server.FollowLeases("monitor/0", func(id types.NamespacedName, l *coordinationv1.Lease, lag time.Duration) {
		m.feed.put(lag, func() { m.learn(id, l) })
	})

	w.followRing("monitor/0", m.feed, func(r *v1alpha1.ClusterRing) {
		m.mu.Lock()
		defer m.mu.Unlock()

		if m.lost = nil; r != nil && r.Status.Assignment != nil {
			m.lost = r.Status.Assignment.LostShards
		}

		m.poke()
	})

	return m
}

func (m *monitor) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
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

	m.poke()
}

// restart makes another replica continue after a time. It knows no ages.
func (m *monitor) restart(after time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.away = m.w.clock.Now().Add(after)
	m.ages, m.doubts = &lease.Observer{Sight: &lease.Sight{}}, map[types.NamespacedName]lease.Record{}
}

func (m *monitor) run(ctx context.Context) {
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

// look checks whether the API server answers. Time in which it does not answer proves nothing about shards.
func (m *monitor) look(ctx context.Context) {
	for ctx.Err() == nil {
		m.mu.Lock()
		sight := m.ages.Sight
		m.mu.Unlock()

		limited, cancel := context.WithTimeout(ctx, beat)
		began := m.w.clock.Now()

		err := m.client.Get(limited, types.NamespacedName{Namespace: "system", Name: "leasemonitor"}, &coordinationv1.Lease{})
		if apierrors.IsNotFound(err) {
			sight.Saw(began, m.w.clock.Now())
		}

		cancel()
		pause(ctx, m.w.clock, beat, nil)
	}
}

// judge does what has to be done about one Lease, and returns when to check it again.
func (m *monitor) judge(ctx context.Context, id types.NamespacedName) time.Duration {
	m.mu.Lock()
	l, ok := m.known[id]
	m.mu.Unlock()

	if !ok {
		return time.Minute
	}

	switch d, _ := m.decide(id, l, false); {
	case d.Action != lease.None:
	case d.CheckAfter == 0: // it is being deleted, and only its end will follow
		return time.Minute
	default:
		return d.CheckAfter
	}

	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()

	live := &coordinationv1.Lease{}

	err := m.client.Get(ctx, id, live)
	if err == nil {
		d, taken := m.decide(id, live, true)

		switch d.Action {
		case lease.Acquire:
			if err = m.client.Update(ctx, lease.Acquired(live, taken, m.w.clock.Now())); err == nil {
				m.w.taken(id, lease.RecordOf(live))
			}
		case lease.Renew:
			err = m.client.Update(ctx, lease.Renewed(live, m.w.clock.Now()))
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

// decide decides about a Lease. It also returns for how long the Lease would be taken. live reports whether the Lease
// was just read from the API server; only then, it matters whether most shards are silent.
func (m *monitor) decide(id types.NamespacedName, l *coordinationv1.Lease, live bool) (d lease.Decision,
	taken time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()

	now := m.w.clock.Now()
	record := lease.RecordOf(l)
	seen := m.ages.Look(id, record, now)
	s := lease.Snapshot{Shard: l.Name, Record: record, Kept: seen.Kept, Moving: slices.Contains(m.lost, l.Name),
		Deleting: l.DeletionTimestamp != nil}

	d = lease.Next(s, seen.Age)
	if live && d.State == lease.Uncertain {
		s.Together = m.together(id, record, now)
		d = lease.Next(s, seen.Age)
	}

	return d, lease.TakenFor(s, seen.Own)
}

// together reports whether most shards are silent, including this one. The lock is held.
func (m *monitor) together(id types.NamespacedName, record lease.Record, now time.Time) bool {
	if doubt, ok := m.doubts[id]; ok && doubt.Equal(record) {
		return true
	}

	delete(m.doubts, id)

	var shards []lease.Observed

	for other, l := range m.known {
		seen := m.ages.Look(other, lease.RecordOf(l), now)
		shards = append(shards, lease.Observed{
			Snapshot: lease.Snapshot{Shard: l.Name, Record: lease.RecordOf(l), Kept: seen.Kept}, Age: seen.Age,
		})
	}

	_, _, together := lease.Together(shards)
	if together {
		m.doubts[id] = record
	}

	return together
}
