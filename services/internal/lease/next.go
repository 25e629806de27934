package lease

import "time"

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

// Available says whether a shard in this state may own objects. It is true for exactly the states in which the shard
// holds its Lease.
func (s State) Available() bool { return s == Ready || s == Expired || s == Uncertain }

// Action is what is to be done with a Lease. The zero value is None.
type Action string

// The actions. Acquire goes with Uncertain, Delete with Orphaned, None with all other states.
const (
	// None leaves the Lease alone.
	None Action = ""
	// Acquire takes the Lease from its shard: update it to what [Acquired] returns, if it is unchanged.
	Acquire Action = "acquire"
	// Delete deletes the Lease, if it is unchanged.
	Delete Action = "delete"
)

// Snapshot is a shard's Lease as it was seen last.
type Snapshot struct {
	// Shard is the name of the Lease and so of the shard.
	Shard string
	Record
}

// Decision is what follows from a snapshot and its age.
type Decision struct {
	// State is the shard's state now.
	State State
	// Action is what is to be done now.
	Action Action
	// CheckAfter is the time until the state changes if the Lease does not. It is zero when there is nothing to wait
	// for, and then there is an action.
	CheckAfter time.Duration
}

// Next decides about a shard. The age is the time that the caller has measured since the record was last seen to
// change, as [Observer] does; a negative one counts as zero.
func Next(s Snapshot, age time.Duration) Decision {
	age = max(age, 0)
	d := s.Duration
	if d <= 0 {
		d = DefaultDuration
	}
	if !s.HeldBy(s.Shard) {
		if wait := d + OrphanedAfter - age; wait > 0 {
			return Decision{State: Dead, CheckAfter: wait}
		}
		return Decision{State: Orphaned, Action: Delete}
	}
	switch {
	case age < d:
		return Decision{State: Ready, CheckAfter: d - age}
	case age <= 2*d:
		return Decision{State: Expired, CheckAfter: 2*d - age + 1} // the first nanosecond after 2D
	default:
		return Decision{State: Uncertain, Action: Acquire}
	}
}
