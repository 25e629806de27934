package explain

// Reason is why there is a finding, for programs. More may be added.
type Reason string

// Reasons that are about the object itself.
const (
	ReasonNotSharded       Reason = "NOT_SHARDED"        // no ring in question lists the object's resource.
	ReasonObjectForbidden  Reason = "OBJECT_FORBIDDEN"   // the server may not read the object.
	ReasonObjectDeleting   Reason = "OBJECT_DELETING"    // the object waits for its finalizers.
	ReasonSeveralRings     Reason = "SEVERAL_RINGS"      // more than one ring shards the object.
	ReasonUnknownRingLabel Reason = "UNKNOWN_RING_LABEL" // the object carries a label of a ring that does not exist.
)

// Reasons why a ring does not cover the object, or why that is not known.
const (
	ReasonRingDeleting         Reason = "RING_DELETING"          // the ring is being deleted and gives up its objects.
	ReasonResourceLeft         Reason = "RESOURCE_LEFT"          // the ring does not list the resource any more and gives up its objects.
	ReasonStrayLabel           Reason = "STRAY_LABEL"            // the object carries the ring's label although the ring has nothing to do with its resource.
	ReasonNamespaceNotSelected Reason = "NAMESPACE_NOT_SELECTED" // the ring's selector does not select the object's namespace.
	ReasonNamespaceUnknown     Reason = "NAMESPACE_UNKNOWN"      // the namespace's labels could not be read, and it depends on them.
	ReasonNoController         Reason = "NO_CONTROLLER"          // the resource is a controlled one, and nothing controls the object.
	ReasonForeignController    Reason = "FOREIGN_CONTROLLER"     // the resource is a controlled one, and what controls the object is of no main kind of the ring.
)

// Reasons that are about where the object is.
const (
	ReasonAssigned      Reason = "ASSIGNED"       // the object is where it should be, and its shard holds its Lease.
	ReasonBelongs       Reason = "BELONGS"        // where the object belongs by its name; where it is, is not known.
	ReasonUnassigned    Reason = "UNASSIGNED"     // the object has no shard.
	ReasonMisplaced     Reason = "MISPLACED"      // the object belongs to another shard, and its own was not asked to give it up yet.
	ReasonDrainPending  Reason = "DRAIN_PENDING"  // its shard was asked to give it up.
	ReasonDrainLate     Reason = "DRAIN_LATE"     // its shard was asked to give it up more than [DrainTimeout] ago.
	ReasonDrainUnwanted Reason = "DRAIN_UNWANTED" // its shard was asked to give it up, and need not any more.
	ReasonHandover      Reason = "HANDOVER"       // what the object's shard had to see before it began with the object.
	ReasonLabelWriter   Reason = "LABEL_WRITER"   // in whose write the object got its shard label.
)

// Reasons that are about shards.
const (
	ReasonNoShards       Reason = "NO_SHARDS"        // no shard of the ring is available.
	ReasonShardDead      Reason = "SHARD_DEAD"       // the object's shard does not hold its Lease.
	ReasonShardUnknown   Reason = "SHARD_UNKNOWN"    // the object's shard has no Lease.
	ReasonShardHeldTwice Reason = "SHARD_HELD_TWICE" // two processes hold Leases of the shard's name.
	ReasonShardExpired   Reason = "SHARD_EXPIRED"    // the object's shard has not renewed its Lease for longer than its duration.
	ReasonShardUncertain Reason = "SHARD_UNCERTAIN"  // the object's shard has not renewed its Lease for twice its duration; the lease monitor takes it now.
	ReasonLeaseNotTaken  Reason = "LEASE_NOT_TAKEN"  // the lease monitor has not taken the Lease of a failed shard although it should have.
)

// Reasons that are about the owner of a controlled object.
const (
	ReasonOwnerElsewhere    Reason = "OWNER_ELSEWHERE"     // the owner is at another shard than the object.
	ReasonOwnerDraining     Reason = "OWNER_DRAINING"      // the owner's shard was asked to give the owner up; the object will follow.
	ReasonOwnerWithoutShard Reason = "OWNER_WITHOUT_SHARD" // the owner has no shard, or one that does not hold its Lease.
	ReasonOwnerGone         Reason = "OWNER_GONE"          // the owner does not exist any more.
	ReasonOwnerForbidden    Reason = "OWNER_FORBIDDEN"     // the server may not read the owner.
)

// Reasons that are about what the services say of the ring.
const (
	ReasonWebhookNotRegistered Reason = "WEBHOOK_NOT_REGISTERED" // the ring's condition WebhookRegistered is not True.
	ReasonNotAssigned          Reason = "RING_NOT_ASSIGNED"      // the ring's condition Assigned is not True.
	ReasonNotReady             Reason = "RING_NOT_READY"         // the ring's condition Ready is not True, and no other condition says why.
	ReasonRebalancerSilent     Reason = "REBALANCER_SILENT"      // something is to be done, and the rebalancer has never said anything about the ring.
)
