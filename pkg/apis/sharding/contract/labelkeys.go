package contract

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// DrainSuffix follows spec.shardLabel of a ring in the key of its drain label.
	DrainSuffix = "-drain"
	// HandoverSuffix follows spec.shardLabel of a ring in the key of its handover annotation.
	HandoverSuffix = "-handover"
	// HeldSuffix follows spec.shardLabel of a ring in the key of the annotation on objects that shards hold back.
	HeldSuffix = "-held"
	// AnnotationHeldPrefix begins the default key of that annotation.
	AnnotationHeldPrefix = "held.alpha.sharding.timebertt.dev/"
	// ResourceShardLabels is the resource in the group of this API for which the rebalancer needs the verb "write", with spec.shardLabel of
	// a ring as the name. It exists only as a permission: it allows the rebalancer to change a label that does not begin as ours do.
	ResourceShardLabels = "shardlabels"
)

// LabelKeys are the keys by which a ring labels and annotates objects. v1alpha1.ClusterRing.LabelKeys and [LabelKeysOf] return them. The zero value
// contains no keys.
type LabelKeys struct {
	// Shard is the key of the label that assigns an object to a shard; the value of the label is the shard's name.
	Shard string
	// Drain is the key of the label that asks an object's shard to release the object; see [NextShard] for its value.
	Drain string
	// Handover is the key of the annotation that contains a [Handover].
	Handover string
	// Held is the key of the annotation by which shards hold an object back whose reconcile ends their processes. It contains a digest of the object,
	// and has no effect when the object has changed.
	Held string
}

// LabelKeysOf returns the keys of a ring with the given name and spec.shardLabel; the latter is empty for a ring without one. It does not
// validate the label.
func LabelKeysOf(ring, shardLabel string) LabelKeys {
	if shardLabel == "" {
		return LabelKeys{Shard: ShardLabel(ring), Drain: DrainLabel(ring), Handover: HandoverAnnotation(ring), Held: AnnotationHeldPrefix + RingSuffix(ring)}
	}

	return LabelKeys{Shard: shardLabel, Drain: shardLabel + DrainSuffix, Handover: shardLabel + HandoverSuffix, Held: shardLabel + HeldSuffix}
}

// reservedDomains may not contain the label of a ring, nor may domains below them.
var reservedDomains = []string{"kubernetes.io", "k8s.io", "sharding.timebertt.dev"}

// ValidateShardLabel returns what is wrong with a key for spec.shardLabel; nothing if the API server accepts it there.
func ValidateShardLabel(key string) (problems []string) {
	domain, name, found := strings.Cut(key, "/")
	if !found {
		return []string{"it must begin with a domain of yours and a slash, such as example.com/shard: otherwise, another label may have the same key"}
	}

	problems = append(problems, validation.IsQualifiedName(key)...)

	if longest := maxLabelName - len(HandoverSuffix); len(name) > longest {
		problems = append(problems, fmt.Sprintf("after the slash, there may be at most %d characters: %s is added to the key", longest, HandoverSuffix))
	}

	for _, reserved := range reservedDomains {
		if domain == reserved || strings.HasSuffix(domain, "."+reserved) {
			problems = append(problems, "the domain "+reserved+" is reserved: use a domain of your own")
		}
	}

	if strings.HasSuffix(name, DrainSuffix) || strings.HasSuffix(name, HandoverSuffix) {
		problems = append(problems, "a key that ends with "+DrainSuffix+" or "+HandoverSuffix+" could be one that follows from the shardLabel of another ring")
	}

	return problems
}
