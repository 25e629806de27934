package simulation

import (
	"context"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
)

// lately is how long the rebalancer may not know about a child that was created, or that has got another owner.
const lately = 5 * time.Second

const (
	// plainShard is a shard that uses another library: it announces no hold-off, and ignores the handover annotation.
	plainShard = "shard-b"
	// behind is how long an object stays behind the last of those that follow it to such a shard.
	behind = 250 * time.Millisecond
)

// checkOrder checks I9 for a write of the rebalancer: the objects that follow an object reach its shard before it, and
// some time before it if the shard ignores the handover annotation. The lock of the cluster is held.
func (w *Cluster) checkOrder(write apiserver.Write) {
	if write.Old == nil || write.New == nil || !strings.HasPrefix(write.Client, "rebalancer/") {
		return
	}

	to := write.New.Labels[shardLabel]
	if to == "" || to == write.Old.Labels[shardLabel] {
		return
	}

	w.moved[write.New.UID] = w.clock.Now()

	if w.ring == nil || !parent(w.ring.Spec.Resources, write.GroupResource) || w.hampered() || w.restless() {
		return
	}

	controllers := map[types.UID]*metav1.OwnerReference{}
	write.Others(func(_ apiserver.ID, o *metav1.PartialObjectMetadata) {
		controllers[o.UID] = metav1.GetControllerOfNoCopy(o)
	})

	write.Others(func(id apiserver.ID, o *metav1.PartialObjectMetadata) {
		since := w.clock.Since(w.moved[o.UID])

		arrived := o.Labels[shardLabel] == to && (to != plainShard || since >= behind)
		if arrived || !w.follows(id, o, write.New.UID, controllers) {
			return
		}

		if w.covered(id.Namespace) && !w.touched[id.String()] && w.clock.Since(w.changed[o.UID]) > lately {
			w.violate(Order, "%s comes to %s, and %s is at %q, since %s", write.ID, to, id, o.Labels[shardLabel], since)
		}
	})
}

// follows reports whether an object of a controlled resource follows the object with the UID, directly or through
// others. An object that follows an object which a user has just touched is not expected to. The lock is held.
func (w *Cluster) follows(id apiserver.ID, o *metav1.PartialObjectMetadata, owner types.UID,
	controllers map[types.UID]*metav1.OwnerReference) bool {
	uid := o.UID

	for range contract.MaxDepth - 1 {
		role, ok := roleIn(w.ring.Spec.Resources, id.GroupResource)
		ref := controllers[uid]

		switch {
		case !ok || role != resources.Controlled || ref == nil || w.clock.Since(w.changed[uid]) <= lately:
			return false
		case ref.UID == owner:
			return true
		}

		uid, id = ref.UID, object(resourceOf(ref.Kind), id.Namespace, ref.Name)
	}

	return false
}

// covered reports whether the ring covers a namespace. The lock is held.
func (w *Cluster) covered(namespace string) bool {
	selector, err := metav1.LabelSelectorAsSelector(w.ring.Spec.EffectiveNamespaceSelector())

	return err == nil && (namespace == "" || selector.Matches(labels.Set(namespaceLabels(namespace, w.teams[namespace]))))
}

// restless reports whether the ring, or the definition of its resources, has changed so recently that the rebalancer
// may not know.
func (w *Cluster) restless() bool {
	now := w.now()

	return w.h.Lasting == Refused || slices.ContainsFunc(w.h.Steps, func(s Step) bool {
		switch s.Act { //nolint:exhaustive // other acts do not change this
		case EditRing, CreateRing, Team, Serve, Withdraw, Break, Remove, Rescope:
			return s.At <= now && now <= s.At+s.For+30*time.Second
		}

		return false
	})
}

// parent reports whether other objects may follow the main objects of the resource.
func parent(list []v1alpha1.RingResource, gr schema.GroupResource) bool {
	role, ok := roleIn(list, gr)

	return ok && role == resources.Main && slices.ContainsFunc(list,
		func(r v1alpha1.RingResource) bool { return len(r.ControlledResources) > 0 })
}

// line returns the objects that an object follows, controller first. The last one may not exist.
func (w *Cluster) line(id apiserver.ID, o *metav1.PartialObjectMetadata) (line []apiserver.ID) {
	for o != nil && len(line) < contract.MaxDepth {
		if id = w.scoped(ownerID(id, o)); id.Name == "" {
			return line
		}

		line = append(line, id)
		o = w.server.Object(id)
	}

	return line
}

// stored returns a stored object, nil if there is none. As [resources.Ancestors], it returns the controllers of
// objects.
type stored func(apiserver.ID) *metav1.PartialObjectMetadata

// ControllerOf implements [resources.Ancestors].
func (s stored) ControllerOf(_ context.Context, of resources.Owner) (controller *metav1.OwnerReference,
	found bool, err error) {
	o := s(apiserver.ID{GroupResource: of.Resource.GroupResource(), Namespace: of.Namespace, Name: of.Name})
	if o == nil || o.UID != of.UID {
		return nil, false, nil
	}

	return metav1.GetControllerOf(o), true, nil
}

// LabelsOf implements [resources.Ancestors].
func (s stored) LabelsOf(_ context.Context, of resources.Owner) (labels resources.Labels, found bool, err error) {
	o := s(apiserver.ID{GroupResource: of.Resource.GroupResource(), Namespace: of.Namespace, Name: of.Name})
	if o == nil || o.UID != of.UID {
		return labels, false, nil
	}

	return resources.Labels{All: o.Labels, Selected: of.Resource.Selects(o.Labels)}, true, nil
}

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
