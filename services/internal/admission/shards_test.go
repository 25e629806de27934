package admission_test

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/services/internal/admission"
)

// unrecordedChildren is a ring in which objects move, whose status contains resources other than configmaps.
func unrecordedChildren(shards ...string) *admission.Ring {
	f := moving(shards...).Facts()
	f.Recorded = recorded("websites.example.org")

	return admission.NewRing(f)
}

// by is a request of the Pod, which is in the namespace of the shards unless its name says "namespace/name".
func by(pod string, req admission.Request) admission.Request {
	namespace, name, found := strings.Cut(pod, "/")
	if !found {
		namespace, name = "default", pod
	}

	req.Writer = types.NamespacedName{Namespace: namespace, Name: name}

	return req
}

// byShards are examples of what shards, and other Pods, write.
func byShards() []example {
	abc, abcMove := state("a", "b", "c"), moving("a", "b", "c")
	other := labels("app", "x")

	foreign := child(nil)
	foreign.OwnerReferences = controlledBy("apps/v1", "ReplicaSet", "blog")

	return []example{
		{"a new child by a shard while objects move", abcMove, by("a", create(configmaps, child(nil))), admission.ByShard},
		{"the same by another shard", abcMove, by("c", create(configmaps, child(other))), admission.ByShard},
		{"the same with a left-over drain label", abcMove, by("a", create(configmaps, child(labels(drainLabel, "true")))), admission.ByShard},
		{"a new child by a shard in a paused ring", paused("a", "b", "c"), by("a", create(configmaps, child(nil))), admission.ByShard},
		{"a new grandchild by a shard, whose controller cannot be read", abcMove, by("a", create(configmaps, grandchild("4", nil))), admission.ByShard},
		{"a new child by a shard while nothing moves", abc, by("a", create(configmaps, child(nil))), admission.ByShard},
		{"a new grandchild by a shard while nothing moves", abc, by("a", create(configmaps, grandchild("4", nil))), admission.ByShard},
		{"a new child by a Pod that is no shard", abcMove, by("d", create(configmaps, child(nil))), admission.Moving},
		{"a new child by a Pod with the name of a shard in another namespace", abcMove, by("other/a", create(configmaps, child(nil))), admission.Moving},
		{"a new child by a shard that released its Lease", moving("a:", "b", "c"), by("a", create(configmaps, child(nil))), admission.Moving},
		{"a new child by a shard whose Lease was taken", moving("a:shardlease-controller", "b", "c"), by("a", create(configmaps, child(nil))), admission.Moving},
		{"a new child by a shard whose name is held twice", moving("a", "other/a", "b"), by("a", create(configmaps, child(nil))), admission.Moving},
		{"an update of a child by a shard", abcMove, by("a", updating(configmaps, child(nil), child(other))), admission.Moving},
		{"a new child of a resource that the ring's status does not name yet, by a shard", unrecordedChildren("a", "b"), by("a", create(configmaps, child(nil))), admission.Unrecorded},
		{"a new object with a foreign controller, by a shard", abcMove, by("a", create(configmaps, foreign)), admission.ForeignOwner},
		{"a new main object by a shard", abcMove, by("a", create(websites, website(nil))), admission.Assigned},
	}
}
