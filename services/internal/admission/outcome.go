package admission

// Outcome is the decision about an object and its reason. Its values are those of the metric's label.
type Outcome string

// Outcomes. In all cases except [Assigned], [ByShard], [Restored], and [Rekeyed], the object is admitted unchanged.
const (
	// Assigned objects got the shard that owns their key.
	Assigned Outcome = "assigned"
	// ByShard is a controlled object that got the shard that has created it.
	ByShard Outcome = "by_shard"
	// Restored objects got back the shard label that the write had dropped or changed.
	Restored Outcome = "restored"
	// Labelled objects already have a shard.
	Labelled Outcome = "labelled"
	// Rekeyed objects got the drain label, because the write changes the label that is their key.
	Rekeyed Outcome = "rekeyed"
	// ForeignOwner is a controlled object that follows no main object of the ring, or none that the ring selects, and is not part of the ring.
	ForeignOwner Outcome = "foreign_owner"
	// NotSelected is a main object that the object selector of the ring does not select.
	NotSelected Outcome = "not_selected"
	// OwnerUnread is a controlled object that follows another one that could not be read, so its main object is not known.
	OwnerUnread Outcome = "owner_unread"
	// NameUnknown is a main object whose name the API server has yet to generate.
	NameUnknown Outcome = "name_unknown"
	// NoShard means that the ring has no available shard.
	NoShard Outcome = "no_shard"
	// Moving is a controlled object whose owner may be moving between shards.
	Moving Outcome = "moving"
	// Handover is a main object that was released and that other objects follow: the rebalancer moves these to the next shard
	// first.
	Handover Outcome = "handover"
	// UnknownRing means that the ring does not exist.
	UnknownRing Outcome = "unknown_ring"
	// RingDeleting means that the ring is being deleted.
	RingDeleting Outcome = "ring_deleting"
	// RingRefused means that no service acts for the ring, because an older one has the same label, or its object selector is not valid.
	RingRefused Outcome = "ring_refused"
	// UnknownResource means that the resource is not part of the ring, or not yet.
	UnknownResource Outcome = "unknown_resource"
	// Unrecorded means that the rebalancer has not yet recorded in the ring's status that objects of the resource may carry
	// labels.
	Unrecorded Outcome = "unrecorded"
	// Probed is the dry run of a write by which the assigner finds out whether calls arrive. Its answer has the warning [Arrived].
	Probed Outcome = "probed"
	// NotAsked is a request that the registration does not cover: another operation, or a write of a subresource that takes the object from
	// no shard.
	NotAsked Outcome = "not_asked"
	// Undecodable means that the object's metadata could not be read, or has too many labels or owner references.
	Undecodable Outcome = "undecodable"
	// Starting means that the rings have not been read yet.
	Starting Outcome = "starting"
	// Failed means that the decision failed because of a bug in the program.
	Failed Outcome = "failed"
)
