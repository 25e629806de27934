package lease

import (
	"time"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// State is what is known of a shard from its Lease, in the words of the state label.
type State string

// The states, as on the wire. The package doc has their conditions.
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

// Action is what is to be done with a Lease. The zero value is None.
type Action string

// The actions. Acquire goes with Uncertain and Dead, Renew with Dead, Delete with Orphaned, None with all states.
const (
	// None leaves the Lease alone.
	None Action = ""
	// Acquire takes the Lease: update it to what [Acquired] returns, if it is unchanged.
	Acquire Action = "acquire"
	// Renew keeps a Lease that was taken: update it to what [Renewed] returns, if it is unchanged.
	Renew Action = "renew"
	// Delete deletes the Lease, if it is unchanged.
	Delete Action = "delete"
)

const (
	// ReleasedFor is how long a Lease that its shard has released must have been left alone until it is taken, while objects
	// of the shard are still to be moved. A shard that restarts quickly takes it back before.
	ReleasedFor = 3 * time.Second

	// keptFor bounds, in units of D, how long a Lease is kept from its shard after it was taken, so that a shard comes back
	// although its objects cannot be moved.
	keptFor = 20
)

// Snapshot is a shard's Lease as it was seen last.
type Snapshot struct {
	// Shard is the name of the Lease and so of the shard.
	Shard string
	Record
	// Deleting says that the Lease is in deletion and only finalizers keep it. It is no sign of death: the holder may renew.
	Deleting bool
	// Moving says that objects of the shard are still to be moved to others, without asking it.
	Moving bool
	// Together says that most shards of the ring fell silent at once; see [Together].
	Together bool
	// Kept is how long ago the holder was seen to have acquired the Lease.
	Kept time.Duration
}

// Decision is what follows from a snapshot and its age.
type Decision struct {
	// State is the shard's state now.
	State State
	// Action is what is to be done now.
	Action Action
	// CheckAfter is the time until something else follows if the Lease does not change. It is zero when there is nothing to
	// wait for: then there is an action, or the Lease is in deletion and its end is all that is to come.
	CheckAfter time.Duration
}

// Next decides about a shard. The age is the time that the caller has measured since the record was last seen to
// change, as [Observer] does; a negative one counts as zero.
func Next(s Snapshot, age time.Duration) Decision {
	age = max(age, 0)
	if s.HeldBy(s.Shard) {
		return nextHeld(s, age)
	}
	return nextFree(s, age)
}

func nextHeld(s Snapshot, age time.Duration) Decision {
	d := s.duration()
	silent := 2 * d
	if s.Together {
		silent += d
	}
	switch {
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
	wait := s.duration() + OrphanedAfter - age
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

// keep says what keeps a Lease from its shard while objects are moved, and at what age.
func (s Snapshot) keep() (after time.Duration, action Action) {
	d := s.duration() / 2 // of a Lease that was taken
	switch {
	case !s.Moving:
	case s.Holder == "":
		return ReleasedFor, Acquire
	case s.Holder == v1alpha1.LeaseControllerIdentity && s.Kept < keptFor*d:
		return d / 2, Renew
	}
	return 0, None
}

// Observed is a shard's Lease with the age that was measured.
type Observed struct {
	Snapshot
	Age time.Duration
}

// Together reports whether more than half of a ring's shards, and at least two, seem to die at once, given all of its
// Leases: they have been silent for D, or their Leases were taken less than D ago. Then it is as likely that something
// else is wrong, and their Leases are taken a whole D later than that of a shard alone. It returns the numbers too.
func Together(shards []Observed) (silent, of int, together bool) {
	for i := range shards {
		s := &shards[i]
		switch {
		case s.HeldBy(s.Shard):
			of++
			if s.Age >= s.duration() {
				silent++
			}
		case s.Holder == v1alpha1.LeaseControllerIdentity && s.Kept < s.duration()/2:
			of++
			silent++
		}
	}
	return silent, of, silent >= 2 && 2*silent > of
}
