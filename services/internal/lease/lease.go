// Package lease decides, from a shard's Lease and the time since it changed, whether the shard lives, what it may own,
// and what is to be done about it.
//
// A shard holds the Lease of its own name and renews it in the manner of leader election. D is the Lease's duration,
// age the time that this process has measured since it saw the Lease change last:
//
//	state      holder         age            available  action
//	ready      the shard      below D        yes        none
//	expired    the shard      D to 2D        yes        none
//	uncertain  the shard      over 2D        yes        take the Lease, so that it is dead
//	dead       anybody else   below D + 1m   no         none
//	orphaned   anybody else   D + 1m or more no         delete the Lease
//
// Two things modify that. Where most shards of a ring fall silent at once, their Leases are taken after 3D. And while objects
// of a dead shard are still to be moved, its Lease is kept from it: a taken one is renewed every D/2 until 20×D have passed,
// a released one is taken.
//
// # Invariants
//
//  1. Whether a shard is available depends on the holder alone. Whoever reads the same Leases knows the same available
//     shards, without a clock.
//
//  2. No clock of another machine has a say. The times in a Lease are compared for being different, never with a time
//     of ours: a shard whose clock is years off lives while its Lease keeps changing.
//
//  3. A shard is given up by taking its Lease, and by nothing else. A shard that lost it cannot renew it, and
//     one that renews it first wins against the taker, since the API server decides between two updates of one version.
//
//  4. Only time counts in which the observer could have seen a renewal, and shards could have written it: after an outage
//     of the API server, and after a time in which the observer was frozen, every age begins at zero. See [Sight].
//
//  5. A Lease in deletion is judged as any other. Only its deletion is not repeated.
//
// The age is lost when the process restarts, and starts at zero when it first sees a Lease. So a restart can make a
// shard look younger, and a failed one live up to 2D longer, but never take a Lease from a shard that renews it.
//
// The package reads Leases that it is given and returns decisions; it calls nobody and knows no clock.
package lease

import (
	"math"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

const (
	// DefaultDuration is the duration of a Lease that states none, or none above zero.
	DefaultDuration = 15 * time.Second

	// MaxDuration is the longest duration that counts. A Lease that states more is treated as if it stated this, so
	// that a mistaken value delays the loss of a shard by two days, not by a lifetime. It is no less, because the contract
	// has a shard live for 2D, whatever D is; those who would wait for such a Lease bound their wait themselves.
	MaxDuration = 24 * time.Hour

	// OrphanedAfter is how long a Lease that its shard does not hold must have been expired until it is deleted.
	OrphanedAfter = time.Minute
)

// Record is what a renewal of a Lease changes, and what decisions are made from. Labels and other metadata are no part
// of it: a write that only labels a Lease is no sign of life. The zero value is the record of a Lease that nobody
// holds.
type Record struct {
	// Holder is the holder's identity, empty if nobody holds the Lease.
	Holder string
	// Duration is the Lease's duration, at most MaxDuration. Zero counts as DefaultDuration.
	Duration time.Duration
	// AcquireTime and RenewTime are what the holder's clock said. They serve to notice a renewal, nothing else.
	AcquireTime, RenewTime time.Time
	// Transitions counts the changes of holder.
	Transitions int32
}

// RecordOf returns the record of a Lease: absent fields are zero, but for the duration, which is between 1 s and
// MaxDuration, and DefaultDuration if it is absent or not positive.
func RecordOf(l *coordinationv1.Lease) Record {
	return Record{
		Holder:      ptr.Deref(l.Spec.HolderIdentity, ""),
		Duration:    duration(l.Spec.LeaseDurationSeconds),
		AcquireTime: timeOf(l.Spec.AcquireTime),
		RenewTime:   timeOf(l.Spec.RenewTime),
		Transitions: ptr.Deref(l.Spec.LeaseTransitions, 0),
	}
}

func duration(seconds *int32) time.Duration {
	if ptr.Deref(seconds, 0) <= 0 {
		return DefaultDuration
	}
	return min(time.Duration(*seconds)*time.Second, MaxDuration)
}

func timeOf(t *metav1.MicroTime) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

// duration is the duration that counts: DefaultDuration where there is none.
func (r Record) duration() time.Duration {
	if r.Duration <= 0 {
		return DefaultDuration
	}
	return r.Duration
}

// Equal reports whether nothing was renewed between the two records. Times are equal if they are the same instant, in
// whatever zone.
func (r Record) Equal(other Record) bool {
	return r.Holder == other.Holder && r.Duration == other.Duration && r.Transitions == other.Transitions &&
		r.AcquireTime.Equal(other.AcquireTime) && r.RenewTime.Equal(other.RenewTime)
}

// HeldBy reports whether the shard of the given name holds the Lease, which is all that its availability depends on. The
// identity that Leases are taken with is no shard's, not even if a Lease has that name.
func (r Record) HeldBy(shard string) bool {
	return r.Holder != "" && r.Holder == shard && r.Holder != v1alpha1.LeaseControllerIdentity
}

// Acquired returns the Lease as it is to be updated to take it from its shard: held by the lease controller for twice the
// duration d, acquired and renewed now, one transition more. A number of transitions that cannot grow begins anew, for the
// shard has to count on when it comes back. The argument is left as it is. The result keeps its resourceVersion, so that
// the update fails if the shard has renewed in the meantime. The time now is for readers; no decision uses it.
func Acquired(l *coordinationv1.Lease, d time.Duration, now time.Time) *coordinationv1.Lease {
	taken := l.DeepCopy()
	at := metav1.NewMicroTime(now)
	transitions := RecordOf(l).Transitions
	if transitions == math.MaxInt32 {
		transitions = -1
	}
	taken.Spec.HolderIdentity = new(v1alpha1.LeaseControllerIdentity)
	taken.Spec.LeaseDurationSeconds = new(int32(2 * d / time.Second))
	taken.Spec.AcquireTime, taken.Spec.RenewTime = &at, at.DeepCopy()
	taken.Spec.LeaseTransitions = new(transitions + 1)
	return taken
}

// TakenFor returns the duration D to take a Lease with: that of the Lease if its shard holds it. One that was released
// does not tell (client-go writes 1 s); then it is the shard's own, as far as that is known, and at most DefaultDuration,
// for the shard waits for twice as long when it comes back.
func TakenFor(s Snapshot, own time.Duration) time.Duration {
	if s.HeldBy(s.Shard) {
		return s.duration()
	}
	if own <= 0 {
		return DefaultDuration
	}
	return min(own, DefaultDuration)
}

// Renewed returns the Lease, which was taken from its shard, as it is to be updated to keep it from the shard for longer.
// The argument is left as it is, and so are all fields but renewTime.
func Renewed(l *coordinationv1.Lease, now time.Time) *coordinationv1.Lease {
	kept := l.DeepCopy()
	at := metav1.NewMicroTime(now)
	kept.Spec.RenewTime = &at
	return kept
}
