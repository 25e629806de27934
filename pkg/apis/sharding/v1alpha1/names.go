package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Labels, their values and identities that shards and services agree on.
const (
	// LabelClusterRing marks a shard's Lease, and a ring's webhook configuration, with the name of the ring.
	LabelClusterRing = "alpha.sharding.timebertt.dev/clusterring"
	// LabelState carries the state of a shard's Lease as the lease monitor sees it. It informs; nothing decides by it.
	LabelState = "alpha.sharding.timebertt.dev/state"
	// AnnotationHoldOff is on a shard's Lease and says how long the shard waits before it works after it has taken its Lease
	// while that was free: a Go duration, such as "2s". It is there from the write that takes the Lease on. Whoever has seen the
	// Lease free may count on that time. A shard that does not say is not known to wait.
	AnnotationHoldOff = "alpha.sharding.timebertt.dev/hold-off"
	// LabelShardPrefix begins the label that assigns an object to a shard; see [ShardLabel].
	LabelShardPrefix = "shard.alpha.sharding.timebertt.dev/"
	// LabelDrainPrefix begins the label that asks a shard to give an object up; see [DrainLabel].
	LabelDrainPrefix = "drain.alpha.sharding.timebertt.dev/"
	// DrainValue is the value of a drain label that does not name the next shard; see [NextShard].
	DrainValue = "true"
	// LeaseControllerIdentity is the holder of a Lease that was taken from a failed shard.
	LeaseControllerIdentity = "shardlease-controller"
	// FinalizerRebalancer keeps a deleted ring until no object carries its labels any more.
	FinalizerRebalancer = "alpha.sharding.timebertt.dev/rebalancer"
)

// Names and paths of the services.
const (
	// SystemNamespace is the namespace that the services run in.
	SystemNamespace = "sharding-system"
	// WebhookName is the name of the one webhook in a ring's webhook configuration.
	WebhookName = "sharder.sharding.timebertt.dev"
	// WebhookPathPrefix begins the path that a ring's webhook is served at; see [WebhookPath].
	WebhookPathPrefix = "/webhooks/sharder/clusterring/"
)

// MaxDepth is how many levels of objects follow one another in a ring at most, that of the main object included: a Deployment, its ReplicaSets
// and their Pods are three. Objects further down are not sharded.
const MaxDepth = 4

// Labels of ClusterRoles. A role that carries one with the value "true" is added to the rights of that service, which is
// how the rights on a ring's own resources are granted.
const (
	// LabelAggregateToRebalancer grants the rebalancer get, list, watch and patch on a ring's resources.
	LabelAggregateToRebalancer = "sharding.timebertt.dev/aggregate-to-rebalancer"
	// LabelAggregateToRingQuery grants the query service get and list on a ring's resources.
	LabelAggregateToRingQuery = "sharding.timebertt.dev/aggregate-to-ringquery"
	// LabelAggregateToAssigner grants the assigner get on those of a ring's controlled resources whose objects control others.
	LabelAggregateToAssigner = "sharding.timebertt.dev/aggregate-to-assigner"
)

// maxLabelName is the longest name part of a label key, and so of a ring suffix, in bytes.
const maxLabelName = validation.LabelValueMaxLength

// RingSuffix returns the part of label keys and names that stands for one ring: "clusterring-", the first 8 hexadecimal
// digits of the SHA-256 of the ring's name, "-" and the name itself, cut to 63 bytes and freed of trailing characters that
// a label key may not end with. Rings whose names differ only beyond the cut still differ in the digits.
func RingSuffix(ring string) string {
	sum := sha256.Sum256([]byte(ring))

	suffix := "clusterring-" + hex.EncodeToString(sum[:4]) + "-" + ring
	if len(suffix) > maxLabelName {
		suffix = suffix[:maxLabelName]
	}

	return strings.TrimRightFunc(suffix, func(r rune) bool { return !isAlphanumeric(r) })
}

func isAlphanumeric(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
}

// ShardLabel returns the key of the label that assigns an object to a shard of the ring; its value is the shard's name.
func ShardLabel(ring string) string { return LabelShardPrefix + RingSuffix(ring) }

// DrainLabel returns the key of the label that asks an object's shard of the ring to stop working on it and to remove both
// labels. Its presence counts, not its value.
func DrainLabel(ring string) string { return LabelDrainPrefix + RingSuffix(ring) }

// NextShard returns the shard that comes next, by the value of a drain label: who gives the object up may write the shard label of that name
// itself, in the write that removes the drain label. It is empty if the value names none.
func NextShard(drain string) string {
	if drain == DrainValue {
		return ""
	}

	return drain
}

// WebhookConfigurationName returns the name of the ring's MutatingWebhookConfiguration.
func WebhookConfigurationName(ring string) string { return "sharding-" + RingSuffix(ring) }

// WebhookPath returns the path that the ring's webhook is served at.
func WebhookPath(ring string) string { return WebhookPathPrefix + ring }
