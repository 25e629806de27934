package takeover

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
)

const (
	// silentHoldOff is how long a shard is trusted to wait that does not say how long it waits.
	silentHoldOff = time.Second
	// longestHoldOff is the most that is believed.
	longestHoldOff = time.Minute
	// margin is what is left of a hold-off that a shard says for what was written to reach its caches, and for a write that
	// was given up and is carried out all the same.
	margin = 500 * time.Millisecond
)

// Until when a shard that is not held by its process surely does not work follows from these, where "now" is when the live
// read began:
//
//	U1  Whoever takes a free Lease, or makes one, does so after the read, and works a hold-off later:
//	    until now + hold-off.
//	U2  A shard that finds its Lease held by the lease monitor takes it only when it has seen it unchanged for its
//	    leaseDurationSeconds, 2D. It cannot have seen it before it was written. So if the Lease was surely written after a
//	    moment, then until that moment + 2D + hold-off. A shard that says no hold-off may be made with a library that waits
//	    for the duration of its own instead: D.
//	U3  A Lease was surely written after the beginning of a live read that had ended before the next one began, if they
//	    differ. What a cache shows says nothing: it may be as late as it likes. No time in a Lease is used, for it is by
//	    another clock. So what U2 allows begins with the first renewal by the lease monitor that is seen.
//	U4  Of a hold-off that a shard says half a second is kept back, and a minute is believed.
//	U5  A shard that has had no Lease for the time that a living process would have needed to make it anew is not taken to come back
//	    just now: until now + 30 s. There is no Lease that the lease monitor could keep from it, and where admission is slower than a
//	    hold-off, its objects would never move otherwise. This is a bet, the only one here: a process that comes back under an old
//	    name after so long, within those seconds, and lists its objects before such a write is done, works on the object of that
//	    write until its watch has told it.
//
// This takes for granted that clocks run at the same speed, that a Lease which the lease monitor holds is deleted by it
// alone (which is later), and that whoever waits less than the Lease's annotation says corrects the annotation.

// longGone is how long U5 allows: no write takes longer than the longest time that a webhook may have.
const longGone = 30 * time.Second

// past is what live reads have shown of one Lease.
type past struct {
	read   bool
	uid    types.UID
	record lease.Record
	span
	// after is a moment before which the Lease was surely not as it is; zero if none is known.
	after time.Time
}

// span is when a read began and ended.
type span struct{ began, ended time.Time }

// see notes the Lease as a live read has shown it, nil if there is none.
func (p *past) see(l *coordinationv1.Lease, at span) {
	next := past{read: true, span: at}
	if l != nil {
		next.uid, next.record = l.UID, lease.RecordOf(l)
	}

	switch {
	case p.read && p.uid == next.uid && p.record.Equal(next.record):
		next.after = p.after
	case p.read && !at.began.Before(p.ended):
		next.after = p.began
	}

	*p = next
}

// until returns until when the shard surely does not work, given its Leases of which it holds none.
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
	taken := s.past.record.Holder == v1alpha1.LeaseControllerIdentity

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

// waits returns how long the shard leaves its Lease alone once it has seen that the lease monitor has written it.
func (s *shard) waits(says bool) time.Duration {
	taken := s.past.record.Duration
	if says {
		return taken
	}

	own := s.own
	if own == 0 {
		own = lease.DefaultDuration
	}

	return min(taken/2, own)
}

// holdOff returns what is believed of the hold-off that is said on a Lease.
func holdOff(l *coordinationv1.Lease) (wait time.Duration, says bool) {
	said, err := time.ParseDuration(l.Annotations[v1alpha1.AnnotationHoldOff])
	if err != nil || said < 0 {
		return 0, false
	}

	return max(min(said, longestHoldOff)-margin, 0), true
}
