package rings

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Key is a partition key, and how it was derived.
type Key struct {
	key.Key

	// Rule is the rule of the object's resource, or of its owner's.
	Rule key.Rule
	// In is the namespace of that object; empty for a cluster-scoped one.
	In string
	// Missing is true if that object lacks what the rule asks for. The key is then that of its name.
	Missing bool
}

// KeyOf returns the key of a main object.
func KeyOf(of resources.Resource, obj metav1.Object) Key {
	k, found := of.Key.Of(of.Kind.GroupKind(), obj)

	return Key{Key: k, Rule: of.Key, In: obj.GetNamespace(), Missing: !found}
}

// Type returns the type of the key.
func (k Key) Type() pb.KeyType {
	switch {
	case k.Missing:
		return pb.KeyType_KEY_TYPE_NAME
	case k.Rule.Namespace:
		return pb.KeyType_KEY_TYPE_NAMESPACE
	case k.Rule.Label != "":
		return pb.KeyType_KEY_TYPE_LABEL
	}

	return pb.KeyType_KEY_TYPE_NAME
}

// Message returns the key as in the API.
func (k Key) Message() *pb.PartitionKey {
	return &pb.PartitionKey{Group: k.Group, Kind: k.Kind, Namespace: k.Namespace, Name: k.Name, Type: k.Type()}
}

// Locate returns the shard of a partition key, how it was derived, and the n shards that would be next. The role and the
// coverage (never NotCovered) are those of the object.
func (r Ring) Locate(role resources.Role, coverage Coverage, k Key, n int) *pb.Location {
	table, hash := r.View.TableIn(k.In), k.Hash()
	partition := table.Partition(hash)
	location := &pb.Location{
		Ring:              r.Name,
		Role:              roles[role],
		NamespaceCoverage: coverage,
		PartitionKey:      k.Message(),
		KeyMissing:        k.Missing,
		Hash:              uint32(hash),
		Partition:         int32(partition),
		Fingerprint:       r.View.Fingerprint(),
	}

	if ranking := table.Ranking(partition, n+1); len(ranking) > 0 {
		location.Shard, location.NextShards = ranking[0], ranking[1:]
	}

	return location
}
