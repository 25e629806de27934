package leasemonitor

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/leasemonitor/parameters"
)

// TestParameterOfAFence shows how a fence gets to know its ring, whatever others do to what it knows.
func TestParameterOfAFence(t *testing.T) {
	w := newWorld(t)
	left := &v1alpha1.PolicyParameter{}
	left.Name, left.Labels = contract.FenceName("gone-"+w.ns), map[string]string{contract.LabelClusterRing: "gone-" + w.ns}
	require.NoError(t, w.plane.Client.Create(t.Context(), left))
	w.run()

	key := client.ObjectKey{Name: contract.FenceName(w.ring)}

	parameter := func() *v1alpha1.PolicyParameter {
		m := &v1alpha1.PolicyParameter{}
		require.NoError(t, client.IgnoreNotFound(w.plane.Client.Get(t.Context(), key, m)))

		return m
	}

	var holders []v1alpha1.ShardHolder

	right := func(because string) {
		t.Helper()
		require.Eventually(t, func() bool {
			got, r := parameter(), w.get()

			return got.Labels[contract.LabelClusterRing] == w.ring && len(got.OwnerReferences) == 1 &&
				got.OwnerReferences[0].UID == r.UID &&
				maps.Equal(got.Data, clusterring.FenceParameter(r, holders).Data)
		}, patience, interval, because)
	}

	w.waitShards(0, 0)
	require.Empty(t, parameter().Name, "a ring without a fence needs none")

	w.update(func(r *v1alpha1.ClusterRing) {
		r.Spec.Fence = &v1alpha1.Fence{Mode: v1alpha1.FenceEnforce,
			ServiceAccounts: []v1alpha1.ServiceAccountReference{{Namespace: w.ns, Name: "controller"}}}
	})
	right("it is created")
	require.Eventually(t, func() bool {
		return apierrors.IsNotFound(w.plane.Client.Get(t.Context(), client.ObjectKeyFromObject(left), left))
	}, patience, interval, "the garbage collector cannot remove that of a deleted ring, because the ring's kind may be gone")

	shard, _ := w.join("slot-0", patience)
	w.runs(shard.Name, "pod-x")

	holders = []v1alpha1.ShardHolder{{Shard: "slot-0", Pod: "pod-x"}}
	right("it names the Pods of shards")

	for what, change := range map[string]func(*v1alpha1.PolicyParameter){
		"an account": func(m *v1alpha1.PolicyParameter) { m.Data["accounts"] += "\nsomebody" },
		"a holder":   func(m *v1alpha1.PolicyParameter) { m.Data["holder.slot-1"] = "stranger" },
		"the rest": func(m *v1alpha1.PolicyParameter) {
			m.Data, m.OwnerReferences = nil, nil
		},
		"the label": func(m *v1alpha1.PolicyParameter) {
			m.Labels, m.Data = nil, map[string]string{"holder.slot-0": "stranger"}
		},
	} {
		edited := parameter()
		change(edited)
		require.NoError(t, w.plane.Client.Update(t.Context(), edited))
		right("it is restored after an edit of " + what)
	}

	require.NoError(t, w.plane.Client.Delete(t.Context(), parameter()))
	right("it is restored after its deletion")

	w.update(func(r *v1alpha1.ClusterRing) { r.Finalizers = []string{contract.FinalizerRebalancer} })
	require.NoError(t, w.plane.Client.Delete(t.Context(), w.get()))
	require.Eventually(t, func() bool { return parameter().Data["deleting"] == "true" }, patience, interval,
		"a ring that is being deleted keeps it")

	w.update(func(r *v1alpha1.ClusterRing) { r.Spec.Fence = nil })
	require.Eventually(t, func() bool { return parameter().Name == "" }, patience, interval,
		"a ring whose fence is gone needs none")
	w.update(func(r *v1alpha1.ClusterRing) { r.Finalizers = nil })
}

// TestStatusDoesNotChangeAFence: a writer of a ring's status does not decide who may write its objects. The
// Leases say which Pod runs which shard.
func TestStatusDoesNotChangeAFence(t *testing.T) {
	w := newWorld(t)
	c := w.plane.Client
	ring := w.get()
	ring.Spec.Fence = &v1alpha1.Fence{Mode: v1alpha1.FenceEnforce,
		ServiceAccounts: []v1alpha1.ServiceAccountReference{{Namespace: w.ns, Name: "controller"}}}
	require.NoError(t, c.Update(t.Context(), ring))

	ring.Status.Holders = []v1alpha1.ShardHolder{{Shard: "slot-0", Pod: "thief"}, {Shard: "slot-1", Pod: "thief"}}
	require.NoError(t, c.Status().Update(t.Context(), ring))

	shard, _ := w.join("slot-0", patience)
	w.runs(shard.Name, "pod-x")

	reconciler := &parameters.Reconciler{Client: c, Restores: kit.NewRestores(clock.RealClock{})}
	_, err := reconciler.Reconcile(t.Context(), clusterring.Request(w.ring))
	require.NoError(t, err)

	parameter := &v1alpha1.PolicyParameter{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: contract.FenceName(w.ring)}, parameter))
	require.Equal(t, clusterring.FenceParameter(ring, []v1alpha1.ShardHolder{{Shard: "slot-0", Pod: "pod-x"}}).Data,
		parameter.Data)
}

// TestParameterAboutShards shows how the policy about the Leases of shards gets to know all rings.
func TestParameterAboutShards(t *testing.T) {
	w := newWorld(t)
	w.run()

	says := func(namespaces, unbound, because string) {
		t.Helper()
		require.Eventually(t, func() bool {
			data := w.described()
			got, known := data["namespaces."+w.ring]

			return known && got == namespaces && data["unbound."+w.ring] == unbound
		}, patience, interval, because)
	}
	says("", "", "every ring is described")
	w.update(func(r *v1alpha1.ClusterRing) { r.Spec.ShardNamespaces = []string{"one", "two"} })
	says("one\ntwo", "", "namespaces are listed")
	w.update(func(r *v1alpha1.ClusterRing) {
		r.Annotations = map[string]string{contract.AnnotationUnboundShards: "true"}
	})
	says("one\ntwo", "true", "shards may have tokens without a Pod")

	w.update(func(r *v1alpha1.ClusterRing) {
		r.Spec.Fence = &v1alpha1.Fence{Mode: v1alpha1.FenceAudit,
			ServiceAccounts: []v1alpha1.ServiceAccountReference{{Namespace: "one", Name: "c"}}}
	})
	require.Eventually(t, func() bool { return w.described()["accounts."+w.ring] == "system:serviceaccount:one:c" },
		patience, interval)

	require.Eventually(t, func() bool { return len(w.pages()) == 1 }, patience, interval)

	edited := w.pages()[0]
	edited.Data["namespaces."+w.ring], edited.Data["namespaces.none"] = "three", ""
	require.NoError(t, w.plane.Client.Update(t.Context(), &edited))
	says("one\ntwo", "true", "an edit is undone")
	require.NotContains(t, w.described(), "namespaces.none")

	require.NoError(t, w.plane.Client.Delete(t.Context(), &w.pages()[0]))
	says("one\ntwo", "true", "it is restored after its deletion")

	ring := &v1alpha1.ClusterRing{}
	ring.Name = w.ring
	require.NoError(t, w.plane.Client.Delete(t.Context(), ring))
	require.Eventually(t, func() bool {
		_, known := w.described()["namespaces."+w.ring]
		return !known
	}, patience, interval, "a ring that is gone is forgotten")
}

// get reads the ring.
func (w *world) get() *v1alpha1.ClusterRing {
	w.t.Helper()

	ring := &v1alpha1.ClusterRing{}
	require.NoError(w.t, w.plane.Client.Get(w.t.Context(), client.ObjectKey{Name: w.ring}, ring))

	return ring
}

// update changes the ring.
func (w *world) update(change func(*v1alpha1.ClusterRing)) {
	w.t.Helper()

	ring := w.get()
	before := ring.DeepCopy()
	change(ring)
	require.NoError(w.t, w.plane.Client.Patch(w.t.Context(), ring, client.MergeFrom(before)))
}

// runs writes which Pod runs a shard.
func (w *world) runs(shard, pod string) {
	w.t.Helper()

	l := w.lease(shard)
	before := l.DeepCopy()
	l.Annotations = map[string]string{contract.AnnotationPod: pod}
	require.NoError(w.t, w.plane.Client.Patch(w.t.Context(), l, client.MergeFrom(before)))
}

// pages returns the parameters about shards.
func (w *world) pages() []v1alpha1.PolicyParameter {
	w.t.Helper()

	all := &v1alpha1.PolicyParameterList{}
	require.NoError(w.t, w.plane.Client.List(w.t.Context(), all))

	return slices.DeleteFunc(all.Items, func(m v1alpha1.PolicyParameter) bool {
		return !strings.HasPrefix(m.Name,
			contract.ShardsParameter)
	})
}

// described returns what the parameters say if all of them agree about each ring. While they are replaced, they may
// not.
func (w *world) described() map[string]string {
	w.t.Helper()

	out := map[string]string{}

	for _, page := range w.pages() {
		delete(page.Data, "from")
		delete(page.Data, "to")

		for key, value := range page.Data {
			if before, known := out[key]; known && before != value {
				return nil
			}

			out[key] = value
		}
	}

	return out
}

// TestManyLargeRings: what the policies must know of these rings is more than the API server accepts as one object.
func TestManyLargeRings(t *testing.T) {
	const count = 30

	w := newWorld(t)
	former := &v1alpha1.PolicyParameter{Data: map[string]string{"namespaces." + w.ring: "former", "namespaces.gone": ""}}
	former.Name = contract.ShardsParameter
	require.NoError(t, w.plane.Client.Create(t.Context(), former))

	rings := make([]*v1alpha1.ClusterRing, 0, count)
	for i := range count {
		rings = append(rings, largest(w.ns, i))
		require.NoError(t, w.plane.Client.Create(t.Context(), rings[i]))
	}

	w.run()

	known := func() (all map[string]bool) {
		all = map[string]bool{}

		for key := range w.described() {
			if ring, is := strings.CutPrefix(key, "namespaces."); is && (ring == w.ring || ring == "gone" ||
				strings.HasPrefix(ring, w.ns)) {
				all[ring] = true
			}
		}

		return all
	}

	require.Eventually(t, func() bool {
		return len(known()) == count+1 && apierrors.IsNotFound(w.plane.Client.Get(t.Context(),
			client.ObjectKeyFromObject(former), &v1alpha1.PolicyParameter{}))
	}, patience, interval, "the parameters contain every ring, and the one of the former version is gone")
	require.NotContains(t, known(), "gone")

	pages := w.pages()
	require.Greater(t, len(pages), 3)

	for i := range pages {
		content, err := json.Marshal(&pages[i])
		require.NoError(t, err)
		require.Less(t, len(content), 1<<20)
	}

	for _, r := range rings {
		require.NoError(t, w.plane.Client.Delete(t.Context(), r))
	}

	require.NoError(t, w.plane.Client.Delete(t.Context(),
		&v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: w.ring}}))
	require.Eventually(t, func() bool { return len(known()) == 0 && len(w.pages()) < 2 }, patience, interval,
		"rings that are gone leave nothing")
}

// largest is a ring of which the policies must know as much as the API allows.
func largest(ns string, number int) *v1alpha1.ClusterRing {
	long := func(i int) string { return strings.Repeat("x", 58) + fmt.Sprintf("%05d", i) }
	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s-%02d", ns,
		strings.Repeat("n", 63-len(ns)-4), number)}}
	ring.Annotations = map[string]string{contract.AnnotationUnboundShards: "true"}
	ring.Spec.Resources = []v1alpha1.RingResource{{Resource: "configmaps"}}
	ring.Spec.ShardLabel = strings.Join([]string{strings.Repeat("d", 63), strings.Repeat("e", 63),
		strings.Repeat("f", 63), ns, "com"}, ".") +
		"/" + strings.Repeat("k", 50) + fmt.Sprintf("%04d", number)
	ring.Spec.Fence = &v1alpha1.Fence{Mode: v1alpha1.FenceAudit}

	for i := range 64 {
		ring.Spec.ShardNamespaces = append(ring.Spec.ShardNamespaces, long(i))
	}

	for i := range 1000 {
		ring.Spec.ShardNames = append(ring.Spec.ShardNames, long(i))
	}

	for i := range 16 {
		ring.Spec.Fence.ServiceAccounts = append(ring.Spec.Fence.ServiceAccounts, v1alpha1.ServiceAccountReference{
			Namespace: long(i), Name: strings.Repeat("a", 253),
		})
	}

	return ring
}

// TestPagesAreBounded: no parameter is too large for the API server, and every name is within the limits of exactly
// one.
func TestPagesAreBounded(t *testing.T) {
	for what, count := range map[string]int{"large": 1000, "small": 20_000} {
		t.Run(what, func(t *testing.T) {
			ring := largest("many", 0)
			if what == "small" {
				ring.Spec = v1alpha1.ClusterRingSpec{ShardNamespaces: []string{"one"}}
			}

			all := make([]v1alpha1.ClusterRing, 0, count)

			for i := range count {
				ring.Name = fmt.Sprintf("ring-%05d", (i*7919)%count)
				all = append(all, *ring)
			}

			pages := parameters.Pages(all)
			t.Logf("%d rings: %d pages", count, len(pages))
			require.Equal(t, count, bounded(t, pages))
			slices.Reverse(all)
			require.Equal(t, pages, parameters.Pages(all), "the order of rings does not matter")
		})
	}

	require.Empty(t, parameters.Pages(nil))
}

// bounded returns how many rings the parameters describe.
func bounded(t *testing.T, pages []*v1alpha1.PolicyParameter) (rings int) {
	t.Helper()

	names := map[string]bool{}

	for i, page := range pages {
		require.False(t, names[page.Name])
		names[page.Name] = true

		from, limited := page.Data["from"]
		require.Equal(t, i > 0, limited)

		if i > 0 {
			require.Equal(t, pages[i-1].Data["to"], from, "there is no name between two pages")
		}

		to, limited := page.Data["to"]
		require.Equal(t, i < len(pages)-1, limited)

		size := 0

		for key, value := range page.Data {
			size += len(key) + len(value)

			if ring, is := strings.CutPrefix(key, "namespaces."); is {
				rings++

				require.True(t, ring >= from && (to == "" || ring < to), "%s is not from %s to %s", ring, from, to)
			}
		}

		require.Less(t, size, 257<<10)
	}

	return rings
}
