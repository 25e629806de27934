package lease

import (
	"time"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// State is the state of a shard according to its Lease, as in the state label.
type State string

// The states, as on the wire. The package documentation defines their conditions.
const (
	Ready     State = "ready"
	Expired   State = "expired"
	Uncertain State = "uncertain"
	Dead      State = "dead"
	Orphaned  State = "orphaned"
)

// Available reports whether a shard in this state may own objects. It is true for exactly the states in which the shard
// holds its Lease.
func (s State) Available() bool { return s == Ready || s == Expired || s == Uncertain }

// Action is what to do with a Lease. The zero value is None.
type Action string

// The actions. Acquire occurs with Uncertain and Dead, Renew with Dead, Delete with Orphaned, and None with all states.
const (
	// None does nothing.
	None Action = ""
	// Acquire takes the Lease: update it to the result of [Acquired], if it is unchanged.
	Acquire Action = "acquire"
	// Renew keeps a Lease that was taken: update it to the result of [Renewed], if it is unchanged.
	Renew Action = "renew"
	// Delete deletes the Lease, if it is unchanged.
	Delete Action = "delete"
)

const (
	// ReleasedFor is how long a Lease that its shard has released stays untouched before it is taken, while objects of the
	// shard still have to move. A shard that restarts quickly takes it back before.
	ReleasedFor = 3 * time.Second

	// keptFor limits, in units of D, how long a Lease is kept from its shard after it was taken, so that a shard comes
	// back even if its objects cannot move.
	keptFor = 20
)

// Snapshot is the last seen state of a shard's Lease.
type Snapshot struct {
	// Shard is the name of the Lease, and therefore of the shard.
	Shard string
	Record
	// Ended is true if the kubelet has reported that the process which wrote this record cannot run any more; see
	// [PodUID].
	Ended bool
	// Deleting is true if the Lease is being deleted and only finalizers keep it. It is no sign of death: the holder may
	// renew.
	Deleting bool
	// Moving is true if objects of the shard still have to move to others, without asking the shard.
	Moving bool
	// Together is true if most shards of the ring fell silent at the same time; see [Together].
	Together bool
	// Kept is how long ago the holder was first seen to have acquired the Lease.
	Kept time.Duration
}

// Decision is the decision for a snapshot and its age.
type Decision struct {
	// State is the shard's state now.
	State State
	// Action is what to do now.
	Action Action
	// CheckAfter is the time until the decision changes if the Lease does not change. It is zero if there is nothing to
	// wait for: there is an action, or the Lease is being deleted and only its end is left.
	CheckAfter time.Duration
}

// Next decides about a shard. The age is the time that the caller has measured since the record last changed, as
// [Observer] does. A negative age counts as zero.
func Next(s Snapshot, age time.Duration) Decision {
	age = max(age, 0)
	if s.HeldBy(s.Shard) {
		return nextHeld(s, age)
	}

	return nextFree(s, age)
}

func nextHeld(s Snapshot, age time.Duration) Decision {
	d := s.Duration

	silent := 2 * d
	if s.Together {
		silent += d
	}

	switch {
	case s.Ended:
		return Decision{State: Uncertain, Action: Acquire}
	case age < d:
		return Decision{State: Ready, CheckAfter: d - age}
	case age <= 2*d:
		return Decision{State: Expired, CheckAfter: 2*d - age + 1} // the first nanosecond after 2D
	case age <= silent:
		return Decision{State: Uncertain, CheckAfter: silent - age + 1}
	default:
		return Decision{State: Uncertain, Action: Acquire}
	}
}

func nextFree(s Snapshot, age time.Duration) Decision {
	wait := s.Duration + OrphanedAfter - age
	switch {
	case wait <= 0 && s.Deleting:
		return Decision{State: Orphaned}
	case wait <= 0:
		return Decision{State: Orphaned, Action: Delete}
	}

	after, action := s.keep()
	switch {
	case action == None:
		return Decision{State: Dead, CheckAfter: wait}
	case age < after:
		return Decision{State: Dead, CheckAfter: min(after-age, wait)}
	default:
		return Decision{State: Dead, Action: action}
	}
}

// keep returns the action that keeps a Lease from its shard while objects move, and the age at which it is due.
func (s Snapshot) keep() (after time.Duration, action Action) {
	d := s.Duration / 2 // of a Lease that was taken
	switch {
	case !s.Moving:
	case s.Holder == "":
		return ReleasedFor, Acquire
	case s.Holder == contract.LeaseControllerIdentity && s.Kept < keptFor*d:
		return d / 2, Renew
	}

	return 0, None
}

// Abandoned reports whether the Lease of a ring that does not exist is to be deleted. The age is that of [Next]. This
// is as late as if the ring existed: a Lease that its shard holds is first due to be taken after 2D, for 2D.
func Abandoned(s Snapshot, age time.Duration) bool {
	due := s.Duration + OrphanedAfter
	if s.HeldBy(s.Shard) {
		due += 3 * s.Duration
	}

	return age >= due && !s.Deleting
}

// Observed is a shard's Lease with its measured age.
type Observed struct {
	Snapshot
	Age time.Duration
}

// Together reports whether more than half of a ring's shards, and at least two, seem to die at the same time, given all
// Leases of the ring: they have been silent for D, or their Leases were taken less than D ago. Another cause is then as
// likely, and their Leases are taken D later than that of a single shard. Together also returns the numbers.
func Together(shards []Observed) (silent, of int, together bool) {
	for i := range shards {
		s := &shards[i]
		switch {
		case s.HeldBy(s.Shard):
			of++

			if s.Age >= s.Duration {
				silent++
			}
		case s.Holder == contract.LeaseControllerIdentity && s.Kept < s.Duration/2:
			of++
			silent++
		}
	}

	return silent, of, silent >= 2 && 2*silent > of
}
