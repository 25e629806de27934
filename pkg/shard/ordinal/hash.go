package ordinal

import (
	"slices"

	"github.com/cespare/xxhash/v2"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// Hash returns a number from which follows which process an object belongs to: that with the remainder of the division by the number of replicas.
// It gets the group and kind of the object, and the object, of which it may use only what is the same when an object of that name is deleted and made
// anew: its namespace, its name, and those of what controls it, but not its uid. A reconcile of the old object may still run then, and whatever it reads
// again, or patches, is the new one. The function must return the same number in every process and version, and must be safe for concurrent use.
type Hash func(gk schema.GroupKind, obj metav1.Object) uint64

// Key is the xxHash64 of the object's key, group/kind/namespace/name, which is also what a ring assigns objects by. It has nothing to do with the
// shard that a ring chooses for the key.
func Key(gk schema.GroupKind, obj metav1.Object) uint64 {
	return hashOf(gk, obj.GetNamespace(), obj.GetName())
}

// ControllerKey returns the [Key] of what controls the object, as its controller owner reference says, or of the object itself if nothing does. With
// it, an object and what it controls belong to the same process, so that controllers of both kinds can run. It looks at one level only. Name those
// kinds of controlling objects that belong to no namespace. An object that gets another controller may have two processes for a moment.
func ControllerKey(clusterScoped ...schema.GroupKind) Hash {
	return func(gk schema.GroupKind, obj metav1.Object) uint64 {
		controller := metav1.GetControllerOfNoCopy(obj)
		if controller == nil {
			return Key(gk, obj)
		}

		above := schema.FromAPIVersionAndKind(controller.APIVersion, controller.Kind).GroupKind()
		if slices.Contains(clusterScoped, above) {
			return hashOf(above, metav1.NamespaceNone, controller.Name)
		}

		return hashOf(above, obj.GetNamespace(), controller.Name)
	}
}

func hashOf(gk schema.GroupKind, namespace, name string) uint64 {
	return xxhash.Sum64String(gk.Group + "/" + gk.Kind + "/" + namespace + "/" + name)
}

// share is the part of all objects that a process works on. The zero value is no object.
type share struct {
	index, replicas int
}

// owns reports whether an object with this hash belongs to the share.
func (s share) owns(hash uint64) bool {
	return s.replicas > 0 && hash%uint64(s.replicas) == uint64(s.index) //nolint:gosec // neither is negative
}

// numbers are what a StatefulSet says about ordinals.
type numbers struct {
	start, replicas int
}

func numbersOf(set *appsv1.StatefulSet) numbers {
	n := numbers{replicas: int(ptr.Deref(set.Spec.Replicas, 1))} // 1 is the API's default
	if set.Spec.Ordinals != nil {
		n.start = int(set.Spec.Ordinals.Start)
	}

	return n
}

// share returns the share of the process with this ordinal. It is empty if the ordinal is not one of the replicas.
func (n numbers) share(ordinal int) share {
	if ordinal < n.start || ordinal-n.start >= n.replicas {
		return share{}
	}

	return share{index: ordinal - n.start, replicas: n.replicas}
}
