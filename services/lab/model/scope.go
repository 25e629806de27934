package model

// MaxShards is the maximum number of shards in a [Scope].
const MaxShards = 3

// Scope defines what is explored: how many shards, which of them fail, and which faults exist. Every fault of a scope
// may happen any number of times, at any moment. The zero value has no shards and is not valid.
type Scope struct {
	// Name is printed with results.
	Name string
	// Shards is the number of shards, at most [MaxShards]. The object belongs to the first one that is available.
	Shards int
	// Faulty is the number of shards, from the first, whose processes start, stop, and crash. The others run all the time
	// and always hold their Leases.
	Faulty int
	// Time lets time pass: Leases age, deadlines end, and the lease monitor measures and may lose its measurements.
	// Without it, a Lease is taken only from a shard whose process has ended; scopes with time show that this is
	// justified.
	Time bool
	// Freeze lets processes freeze, even beyond their deadlines, and continue later. It requires Time.
	Freeze bool
	// DeleteLease lets somebody delete Leases by hand, but, except in the exposures, only Leases that the rebalancer has
	// seen held. It requires Time.
	DeleteLease bool
	// Pods lets the lease monitor hear from the kubelet that the process which wrote a Lease has ended, at any time after
	// that. It requires Time: without it, every ended process is known.
	Pods bool
	// Slots lets another process take over the name of a shard whose Lease was not renewed for longer than its process may
	// work, without a hold-off. The earlier process may be frozen, and continue later. It requires Time. In the model, the
	// other process waits for 2D, because time passes in steps of D. That a process takes over the name of one that has
	// ended, at any time, is part of every scope.
	Slots bool
	// Announce lets shards say in their Leases that they were told to stop, and work until they stop.
	Announce bool
	// Child adds an object that the main object controls.
	Child bool
	// DropLabel lets users write objects without their labels. In this case, an assigner with any belief about the Leases
	// is reached, and the object is not draining: the other cases are among the exposures.
	DropLabel bool
	// DeleteRing lets the ring be deleted.
	DeleteRing bool
	// Forgiven are properties that are not checked.
	Forgiven []Property
	// Exposed is a situation that the protocol does not withstand.
	Exposed Exposure
	// Mutation breaks the protocol in one place, to verify that this is detected.
	Mutation Mutation
}

// Exposure is a situation that the complete protocol does not withstand. The zero value is none.
type Exposure string

// The exposures. Each is a limit of the guarantees.
const (
	// SlowTake lets a write that takes an object from a shard be executed after the shard has taken its Lease again, has
	// held off, and has begun to work. The rebalancer abandons such a write earlier, and the object must not have changed
	// since. What remains is a request that was sent and abandoned, and that the API server still executes more than a
	// quarter of a second later.
	SlowTake Exposure = "a write that takes an object, and was abandoned, is executed after the shard's hold-off"
	// DropUnseen lets a user's write drop labels while no assigner is reached, because it is down or the ring is being
	// deleted.
	DropUnseen Exposure = "a write drops the labels while no assigner is reached"
	// DropInDrain lets a user's write drop labels while the object is being drained: it looks like an acknowledgement.
	DropInDrain Exposure = "a write drops the labels during a drain"
	// LateChild lets a write of a rebalancer be executed after its successor, which does not know the write, has begun to
	// decide about the owner or the child. Within one rebalancer, the two take turns.
	LateChild Exposure = "a write of an earlier rebalancer is executed while its successor moves the owner"
	// DeleteUnseen and DeleteTwice are accepted deliberately: an object with the label of a shard that the rebalancer does
	// not know, for example restored from a backup, is corrected immediately. A wait of 2D for every such label would
	// close both.
	//
	// DeleteUnseen lets somebody delete a Lease that the rebalancer has not seen held by the shard.
	DeleteUnseen Exposure = "a Lease is deleted that the rebalancer has not seen to be held"
	// OldReturn counts also the writes of a shard that does not honor its Lease after the shard that worked on the object
	// meanwhile has released it to the name of the first: a rebalancer with an old view of the Leases asked for that. The
	// fence reads the label, and does not know which process was meant. Such a write fails if it depends on the version
	// that the process has read.
	OldReturn Exposure = "an object returns to a shard that was frozen, and still works on what it read before"
	// LateFence lets a process that has taken over a slot work before the API server knows that the slot is no longer that
	// of the Pod before it.
	LateFence Exposure = "the fence does not know yet which Pod holds a slot"
	// DeleteTwice lets somebody delete a Lease again before the rebalancer has seen that it was recreated.
	DeleteTwice Exposure = "a Lease is deleted twice before the rebalancer has seen it again"
)

// Mutation is one removed guard of the protocol. The zero value is none.
type Mutation string

// The mutations.
const (
	// NoLiveRead takes objects from a shard that is dead according to a cache.
	NoLiveRead Mutation = "no live read before taking"
	// NoDrain assigns an object to another shard immediately instead of draining it.
	NoDrain Mutation = "force without drain"
	// ChildFirst moves a child to its owner's desired shard, not to its owner's current shard.
	ChildFirst Mutation = "child moves before owner"
	// NoOldLabel shows the assigner only the object after a write, not the object before it.
	NoOldLabel Mutation = "assigner ignores the old label"
	// ForeignClock measures the age of Leases by comparing another machine's clock with the monitor's own.
	ForeignClock Mutation = "monitor measures age by another clock"
	// AckInside acknowledges a drain while a worker is inside the object.
	AckInside Mutation = "acknowledge with a worker inside"
	// ReleaseInside releases the Lease while a worker runs.
	ReleaseInside Mutation = "release while a reconcile runs"
	// NoPrecondition lets the rebalancer overwrite an object that has changed since it was read.
	NoPrecondition Mutation = "write without resource version"
	// NoHoldOff lets a shard work as soon as it has the Lease.
	NoHoldOff Mutation = "no hold-off"
	// ResumeAtOnce lets a process work immediately if it finds the Lease held under its own name.
	ResumeAtOnce Mutation = "no hold-off if the Lease is held"
	// NoCatchUp lets a shard work from a cache that is older than its term.
	NoCatchUp Mutation = "no look at the present before work"
	// NoDeadline lets a shard continue to work regardless of how long ago it renewed its Lease.
	NoDeadline Mutation = "no deadline for renewals"
	// LateRecreation lets a shard that was frozen beyond its deadline recreate its Lease and continue.
	LateRecreation Mutation = "Lease recreated after the deadline"
	// NoPatience takes the objects of a shard immediately if its Lease is absent.
	NoPatience Mutation = "no wait after a Lease was deleted"
	// ChildAnywhere lets a shard work on its children wherever their owners are. Together with children that are assigned
	// while their owners move, it breaks the rule that two shards never work on an owner and its child.
	ChildAnywhere Mutation = "shard works on a child without its owner"
	// NoLiveOwner lets a shard work on a child in deletion if it does not see the owner, without asking the API server
	// whether the owner still exists.
	NoLiveOwner Mutation = "no live look for the owner of a child in deletion"
	// NoTurns lets the rebalancer decide about an object while a write to its child is in flight, and vice versa.
	NoTurns Mutation = "owner and child are moved at once"
	// PodsByName believes what the kubelet has reported about an earlier Pod of the same name.
	PodsByName Mutation = "the kubelet's word about a predecessor counts"
	// AnyWord believes that a process has ended which may still run: its Pod was deleted by force, or its node does not
	// answer.
	AnyWord Mutation = "a Pod counts as ended that the kubelet has not reported"
	// EarlySilence takes over a slot whose process may still work.
	EarlySilence Mutation = "a slot is taken over before its process has stopped"
	// OldAnnouncement lets a Lease say that its shard stops after another process has taken over the name.
	OldAnnouncement Mutation = "a shard counts as stopping because its predecessor was"
	// NoTakeover never takes the Lease of a failed shard.
	NoTakeover Mutation = "monitor never takes a Lease"
	// RingsDiffer lets the rebalancer use another table of owners than the assigner.
	RingsDiffer Mutation = "rebalancer and assigner disagree on owners"
	// NoAcknowledgement lets shards ignore drains.
	NoAcknowledgement Mutation = "drains are not acknowledged"
	// ReleaseAtOnce removes the labels from the objects of a deleted ring without draining them.
	ReleaseAtOnce Mutation = "ring leaves without drain"
	// NoFence lets the API server accept every write of a shard.
	NoFence Mutation = "no fence"
	// EarlyFinish lets a deleted ring disappear while an assigner still uses it.
	EarlyFinish Mutation = "ring is gone before all assigners know"
)
