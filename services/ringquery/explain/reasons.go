package explain

// Reason is why there is a finding, for programs. More may be added.
type Reason string

// Reasons that are about the object itself.
const (
	ReasonNotSharded       Reason = "NOT_SHARDED"        // no ring in question lists the object's resource.
	ReasonObjectForbidden  Reason = "OBJECT_FORBIDDEN"   // the server may not read the object.
	ReasonObjectDeleting   Reason = "OBJECT_DELETING"    // the object waits for its finalizers.
	ReasonSeveralRings     Reason = "SEVERAL_RINGS"      // more than one ring shards the object.
	ReasonUnknownRingLabel Reason = "UNKNOWN_RING_LABEL" // the object has a label of a ring that does not exist.
)

// Reasons why a ring does not cover the object, or why that is not known.
const (
	ReasonLabelInUse           Reason = "LABEL_IN_USE"           // an older ring has the same label, so no service acts for the ring.
	ReasonRingDeleting         Reason = "RING_DELETING"          // the ring is being deleted and releases its objects.
	ReasonResourceLeft         Reason = "RESOURCE_LEFT"          // the ring no longer lists the resource and releases its objects.
	ReasonStrayLabel           Reason = "STRAY_LABEL"            // the object has a label of the ring, but the ring does not list its resource.
	ReasonNamespaceNotSelected Reason = "NAMESPACE_NOT_SELECTED" // the ring's selector does not select the object's namespace.
	ReasonNamespaceUnknown     Reason = "NAMESPACE_UNKNOWN"      // it depends on labels of the namespace, which could not be read.
	ReasonObjectNotSelected    Reason = "OBJECT_NOT_SELECTED"    // the ring's object selector does not select the object, or the one that it follows.
	ReasonNoController         Reason = "NO_CONTROLLER"          // the resource is controlled, and the object has no controller.
	ReasonForeignController    Reason = "FOREIGN_CONTROLLER"     // the resource is controlled, and the controller of the object is not a main object of the ring.
)

// Reasons that are about where the object is.
const (
	ReasonAssigned      Reason = "ASSIGNED"       // the object is where it should be, and its shard holds its Lease.
	ReasonBelongs       Reason = "BELONGS"        // where the object belongs by its name. It is not known where it is.
	ReasonUnassigned    Reason = "UNASSIGNED"     // the object has no shard.
	ReasonMisplaced     Reason = "MISPLACED"      // the object belongs to another shard, and its shard was not asked to release it yet.
	ReasonDrainPending  Reason = "DRAIN_PENDING"  // its shard was asked to release it.
	ReasonDrainLate     Reason = "DRAIN_LATE"     // its shard was asked to release it more than [DrainTimeout] ago.
	ReasonDrainUnwanted Reason = "DRAIN_UNWANTED" // its shard was asked to release it, but it belongs there again.
	ReasonHandover      Reason = "HANDOVER"       // what the shard must see before it starts to work on the object.
	ReasonLabelWriter   Reason = "LABEL_WRITER"   // who set the shard label.
	ReasonKeyMissing    Reason = "KEY_MISSING"    // the object, or its owner, lacks the label or the namespace that is its key.
	ReasonPaused        Reason = "PAUSED"         // the object would move if spec.paused of the ring were not set.
)

// Reasons that are about shards.
const (
	ReasonNoShards            Reason = "NO_SHARDS"             // no shard of the ring is available.
	ReasonNamespaceNotWatched Reason = "NAMESPACE_NOT_WATCHED" // the object's shard, or every available shard, does not watch its namespace.
	ReasonShardDead           Reason = "SHARD_DEAD"            // the object's shard does not hold its Lease.
	ReasonShardUnknown        Reason = "SHARD_UNKNOWN"         // the object's shard has no Lease.
	ReasonShardHeldTwice      Reason = "SHARD_HELD_TWICE"      // two processes hold Leases with the name of the shard.
	ReasonShardExpired        Reason = "SHARD_EXPIRED"         // the object's shard has not renewed its Lease for longer than its duration.
	ReasonShardUncertain      Reason = "SHARD_UNCERTAIN"       // the object's shard has not renewed its Lease for twice its duration. The lease monitor is about to take it.
	ReasonLeaseNotTaken       Reason = "LEASE_NOT_TAKEN"       // the lease monitor should have taken the Lease of a failed shard.
)

// Reasons that are about the owner of a controlled object.
const (
	ReasonOwnerElsewhere    Reason = "OWNER_ELSEWHERE"     // the owner is at another shard than the object.
	ReasonOwnerDraining     Reason = "OWNER_DRAINING"      // the shard of the owner was asked to release the owner. The object will follow.
	ReasonOwnerWithoutShard Reason = "OWNER_WITHOUT_SHARD" // the owner has no shard, or one that does not hold its Lease.
	ReasonOwnerGone         Reason = "OWNER_GONE"          // the owner no longer exists.
	ReasonOwnerForbidden    Reason = "OWNER_FORBIDDEN"     // the server may not read the owner.
)

// Reasons that are about what the services report about the ring.
const (
	ReasonWebhookNotRegistered Reason = "WEBHOOK_NOT_REGISTERED" // the ring's condition WebhookRegistered is not True.
	ReasonFenced               Reason = "FENCED"                 // the API server refuses writes of other shards to the object.
	ReasonNotFenced            Reason = "NOT_FENCED"             // the ring's condition Fenced is not True, although the ring has a fence.
	ReasonNotAssigned          Reason = "RING_NOT_ASSIGNED"      // the ring's condition Assigned is not True.
	ReasonNotReady             Reason = "RING_NOT_READY"         // the ring's condition Ready is not True, and no other condition explains it.
	ReasonRebalancerSilent     Reason = "REBALANCER_SILENT"      // there is a next step, and the rebalancer has never reported on the ring.
)
