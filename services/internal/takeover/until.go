package takeover

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/lease"
)

const (
	// silentHoldOff is how long a shard that does not announce a hold-off is trusted to wait.
	silentHoldOff = time.Second
	// longestHoldOff limits the hold-off that is trusted.
	longestHoldOff = time.Minute
	// margin is the part of an announced hold-off that is reserved for writes to reach the shard's caches, and for an
	// abandoned write that is executed nevertheless.
	margin = 500 * time.Millisecond
)

// The following rules determine until when a shard whose process does not hold the Lease certainly does not work. "now"
// is when the live read began:
//
//  U1  A process that takes a free Lease, or creates one, does so after the read, and works after the hold-off:
//      until now + hold-off.
//  U2  A shard that finds its Lease held by the lease monitor takes it only after it has seen it unchanged for its
//      leaseDurationSeconds, 2D. It cannot have seen the Lease before it was written. If the Lease was certainly
//      written after a moment: until that moment + 2D + hold-off. A shard that announces no hold-off may use a library
//      that waits for its own duration instead: D.
//  U3  If two live reads differ, and the first ended before the second began, the Lease was certainly written after the
//      beginning of the first read. A cache proves nothing, because it may be arbitrarily late. No time in a Lease is
//      used, because it comes from another clock. The time that U2 allows therefore starts with the first visible
//      renewal by the lease monitor.
//  U4  Half a second of an announced hold-off is reserved, and at most a minute of it is trusted.
//  U5  If a shard has had no Lease for the time that a live process would have needed to recreate it, the shard is
//      assumed not to come back at this moment: until now + 30 s. There is no Lease that the lease monitor could keep
//      from it, and where admission is slower than a hold-off, its objects would otherwise never move. This is a bet,
//      the only one here: a process that comes back under an old name after so long, within those seconds, and lists
//      its objects before such a write is done, works on the object of that write until its watch shows the write.
//
// These rules assume that clocks run at the same speed, that only the lease monitor deletes a Lease that it holds
// (which is later), and that a process that waits less than the Lease's annotation announces corrects the annotation.

// longGone is how long U5 allows: no write takes longer than the maximum timeout of a webhook.
const longGone = 30 * time.Second

// past contains the results of live reads of one Lease. The zero value is that of none.
type past struct {
	uid    types.UID
	record lease.Record
	span
	// after is a moment before which the Lease certainly did not have its current state; zero if none is known.
	after time.Time
}

// span is when a read began and ended.
type span struct{ began, ended time.Time }

// see records the Lease as shown by a live read; nil if it does not exist.
func (p *past) see(l *coordinationv1.Lease, at span) {
	next, read := past{span: at}, !p.began.IsZero()
	if l != nil {
		next.uid, next.record = l.UID, lease.RecordOf(l)
	}

	switch {
	case read && p.uid == next.uid && p.record.Equal(next.record):
		next.after = p.after
	case read && !at.began.Before(p.ended):
		next.after = p.began
	}

	*p = next
}

// until returns until when the shard certainly does not work. The shard holds none of the given Leases.
func (s *shard) until(leases []coordinationv1.Lease, at span) time.Time {
	if len(leases) != 1 {
		s.past = past{}

		wait := silentHoldOff

		for i := range leases {
			if said, ok := holdOff(&leases[i]); ok {
				wait = min(wait, said)
			}
		}

		if len(leases) == 0 {
			s.past.see(nil, at)
		}

		return at.began.Add(wait)
	}

	l := &leases[0]
	s.past.see(l, at)

	wait, says := holdOff(l)
	taken := s.past.record.Holder == contract.LeaseControllerIdentity

	switch {
	case says:
		s.holdOff = &wait
	case taken && s.holdOff != nil:
		wait, says = *s.holdOff, true
	default:
		wait = silentHoldOff
	}

	free := at.began.Add(wait)
	if !taken || s.past.after.IsZero() {
		return free
	}

	if kept := s.past.after.Add(s.waits(says) + wait); kept.After(free) {
		return kept
	}

	return free
}

// waits returns how long the shard does not touch its Lease after it has seen that the lease monitor has written it.
func (s *shard) waits(says bool) time.Duration {
	taken := s.past.record.Duration
	if says {
		return taken
	}

	return min(taken/2, cmp.Or(s.own, lease.DefaultDuration))
}

// holdOff returns the trusted part of the hold-off that a Lease announces.
func holdOff(l *coordinationv1.Lease) (wait time.Duration, says bool) {
	said, err := time.ParseDuration(l.Annotations[contract.AnnotationHoldOff])
	if err != nil || said < 0 {
		return 0, false
	}

	return max(min(said, longestHoldOff)-margin, 0), true
}

// MayTakeIn is like [Guard.MayTake] for objects in a namespace that the shard does not watch, although it works. Each
// call reads its Lease: if it is held, and says so, no process works on these objects, by another rule:
//
//	U6  A process that announces namespaces works nowhere else. Another one of the name announces others, or none, in
//	    the write by which it takes the Lease, which is after the read, and works after the hold-off: until now +
//	    hold-off. A renewal by a process that knows neither makes the announcement void.
func (g *Guard) MayTakeIn(ctx context.Context, name, namespace string) (Verdict, error) {
	began := g.clock.Now()

	leases, err := g.list(ctx, client.MatchingFields{"metadata.name": name})
	if err != nil {
		return Verdict{}, fmt.Errorf("read the Lease of shard %s: %w", name, err)
	}

	g.mu.Lock()
	leases = g.counted(leases)
	g.mu.Unlock()

	if len(leases) == 1 && lease.RecordOf(&leases[0]).HeldBy(name) {
		wait, says := holdOff(&leases[0])
		only := lease.Namespaces(&leases[0])

		if until := began.Add(wait); says && only != "" && !slices.Contains(strings.Split(only, ","), namespace) &&
			until.After(g.clock.Now()) {
			return Verdict{Allowed: true, Until: until}, nil
		}
	}

	return g.MayTake(ctx, name)
}
