package explain

// Reason is why there is a finding, for programs. More may be added.
type Reason string

// Reasons that are about the object itself.
const (
	// ReasonNotSharded: no ring in question lists the object's resource.
	ReasonNotSharded Reason = "NOT_SHARDED"
	// ReasonObjectForbidden: the server may not read the object.
	ReasonObjectForbidden Reason = "OBJECT_FORBIDDEN"
	// ReasonObjectDeleting: the object waits for its finalizers.
	ReasonObjectDeleting Reason = "OBJECT_DELETING"
	// ReasonSeveralRings: more than one ring shards the object.
	ReasonSeveralRings Reason = "SEVERAL_RINGS"
	// ReasonUnknownRingLabel: the object carries a label of a ring that does not exist.
	ReasonUnknownRingLabel Reason = "UNKNOWN_RING_LABEL"
)

// Reasons why a ring does not cover the object, or why that is not known.
const (
	// ReasonRingDeleting: the ring is being deleted and gives up its objects.
	ReasonRingDeleting Reason = "RING_DELETING"
	// ReasonResourceLeft: the ring does not list the resource any more and gives up its objects.
	ReasonResourceLeft Reason = "RESOURCE_LEFT"
	// ReasonStrayLabel: the object carries the ring's label although the ring has nothing to do with its resource.
	ReasonStrayLabel Reason = "STRAY_LABEL"
	// ReasonNamespaceNotSelected: the ring's selector does not select the object's namespace.
	ReasonNamespaceNotSelected Reason = "NAMESPACE_NOT_SELECTED"
	// ReasonNamespaceUnknown: the namespace's labels could not be read, and it depends on them.
	ReasonNamespaceUnknown Reason = "NAMESPACE_UNKNOWN"
	// ReasonNoController: the resource is a controlled one, and nothing controls the object.
	ReasonNoController Reason = "NO_CONTROLLER"
	// ReasonForeignController: the resource is a controlled one, and what controls the object is of no main kind of the ring.
	ReasonForeignController Reason = "FOREIGN_CONTROLLER"
)

// Reasons that are about where the object is.
const (
	// ReasonAssigned: the object is where it should be, and its shard holds its Lease.
	ReasonAssigned Reason = "ASSIGNED"
	// ReasonBelongs: where the object belongs by its name; where it is, is not known.
	ReasonBelongs Reason = "BELONGS"
	// ReasonUnassigned: the object has no shard.
	ReasonUnassigned Reason = "UNASSIGNED"
	// ReasonMisplaced: the object belongs to another shard, and its own was not asked to give it up yet.
	ReasonMisplaced Reason = "MISPLACED"
	// ReasonDrainPending: its shard was asked to give it up.
	ReasonDrainPending Reason = "DRAIN_PENDING"
	// ReasonDrainLate: its shard was asked to give it up more than [DrainTimeout] ago.
	ReasonDrainLate Reason = "DRAIN_LATE"
	// ReasonDrainUnwanted: its shard was asked to give it up, and need not any more.
	ReasonDrainUnwanted Reason = "DRAIN_UNWANTED"
	// ReasonHandover: what the object's shard had to see before it began with the object.
	ReasonHandover Reason = "HANDOVER"
	// ReasonLabelWriter: in whose write the object got its shard label.
	ReasonLabelWriter Reason = "LABEL_WRITER"
)

// Reasons that are about shards.
const (
	// ReasonNoShards: no shard of the ring is available.
	ReasonNoShards Reason = "NO_SHARDS"
	// ReasonShardDead: the object's shard does not hold its Lease.
	ReasonShardDead Reason = "SHARD_DEAD"
	// ReasonShardUnknown: the object's shard has no Lease.
	ReasonShardUnknown Reason = "SHARD_UNKNOWN"
	// ReasonShardHeldTwice: two processes hold Leases of the shard's name.
	ReasonShardHeldTwice Reason = "SHARD_HELD_TWICE"
	// ReasonShardExpired: the object's shard has not renewed its Lease for longer than its duration.
	ReasonShardExpired Reason = "SHARD_EXPIRED"
	// ReasonShardUncertain: the object's shard has not renewed its Lease for twice its duration; the lease monitor takes it now.
	ReasonShardUncertain Reason = "SHARD_UNCERTAIN"
	// ReasonLeaseNotTaken: the lease monitor has not taken the Lease of a failed shard although it should have.
	ReasonLeaseNotTaken Reason = "LEASE_NOT_TAKEN"
)

// Reasons that are about the owner of a controlled object.
const (
	// ReasonOwnerElsewhere: the owner is at another shard than the object.
	ReasonOwnerElsewhere Reason = "OWNER_ELSEWHERE"
	// ReasonOwnerDraining: the owner's shard was asked to give the owner up; the object will follow.
	ReasonOwnerDraining Reason = "OWNER_DRAINING"
	// ReasonOwnerWithoutShard: the owner has no shard, or one that does not hold its Lease.
	ReasonOwnerWithoutShard Reason = "OWNER_WITHOUT_SHARD"
	// ReasonOwnerGone: the owner does not exist any more.
	ReasonOwnerGone Reason = "OWNER_GONE"
	// ReasonOwnerForbidden: the server may not read the owner.
	ReasonOwnerForbidden Reason = "OWNER_FORBIDDEN"
)

// Reasons that are about what the services say of the ring.
const (
	// ReasonWebhookNotRegistered: the ring's condition WebhookRegistered is not True.
	ReasonWebhookNotRegistered Reason = "WEBHOOK_NOT_REGISTERED"
	// ReasonNotAssigned: the ring's condition Assigned is not True.
	ReasonNotAssigned Reason = "RING_NOT_ASSIGNED"
	// ReasonNotReady: the ring's condition Ready is not True, and no other condition says why.
	ReasonNotReady Reason = "RING_NOT_READY"
	// ReasonRebalancerSilent: something is to be done, and the rebalancer has never said anything about the ring.
	ReasonRebalancerSilent Reason = "REBALANCER_SILENT"
)
