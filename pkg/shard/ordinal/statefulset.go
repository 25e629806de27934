package ordinal

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	appsv1client "k8s.io/client-go/kubernetes/typed/apps/v1"
	"k8s.io/utils/ptr"
)

// Hash returns a number from which follows which Pod an object belongs to: that with the remainder of the division by the number of replicas. It gets the
// group and kind of the object, and the object. It must return the same number as the controller that shares objects by ordinals, and must be safe for
// concurrent use. With a hash of the uid, an object that is made anew may get another Pod while a reconcile of the old one still runs.
type Hash func(gk schema.GroupKind, obj metav1.Object) uint64

// Key is the xxHash64 of the object's key, group/kind/namespace/name. It has nothing to do with the shard that a ring chooses for the key.
func Key(gk schema.GroupKind, obj metav1.Object) uint64 {
	return xxhash.Sum64String(gk.Group + "/" + gk.Kind + "/" + obj.GetNamespace() + "/" + obj.GetName())
}

var errNoOrdinal = errors.New("only Pods of a StatefulSet have an ordinal, as web-0 does, and the shard must have the name of its Pod: " +
	"use shard.NewManager without a name and without slots")

// pod is the Pod of a StatefulSet.
type pod struct {
	sets    appsv1client.StatefulSetInterface
	set     string // the name of the StatefulSet
	ordinal int
}

// podOf returns the Pod with a name.
func podOf(name string, sets appsv1client.StatefulSetInterface) (pod, error) {
	i := strings.LastIndexByte(name, '-')
	if i <= 0 {
		return pod{}, fmt.Errorf("the name %q contains no ordinal: %w", name, errNoOrdinal)
	}

	n, err := strconv.ParseUint(name[i+1:], 10, 31)
	if err != nil || strconv.FormatUint(n, 10) != name[i+1:] {
		return pod{}, fmt.Errorf("the name %q does not end with an ordinal: %w", name, errNoOrdinal)
	}

	return pod{sets, name[:i], int(n)}, nil
}

// named returns the name of the Pod with an ordinal.
func (p pod) named(ordinal int) string { return p.set + "-" + strconv.Itoa(ordinal) }

// share reads the StatefulSet, and returns the share of this Pod.
func (p pod) share(ctx context.Context) (share, error) {
	found, err := p.sets.Get(ctx, p.set, metav1.GetOptions{})

	switch {
	case apierrors.IsNotFound(err):
		return share{}, fmt.Errorf("no StatefulSet %s exists, which Pod %s should belong to: %w", p.set, p.named(p.ordinal), errNoOrdinal)
	case apierrors.IsForbidden(err):
		return share{}, fmt.Errorf("the service account may not read StatefulSet %s: grant get on statefulsets (API group apps, resource name %s) by a Role: %w",
			p.set, p.set, err)
	case err != nil:
		return share{}, fmt.Errorf("read StatefulSet %s: %w", p.set, err)
	}

	return shareOf(found, p.ordinal), nil
}

// share is the part of all objects that a Pod works on.
type share struct {
	start           int // the first ordinal
	index, replicas int // there are no replicas if the ordinal is not one of them: then, the share is empty
}

// shareOf returns the share of an ordinal.
func shareOf(set *appsv1.StatefulSet, ordinal int) share {
	s := share{replicas: int(ptr.Deref(set.Spec.Replicas, 1))} // 1 is the API's default
	if set.Spec.Ordinals != nil {
		s.start = int(set.Spec.Ordinals.Start)
	}

	if s.index = ordinal - s.start; s.index < 0 || s.index >= s.replicas {
		s.index, s.replicas = 0, 0
	}

	return s
}

// owns reports whether an object with this hash belongs to the share.
func (s share) owns(hash uint64) bool {
	return s.replicas > 0 && hash%uint64(s.replicas) == uint64(s.index) //nolint:gosec // neither is negative
}
