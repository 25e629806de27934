package model

// MaxShards is the largest number of shards that a [Scope] can have.
const MaxShards = 3

// Scope says what is explored: how many shards, which of them suffer, and which faults there are. Every fault that a scope
// has may happen any number of times, at any moment. The zero value has no shards and is not valid.
type Scope struct {
	// Name is printed with results.
	Name string
	// Shards is the number of shards, at most [MaxShards]. The object belongs to the first one that is available.
	Shards int
	// Faulty is the number of shards, from the first, whose processes start, stop and crash. The others run all the time and
	// always hold their Leases.
	Faulty int
	// Time lets time pass: Leases age, deadlines end, the lease monitor measures and may forget what it has measured.
	// Without it, a Lease is taken only from a shard whose process has ended; that this is so is what a scope with time shows.
	Time bool
	// Freeze lets processes stand still, also beyond their deadlines, and go on later. It needs Time.
	Freeze bool
	// DeleteLease lets somebody delete Leases by hand, but, other than in the exposures, none that the rebalancer has not seen
	// to be held. It needs Time.
	DeleteLease bool
	// Child adds an object that the main object controls.
	Child bool
	// DropLabel lets users write objects without their labels. An assigner is reached then, whatever it believes of the Leases,
	// and the object is not draining: what happens otherwise is among the exposures.
	DropLabel bool
	// DeleteRing lets the ring be deleted.
	DeleteRing bool
	// Forgiven are properties that are not checked.
	Forgiven []Property
	// Exposed is something that the protocol does not withstand.
	Exposed Exposure
	// Mutation breaks the protocol in one place, to see that this is noticed.
	Mutation Mutation
}

// Exposure is something that the protocol does not withstand, although nothing of it is left out. The zero value is none.
type Exposure string

// The exposures. Each is a limit of what is promised.
const (
	// SlowTake lets a write that takes an object from a shard be carried out after the shard has taken its Lease again, has held
	// off, and has begun to work. The rebalancer gives such a write up earlier than that, and the object must not have changed
	// since; what remains is a request that was sent, is given up, and is carried out by the API server all the same, over a
	// quarter of a second later still.
	SlowTake Exposure = "a write that takes an object, and was given up, is carried out after the shard's hold-off"
	// DropUnseen lets a user's write drop labels while no assigner is reached, be it down or the ring being deleted.
	DropUnseen Exposure = "a write drops the labels while no assigner is reached"
	// DropInDrain lets a user's write drop labels while the object is being drained: it looks like an acknowledgement.
	DropInDrain Exposure = "a write drops the labels during a drain"
	// LateChild lets a write that a rebalancer has sent be carried out after its successor, which knows nothing of it, has begun
	// to decide about the owner or the child. Within one rebalancer the two take turns.
	LateChild Exposure = "a write of an earlier rebalancer is carried out while its successor moves the owner"
	// DeleteUnseen and DeleteTwice are decided to stay: an object with the label of a shard that the rebalancer does not know,
	// restored from a backup for example, is corrected at once. They would be closed by a wait of 2D for every such label.
	//
	// DeleteUnseen lets somebody delete a Lease of which the rebalancer has not seen that the shard holds it.
	DeleteUnseen Exposure = "a Lease is deleted that the rebalancer has not seen to be held"
	// DeleteTwice lets somebody delete a Lease again before the rebalancer has seen that it was made anew.
	DeleteTwice Exposure = "a Lease is deleted twice before the rebalancer has seen it again"
)

// Mutation is one guard of the protocol that is left out. The zero value is none.
type Mutation string

// The mutations.
const (
	// NoLiveRead takes objects from a shard that a cache says is dead.
	NoLiveRead Mutation = "no live read before taking"
	// NoDrain gives an object to another shard at once, where it should be drained.
	NoDrain Mutation = "force without drain"
	// ChildFirst moves a child to where the ring wants its owner, not to where the owner is.
	ChildFirst Mutation = "child moves before owner"
	// NoOldLabel lets the assigner see only what a write makes of an object, not what it was.
	NoOldLabel Mutation = "assigner ignores the old label"
	// ForeignClock measures the age of Leases by comparing another machine's clock with the monitor's own.
	ForeignClock Mutation = "monitor measures age by another clock"
	// AckInside acknowledges a drain while a worker is inside the object.
	AckInside Mutation = "acknowledge with a worker inside"
	// ReleaseInside gives the Lease back while a worker runs.
	ReleaseInside Mutation = "release while a reconcile runs"
	// NoPrecondition lets the rebalancer write over an object that has changed since it was read.
	NoPrecondition Mutation = "write without resource version"
	// NoHoldOff lets a shard work as soon as it has the Lease.
	NoHoldOff Mutation = "no hold-off"
	// ResumeAtOnce lets a process work at once if it finds the Lease held under its own name.
	ResumeAtOnce Mutation = "no hold-off if the Lease is held"
	// NoCatchUp lets a shard work from a cache that is older than its term.
	NoCatchUp Mutation = "no look at the present before work"
	// NoDeadline lets a shard work on however long ago it has renewed its Lease.
	NoDeadline Mutation = "no deadline for renewals"
	// LateRecreation lets a shard that was frozen past its deadline make its Lease anew and go on.
	LateRecreation Mutation = "Lease made anew after the deadline"
	// NoPatience takes the objects of a shard whose Lease is absent at once.
	NoPatience Mutation = "no wait after a Lease was deleted"
	// ChildAnywhere lets a shard work on its children wherever their owners are. Together with children that are
	// assigned while their owners move, it breaks the rule that two shards never work on an owner and its child.
	ChildAnywhere Mutation = "shard works on a child without its owner"
	// NoLiveOwner lets a shard work on a child in deletion if it does not see the owner, without asking the API server whether
	// the owner is no more.
	NoLiveOwner Mutation = "no live look for the owner of a child in deletion"
	// NoTurns lets the rebalancer decide about an object while a write to the object's child is on its way, and the other way
	// round.
	NoTurns Mutation = "owner and child are moved at once"
	// NoTakeover never takes the Lease of a failed shard.
	NoTakeover Mutation = "monitor never takes a Lease"
	// RingsDiffer lets the rebalancer follow another ring than the assigner.
	RingsDiffer Mutation = "rebalancer and assigner disagree on owners"
	// NoAcknowledgement lets shards ignore drains.
	NoAcknowledgement Mutation = "drains are not acknowledged"
	// ReleaseAtOnce takes the labels off the objects of a deleted ring without draining them.
	ReleaseAtOnce Mutation = "ring leaves without drain"
	// EarlyFinish lets a deleted ring go while an assigner still believes in it.
	EarlyFinish Mutation = "ring is gone before all assigners know"
)
