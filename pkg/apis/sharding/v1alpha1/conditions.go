package v1alpha1

import (
	"strings"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// Types of conditions of a ClusterRing, and who writes them.
const (
	ConditionReady             = "Ready"             // the ring does its job: a summary of the others. The lease monitor.
	ConditionShardsAvailable   = "ShardsAvailable"   // there is a shard to assign objects to. The lease monitor.
	ConditionWebhookRegistered = "WebhookRegistered" // the API server calls the assigner for the resources. The assigner.
	// ConditionFenced is True if the API server refuses writes to objects of other shards. Only fenced rings have it. The
	// assigner.
	ConditionFenced   = "Fenced"
	ConditionAssigned = "Assigned" // every object is at the shard that it belongs to. The rebalancer.
	// ConditionKeysFound is True if every object has the key that the ring asks for. Objects without it are assigned by
	// their names. Only rings with a key other than the name have it. The rebalancer.
	ConditionKeysFound = "KeysFound"
	ConditionPaused    = "Paused" // no object moves as planned. Only rings with spec.paused have it. The rebalancer.
)

// Reasons of [ConditionReady]: with which status, and why.
const (
	ReasonReconciliationSucceeded = "ReconciliationSucceeded" // Ready=True
	ReasonReconciliationFailed    = "ReconciliationFailed"    // Ready=False. The message names the condition that is not.
	// ReasonShardLabelInUse is a reason of Ready=False: an older ring has the same label, so no service acts for this one.
	// It is also a reason of [ConditionWebhookRegistered], [ConditionAssigned], and [ConditionFenced].
	ReasonShardLabelInUse = "ShardLabelInUse"
)

// Reasons of [ConditionShardsAvailable].
const (
	ReasonShardsAvailable = "ShardsAvailable" // True: every shard that holds its Lease is available
	ReasonShardsIgnored   = "ShardsIgnored"   // True, but some shards hold a Lease that cannot be used
	ReasonLeasesNotTaken  = "LeasesNotTaken"  // False: a Lease that has expired cannot be taken; its shard's objects wait
	ReasonNoShards        = "NoShards"        // False: no shard is available. Also of [ConditionAssigned].
)

// Reasons of [ConditionWebhookRegistered].
const (
	ReasonRegistered         = "Registered"         // True
	ReasonRegistrationFailed = "RegistrationFailed" // False: the webhook configuration could not be written
	ReasonCallsNotAnswered   = "CallsNotAnswered"   // False: calls do not arrive, or get no answer. The message says why.
	ReasonChangedByOthers    = "ChangedByOthers"    // False: others change the webhook configuration again and again
	ReasonResourcesMissing   = "ResourcesMissing"   // False: a resource is not served (yet). Also of [ConditionAssigned].
	ReasonDeleting           = "Deleting"           // False: the ring is being deleted. Also of [ConditionAssigned].
	ReasonEmbedded           = "Embedded"           // False: the ring uses no webhook; one of its shards assigns objects
)

// Reasons of [ConditionFenced].
const (
	ReasonFenceEnforced = "Enforced"    // True
	ReasonFenceAudited  = "Audited"     // False: what the fence would refuse gets a warning and an audit annotation
	ReasonFenceOff      = "Off"         // False: the ring has switched its fence off
	ReasonFenceFailed   = "FenceFailed" // False: the fence could not be set up, or its policy does not exist
)

// Reasons of [ConditionAssigned].
const (
	ReasonAllAssigned      = "AllAssigned"      // True
	ReasonMoving           = "Moving"           // False: objects are moving, as expected after a change of shards
	ReasonDrainsLate       = "DrainsLate"       // False: a shard has not released an object in time
	ReasonAssignmentFailed = "AssignmentFailed" // False: objects could not be listed, watched, or written
	// ReasonNamespacesNotWatched is a reason of False: no shard watches some namespaces. Nobody works on objects there.
	ReasonNamespacesNotWatched = "NamespacesNotWatched"
	ReasonHandedOver           = "HandedOver" // False: the sharder has stopped for another one, which has not begun yet
)

// ReasonMovesPaused is the reason of [ConditionPaused]. It is always True.
const ReasonMovesPaused = "MovesPaused"

// Reasons of [ConditionKeysFound].
const (
	ReasonAllKeysFound  = "AllKeysFound"  // True
	ReasonLabelsMissing = "LabelsMissing" // False: objects lack the label that is their key
	ReasonNotNamespaced = "NotNamespaced" // False: a resource whose key is the namespace is cluster-scoped
	ReasonKeysUnknown   = "NotAllSeen"    // Unknown: the objects have not all been seen yet
)

// These names, and [LabelShard] and [LabelDrain], are those of kubernetes-controller-sharding v0.8.0. A shard that was
// written for it compiles with them after a change of its import paths.
const (
	LabelClusterRing             = contract.LabelClusterRing
	LabelState                   = contract.LabelState
	NamespaceSystem              = contract.SystemNamespace
	AppControllerSharding        = "controller-sharding" // app.kubernetes.io/name of the webhook configurations of rings
	KindClusterRing              = "clusterring"         // the kind of a ring in [LabelShard] and [LabelDrain]
	IdentityShardLeaseController = contract.LeaseControllerIdentity
)

// LabelShard returns the key of the label that assigns an object to a shard of a ring. The kind is [KindClusterRing] in
// any case of letters, and the namespace is empty, because rings have none. [contract.ShardLabel] needs neither.
func LabelShard(kind, namespace, name string) string {
	return contract.LabelShardPrefix + suffixOf(kind, namespace, name)
}

// LabelDrain returns the key of the label that asks an object's shard to release it. The arguments are those of
// [LabelShard]. [contract.DrainLabel] is the same without the first two.
func LabelDrain(kind, namespace, name string) string {
	return contract.LabelDrainPrefix + suffixOf(kind, namespace, name)
}

// suffixOf returns [contract.RingSuffix] for any kind. No name contains the underscore between namespace and the name.
func suffixOf(kind, namespace, name string) string {
	if namespace != "" {
		name = namespace + "_" + name
	}

	return contract.SuffixOf(strings.ToLower(kind), name)
}
