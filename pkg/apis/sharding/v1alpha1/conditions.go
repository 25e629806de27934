package v1alpha1

// Types of conditions of a ClusterRing.
const (
	// ConditionReady reports whether the ring does its job. It summarizes the other conditions. The lease monitor writes it.
	ConditionReady = "Ready"
	// ConditionShardsAvailable reports whether there is a shard to assign objects to. The lease monitor writes it.
	ConditionShardsAvailable = "ShardsAvailable"
	// ConditionWebhookRegistered reports whether the API server calls the assigner for the ring's resources. The assigner writes
	// it.
	ConditionWebhookRegistered = "WebhookRegistered"
	// ConditionFenced reports whether the API server refuses writes of shards to objects of other shards. Only rings with a fence
	// have it. The assigner writes it.
	ConditionFenced = "Fenced"
	// ConditionAssigned reports whether every object is at the shard that it belongs to. The rebalancer writes it.
	ConditionAssigned = "Assigned"
	// ConditionKeysFound reports whether every object has the key that the ring asks for. Objects without it are assigned by their
	// names. Only rings with a key other than the name have it. The rebalancer writes it.
	ConditionKeysFound = "KeysFound"
)

// Reasons of [ConditionReady].
const (
	// ReasonReconciliationSucceeded is the reason of Ready=True.
	ReasonReconciliationSucceeded = "ReconciliationSucceeded"
	// ReasonReconciliationFailed is a reason of Ready=False. The message names the condition that is not True.
	ReasonReconciliationFailed = "ReconciliationFailed"
	// ReasonShardLabelInUse is a reason of Ready=False: an older ring has the same spec.shardLabel, so no service acts for this one. It is
	// also a reason of [ConditionWebhookRegistered], [ConditionAssigned], and [ConditionFenced].
	ReasonShardLabelInUse = "ShardLabelInUse"
)

// Reasons of [ConditionShardsAvailable].
const (
	// ReasonShardsAvailable is a reason of True: every shard that holds its Lease is available.
	ReasonShardsAvailable = "ShardsAvailable"
	// ReasonShardsIgnored is a reason of True: some shards are available, but others hold a Lease that cannot be used.
	ReasonShardsIgnored = "ShardsIgnored"
	// ReasonLeasesNotTaken is a reason of False: a shard has not renewed its Lease for too long, and the Lease cannot be taken
	// over. Objects of that shard wait.
	ReasonLeasesNotTaken = "LeasesNotTaken"
	// ReasonNoShards is a reason of False: no shard is available. It is also a reason of [ConditionAssigned].
	ReasonNoShards = "NoShards"
)

// Reasons of [ConditionWebhookRegistered].
const (
	// ReasonRegistered is the reason of True.
	ReasonRegistered = "Registered"
	// ReasonRegistrationFailed is a reason of False: the webhook configuration could not be written.
	ReasonRegistrationFailed = "RegistrationFailed"
	// ReasonResourcesMissing is a reason of False: the API server does not serve a resource of the ring (yet). It is also a
	// reason of [ConditionAssigned].
	ReasonResourcesMissing = "ResourcesMissing"
	// ReasonDeleting is a reason of False: the ring is being deleted. It is also a reason of [ConditionAssigned].
	ReasonDeleting = "Deleting"
	// ReasonEmbedded is a reason of False: the ring uses no webhook, because one of its shards assigns new objects.
	ReasonEmbedded = "Embedded"
)

// Reasons of [ConditionFenced].
const (
	// ReasonFenceEnforced is the reason of True.
	ReasonFenceEnforced = "Enforced"
	// ReasonFenceAudited is a reason of False: writes that the fence would refuse are allowed, with a warning and an audit
	// annotation.
	ReasonFenceAudited = "Audited"
	// ReasonFenceOff is a reason of False: the ring has switched its fence off.
	ReasonFenceOff = "Off"
	// ReasonFenceFailed is a reason of False: the fence could not be set up, or its policy does not exist.
	ReasonFenceFailed = "FenceFailed"
)

// Reasons of [ConditionAssigned].
const (
	// ReasonAllAssigned is the reason of True.
	ReasonAllAssigned = "AllAssigned"
	// ReasonMoving is a reason of False: objects are moving, as expected after a change of shards.
	ReasonMoving = "Moving"
	// ReasonDrainsLate is a reason of False: a shard has not released an object in time.
	ReasonDrainsLate = "DrainsLate"
	// ReasonAssignmentFailed is a reason of False: objects could not be listed, watched, or written.
	ReasonAssignmentFailed = "AssignmentFailed"
	// ReasonNamespacesNotWatched is a reason of False: the ring covers namespaces that no available shard watches. Nobody works on objects there.
	ReasonNamespacesNotWatched = "NamespacesNotWatched"
	// ReasonHandedOver is a reason of False: the sharder of the ring has stopped for another one, as spec.sharder demands, and that one has not
	// begun yet.
	ReasonHandedOver = "HandedOver"
)

// Reasons of [ConditionKeysFound].
const (
	// ReasonAllKeysFound is the reason of True.
	ReasonAllKeysFound = "AllKeysFound"
	// ReasonLabelsMissing is a reason of False: objects lack the label that is their key.
	ReasonLabelsMissing = "LabelsMissing"
	// ReasonNotNamespaced is a reason of False: a resource whose key is the namespace is cluster-scoped.
	ReasonNotNamespaced = "NotNamespaced"
	// ReasonKeysUnknown is the reason of Unknown: the objects have not all been seen yet.
	ReasonKeysUnknown = "NotAllSeen"
)
