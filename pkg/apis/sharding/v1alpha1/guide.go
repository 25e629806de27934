package v1alpha1

import (
	"strings"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// The names of this file are those of kubernetes-controller-sharding v0.8.0. A shard that was written for it compiles with them after
// a change of its import paths.
const (
	// LabelClusterRing is [contract.LabelClusterRing].
	LabelClusterRing = contract.LabelClusterRing
	// LabelState is [contract.LabelState].
	LabelState = contract.LabelState
	// NamespaceSystem is [contract.SystemNamespace].
	NamespaceSystem = contract.SystemNamespace
	// AppControllerSharding is the value of the label app.kubernetes.io/name on the webhook configurations of rings.
	AppControllerSharding = "controller-sharding"
	// KindClusterRing is the kind of a ring in the keys of labels, for [LabelShard] and [LabelDrain].
	KindClusterRing = "clusterring"
	// IdentityShardLeaseController is [contract.LeaseControllerIdentity].
	IdentityShardLeaseController = contract.LeaseControllerIdentity
)

// LabelShard returns the key of the label that assigns an object to a shard of a ring. The kind is [KindClusterRing] in any case of
// letters, and the namespace is empty, because rings are cluster-scoped. [contract.ShardLabel] is the same without these two arguments.
func LabelShard(kind, namespace, name string) string {
	return contract.LabelShardPrefix + suffixOf(kind, namespace, name)
}

// LabelDrain returns the key of the label that asks an object's shard to release it. The arguments are those of [LabelShard].
// [contract.DrainLabel] is the same without the first two.
func LabelDrain(kind, namespace, name string) string {
	return contract.LabelDrainPrefix + suffixOf(kind, namespace, name)
}

// suffixOf returns [contract.RingSuffix] for a ring of any kind. An underscore, which no name contains, separates the namespace from the name.
func suffixOf(kind, namespace, name string) string {
	if namespace != "" {
		name = namespace + "_" + name
	}

	return contract.SuffixOf(strings.ToLower(kind), name)
}
