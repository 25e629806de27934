// Package ringtest sets up a ring on a real API server for tests of the rebalancer, and plays its shards and users.
//
// It knows nothing of the services and their types: what a ring is, and who owns an object, tests tell it.
package ringtest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// Kind describes to a [Fixture] what a ring is. All fields are required.
type Kind[R client.Object] struct {
	// New returns a ring of ConfigMaps, which control Secrets, that selects the namespaces with a label.
	New func(name string, namespaces map[string]string) R
	// Labels returns the keys of the labels that assign an object to a shard of the ring, and that ask the shard to
	// release it.
	Labels func(R) (shard, drain string)
	// Announced returns the key of the shard label that shards announce in their Leases; empty for none.
	Announced func(R) string
	// Conditions returns the conditions of the status.
	Conditions func(R) []metav1.Condition
}

// Fixture is one ring on the real API server, in a namespace of its own: ConfigMaps are its main resource, Secrets are
// its controlled resource. Create it with New. Its methods fail the test on any error; they are not safe for
// concurrent use.
type Fixture[R client.Object] struct {
	*testing.T
	// Plane is the control plane, which the tests of a package share. The client has all rights.
	Plane  *localplane.Plane
	Client client.Client
	// Ring is the ring as it was last written or read.
	Ring R
	// Namespace is the only namespace with objects of the ring.
	Namespace string
	// Shards are removed with the ring.
	Shards map[string]*leasetest.Shard

	kind Kind[R]
}

// New creates a ring, after the given changes to it, and a namespace that it selects. Both last until the test ends.
func New[R client.Object](t *testing.T, kind Kind[R], change ...func(R)) *Fixture[R] {
	t.Helper()

	plane := localplane.Shared(t)
	require.NoError(t, plane.Install(t.Context(), "services/rebalancer/testdata/rights.yaml"))

	w := &Fixture[R]{
		T: t, Plane: plane, Client: plane.Client, Namespace: plane.Namespace(t),
		Shards: map[string]*leasetest.Shard{}, kind: kind,
	}
	selected := map[string]string{"ring": w.Namespace}
	w.Ring = kind.New("ring-"+w.Namespace, selected)

	for _, c := range change {
		c(w.Ring)
	}

	w.LabelNamespace(selected)
	require.NoError(t, w.Client.Create(t.Context(), w.Ring))
	t.Cleanup(w.removeRing)

	return w
}

// LabelNamespace replaces the labels of the namespace.
func (w *Fixture[R]) LabelNamespace(labels map[string]string) {
	w.Helper()

	ns := &corev1.Namespace{}
	require.NoError(w, w.Client.Get(w.Context(), types.NamespacedName{Name: w.Namespace}, ns))
	ns.Labels = labels
	require.NoError(w, w.Client.Update(w.Context(), ns))
}

// removeRing removes the ring for later tests, whatever state it is in.
func (w *Fixture[R]) removeRing() {
	ctx := context.Background()
	none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	require.NoError(w, client.IgnoreNotFound(w.Client.Patch(ctx, w.Ring, none)))
	require.NoError(w, client.IgnoreNotFound(w.Client.Delete(ctx, w.Ring)))

	for _, s := range w.Shards {
		require.NoError(w, client.IgnoreNotFound(s.Delete(ctx)))
	}
}

// Join makes shards acquire their Leases.
func (w *Fixture[R]) Join(names ...string) {
	w.Helper()

	for _, name := range names {
		if w.Shards[name] == nil {
			w.Shards[name] = w.Shard(name, 0)
		}

		require.NoError(w, w.Shards[name].Acquire(w.Context()))
	}
}

// Leases returns the current Leases of the ring's shards.
func (w *Fixture[R]) Leases() []*coordinationv1.Lease {
	w.Helper()

	var list coordinationv1.LeaseList
	require.NoError(w, w.Client.List(w.Context(), &list,
		client.MatchingLabels{"alpha.sharding.timebertt.dev/clusterring": w.Ring.GetName()}))

	leases := make([]*coordinationv1.Lease, 0, len(list.Items))
	for i := range list.Items {
		leases = append(leases, &list.Items[i])
	}

	return leases
}

// NamesOf returns n names of ConfigMaps that belong to the shard. owner returns the shard of a ConfigMap, given its
// name.
func (w *Fixture[R]) NamesOf(shard string, n int, owner func(name string) string) []string {
	w.Helper()

	var names []string

	for i := 0; len(names) < n; i++ {
		require.Less(w, i, 10_000, "shard %s owns nothing", shard)

		if name := fmt.Sprintf("main-%s-%d", shard, i); owner(name) == shard {
			names = append(names, name)
		}
	}

	return names
}

// Main creates a ConfigMap at a shard; with "" it is unassigned.
func (w *Fixture[R]) Main(name, shard string) *corev1.ConfigMap {
	w.Helper()

	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name, Labels: w.Labels(shard)}}
	require.NoError(w, w.Client.Create(w.Context(), cm))

	return cm
}

// Child creates a Secret that the ConfigMap controls, at a shard; with "" it is unassigned.
func (w *Fixture[R]) Child(of *corev1.ConfigMap, shard string) *corev1.Secret {
	w.Helper()

	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name, Labels: w.Labels(shard)}}
	require.NoError(w, controllerutil.SetControllerReference(of, s, w.Client.Scheme()))
	require.NoError(w, w.Client.Create(w.Context(), s))

	return s
}

// Labels returns the labels of an object at a shard; with "", none.
func (w *Fixture[R]) Labels(shard string) map[string]string {
	if shard == "" {
		return nil
	}

	key, _ := w.kind.Labels(w.Ring)

	return map[string]string{key: shard}
}

// Placed is the content of the ring's labels of an object.
type Placed struct {
	Shard string
	Drain bool
}

// Placed reads an object, and returns where it is.
func (w *Fixture[R]) Placed(obj client.Object) Placed {
	w.Helper()
	require.NoError(w, w.Client.Get(w.Context(), client.ObjectKeyFromObject(obj), obj))

	shardLabel, drainLabel := w.kind.Labels(w.Ring)
	_, drain := obj.GetLabels()[drainLabel]

	return Placed{Shard: obj.GetLabels()[shardLabel], Drain: drain}
}

// Eventually waits until the objects are placed as wanted.
func (w *Fixture[R]) Eventually(want Placed, objs ...client.Object) {
	w.Helper()

	for _, obj := range objs {
		require.Eventually(w, func() bool { return w.Placed(obj) == want }, 20*time.Second, 10*time.Millisecond,
			"%T %s should become %+v", obj, obj.GetName(), want)
	}
}

// Acknowledge does what a shard does with a drained object.
func (w *Fixture[R]) Acknowledge(obj client.Object) {
	w.Helper()

	shardLabel, drainLabel := w.kind.Labels(w.Ring)
	body := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"labels":{%q:null,%q:null}}}`, obj.GetResourceVersion(),
		shardLabel, drainLabel)
	require.NoError(w, w.Client.Patch(w.Context(), obj, client.RawPatch(types.MergePatchType, []byte(body))))
}

// Assigned waits until the condition Assigned has a reason, and returns it.
func (w *Fixture[R]) Assigned(reason string) metav1.Condition {
	w.Helper()

	var c *metav1.Condition

	require.Eventually(w, func() bool {
		require.NoError(w, w.Client.Get(w.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
		c = meta.FindStatusCondition(w.kind.Conditions(w.Ring), "Assigned")

		return c != nil && c.Reason == reason
	}, 30*time.Second, 20*time.Millisecond, "the condition Assigned should have the reason %s; last: %+v", reason, &c)

	return *c
}

// Versions returns the resource versions of objects, to detect writes.
func (w *Fixture[R]) Versions(objs ...client.Object) []string {
	w.Helper()

	var all []string

	for _, o := range objs {
		w.Placed(o)
		all = append(all, o.GetName()+"@"+o.GetResourceVersion())
	}

	return slices.Clip(all)
}

// Foreign returns a Secret that an object of no ring controls.
func Foreign(ns, name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name,
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "Deployment", Name: "other", UID: "other", Controller: new(true),
		}}}}
}

// Shard returns a shard that has not joined. If d is 0, its Lease has the usual duration.
func (w *Fixture[R]) Shard(name string, d time.Duration) *leasetest.Shard {
	return &leasetest.Shard{
		Client: w.Client, Ring: w.Ring.GetName(), Namespace: w.Namespace, Name: name, Duration: d,
		ShardLabel: w.kind.Announced(w.Ring),
	}
}
