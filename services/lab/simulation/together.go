package simulation

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
)

// together checks that main objects with the same value of the label, or in the same namespace, are at one shard, if
// that is their key. It does not compute keys.
func (w *Cluster) together(f facts) {
	first := map[string]apiserver.ID{}
	at := map[string]string{}

	objects := map[apiserver.ID]*metav1.PartialObjectMetadata{}
	w.server.Objects(func(id apiserver.ID, o *metav1.PartialObjectMetadata) { objects[id] = o })

	for _, id := range sortedKeys(objects) {
		o := objects[id]

		shard := o.Labels[shardLabel]
		if shard == "" {
			continue // it is not covered, or Placed fails
		}

		for _, r := range f.ring.Spec.Resources {
			if r.Key == nil || (schema.GroupResource{Group: r.Group, Resource: r.Resource}) != id.GroupResource {
				continue
			}

			key := "namespace " + id.Namespace
			if r.Key.Type == v1alpha1.KeyLabel {
				key = "customer " + o.Labels[r.Key.Label]
			}

			switch was, known := at[key]; {
			case strings.HasSuffix(key, " "): // it has no key
			case !known:
				first[key], at[key] = id, shard
			case was != shard:
				w.fail(Together, "%s: %s is at %s, and %s is at %s", key, first[key], was, id, shard)
			}
		}
	}
}
