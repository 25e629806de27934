package ordinal

import (
	"hash/crc32"

	"github.com/cespare/xxhash/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Hash returns a number from which follows which process an object belongs to: that with the remainder of the division by the number of replicas.
// It gets the group and kind of the object, and the object, of which it may use only what never changes: the name, the namespace, the uid, and the
// owner references. It must return the same number in every process and version, and must be safe for concurrent use.
type Hash func(gk schema.GroupKind, obj metav1.Object) uint64

// UID is the CRC-32 checksum (IEEE polynomial) of the object's uid. An object that is deleted and created again may belong to another process than
// before.
func UID(_ schema.GroupKind, obj metav1.Object) uint64 {
	return uint64(crc32.ChecksumIEEE([]byte(obj.GetUID())))
}

// ControllerUID is [UID] of what controls the object, as its controller owner reference says, or of the object itself if nothing does. With it, an
// object and what it controls belong to the same process, so that controllers of both kinds can run. It looks at one level only.
func ControllerUID(gk schema.GroupKind, obj metav1.Object) uint64 {
	if controller := metav1.GetControllerOfNoCopy(obj); controller != nil {
		return uint64(crc32.ChecksumIEEE([]byte(controller.UID)))
	}

	return UID(gk, obj)
}

// Key is the xxHash64 of the object's key, group/kind/namespace/name, which is also what a ring assigns objects by. It is known before the object
// exists. It has nothing to do with the shard that a ring chooses for the key.
func Key(gk schema.GroupKind, obj metav1.Object) uint64 {
	return xxhash.Sum64String(gk.Group + "/" + gk.Kind + "/" + obj.GetNamespace() + "/" + obj.GetName())
}

// share is the part of all objects that a process may work on. The zero value is no object.
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
	version         string // the resourceVersion of the StatefulSet
}

// share returns the share of the process with this ordinal. It reports false if it has none.
func (n numbers) share(ordinal int) (share, bool) {
	if ordinal < n.start || ordinal-n.start >= n.replicas {
		return share{}, false
	}

	return share{index: ordinal - n.start, replicas: n.replicas}, true
}

// same reports whether the numbers give the same shares.
func (n numbers) same(o numbers) bool { return n.start == o.start && n.replicas == o.replicas }
