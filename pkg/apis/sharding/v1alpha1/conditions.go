package v1alpha1

// Types of conditions of a ClusterRing.
const (
	// ConditionReady says whether the ring does its job; it sums up the other conditions. Written by the lease monitor.
	ConditionReady = "Ready"
	// ConditionShardsAvailable says whether there is a shard to assign objects to. Written by the lease monitor.
	ConditionShardsAvailable = "ShardsAvailable"
	// ConditionWebhookRegistered says whether the API server calls the assigner for the ring's resources. Written by the
	// assigner.
	ConditionWebhookRegistered = "WebhookRegistered"
	// ConditionAssigned says whether every object is at the shard it belongs to. Written by the rebalancer.
	ConditionAssigned = "Assigned"
)

// Reasons of [ConditionReady].
const (
	// ReasonReconciliationSucceeded goes with Ready=True.
	ReasonReconciliationSucceeded = "ReconciliationSucceeded"
	// ReasonReconciliationFailed goes with Ready=False; the message names the condition that is at fault.
	ReasonReconciliationFailed = "ReconciliationFailed"
)

// Reasons of [ConditionShardsAvailable].
const (
	// ReasonShardsAvailable goes with True: every shard that holds its Lease is available.
	ReasonShardsAvailable = "ShardsAvailable"
	// ReasonShardsIgnored goes with True: some shards are available, and others hold a Lease that cannot be used.
	ReasonShardsIgnored = "ShardsIgnored"
	// ReasonLeasesNotTaken goes with False: a shard has not renewed its Lease for too long, and the Lease cannot be taken over;
	// objects of that shard wait.
	ReasonLeasesNotTaken = "LeasesNotTaken"
	// ReasonNoShards goes with False: no shard is available. It is a reason of [ConditionAssigned] too.
	ReasonNoShards = "NoShards"
)

// Reasons of [ConditionWebhookRegistered].
const (
	// ReasonRegistered goes with True.
	ReasonRegistered = "Registered"
	// ReasonRegistrationFailed goes with False: the webhook configuration could not be written.
	ReasonRegistrationFailed = "RegistrationFailed"
	// ReasonResourcesMissing goes with False: the API server does not serve some resource of the ring (yet). It is a
	// reason of [ConditionAssigned] too.
	ReasonResourcesMissing = "ResourcesMissing"
	// ReasonDeleting goes with False: the ring is being deleted. It is a reason of [ConditionAssigned] too.
	ReasonDeleting = "Deleting"
)

// Reasons of [ConditionAssigned].
const (
	// ReasonAllAssigned goes with True.
	ReasonAllAssigned = "AllAssigned"
	// ReasonMoving goes with False: objects are on their way, as they should be after a change of shards.
	ReasonMoving = "Moving"
	// ReasonDrainsLate goes with False: a shard has not given up an object in time.
	ReasonDrainsLate = "DrainsLate"
	// ReasonAssignmentFailed goes with False: objects could not be listed, watched or written.
	ReasonAssignmentFailed = "AssignmentFailed"
)
