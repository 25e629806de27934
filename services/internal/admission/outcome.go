package admission

// Outcome says what was decided about an object and why. Its values are those of the metric's label.
type Outcome string

// Outcomes. In all but [Assigned] and [Restored] the object is admitted as it was written.
const (
	// Assigned objects got the shard that the ring gives them.
	Assigned Outcome = "assigned"
	// Restored objects got back the shard label that the write had dropped.
	Restored Outcome = "restored"
	// Labelled objects have a shard already.
	Labelled Outcome = "labelled"
	// ForeignOwner is a controlled object that follows no main object of the ring: not the ring's business.
	ForeignOwner Outcome = "foreign_owner"
	// OwnerUnread is a controlled object that follows another one, which could not be read, so that its main object is not known.
	OwnerUnread Outcome = "owner_unread"
	// NameUnknown is a main object whose name the API server has yet to generate.
	NameUnknown Outcome = "name_unknown"
	// NoShard means that the ring has no available shard.
	NoShard Outcome = "no_shard"
	// Moving is a controlled object whose owner may be on its way between shards.
	Moving Outcome = "moving"
	// Handover is a main object that was given up, and that others follow: they go to its next shard before it does, which the rebalancer
	// sees to.
	Handover Outcome = "handover"
	// UnknownRing means that there is no such ring.
	UnknownRing Outcome = "unknown_ring"
	// RingDeleting means that the ring is being deleted.
	RingDeleting Outcome = "ring_deleting"
	// UnknownResource means that the resource is not, or not yet, one of the ring's.
	UnknownResource Outcome = "unknown_resource"
	// Unrecorded means that the rebalancer has not yet recorded in the ring's status that objects of the resource may carry labels.
	Unrecorded Outcome = "unrecorded"
	// NotAsked is a request that the registration does not ask for: another operation, or a subresource.
	NotAsked Outcome = "not_asked"
	// Undecodable means that the object's metadata could not be read.
	Undecodable Outcome = "undecodable"
	// Starting means that the rings have not been read yet.
	Starting Outcome = "starting"
	// Failed means that the decision failed by a fault in the program.
	Failed Outcome = "failed"
)
