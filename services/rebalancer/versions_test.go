package rebalancer

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

const travellers = "versions.example.clusterring.dev"

// in returns an empty Traveller in a version.
func (w *testRing) in(version, name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: travellers, Version: version, Kind: "Traveller"})
	u.SetNamespace(w.Namespace)
	u.SetName(name)

	return u
}

// placements records the successive placements of the travellers of a namespace.
type placements struct {
	watch watch.Interface
	ring  string
	seen  map[string][]ringtest.Placed
	// writes counts the writes to each traveller after its creation.
	writes map[string]int
}

func (w *testRing) watchTravellers() *placements {
	w.Helper()

	c, err := client.NewWithWatch(w.Plane.Config, client.Options{Scheme: w.Client.Scheme()})
	require.NoError(w, err)

	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: travellers, Version: "v1", Kind: "TravellerList"})

	watched, err := c.Watch(w.Context(), list, client.InNamespace(w.Namespace))
	require.NoError(w, err)
	w.Cleanup(watched.Stop)

	return &placements{watch: watched, ring: w.Ring.Name, seen: map[string][]ringtest.Placed{}, writes: map[string]int{}}
}

// until receives events until every named object was seen in the given place.
func (p *placements) until(t *testing.T, want map[string]ringtest.Placed) {
	t.Helper()

	last := map[string]ringtest.Placed{}
	done := func() bool {
		for name, at := range want {
			if last[name] != at {
				return false
			}
		}

		return true
	}

	for name, all := range p.seen {
		last[name] = all[len(all)-1]
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	for !done() {
		select {
		case e := <-p.watch.ResultChan():
			o, ok := e.Object.(client.Object)
			require.True(t, ok)

			_, drain := o.GetLabels()[contract.DrainLabel(p.ring)]
			now := ringtest.Placed{Shard: o.GetLabels()[contract.ShardLabel(p.ring)], Drain: drain}
			p.seen[o.GetName()] = append(p.seen[o.GetName()], now)
			last[o.GetName()] = now

			if e.Type == watch.Modified {
				p.writes[o.GetName()]++
			}
		case <-ctx.Done():
			require.Failf(t, "timeout", "want %v, have %v", want, p.seen)
		}
	}
}

// In a ring with several resources, one is served in two versions: an object is the same in both, has one key and moves once.
func TestResourceOfSeveralVersions(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: travellers, Resource: "travellers"})
	})
	require.NoError(t, w.Plane.Install(t.Context(), "services/rebalancer/testdata/travellers.yaml"))
	w.Join("a", "b", "c")

	ownerOf := func(name string) string {
		shard, ok := w.View().Owner(key.Key{Group: travellers, Kind: "Traveller", Namespace: w.Namespace, Name: name})
		require.True(t, ok)

		return shard
	}

	moves := w.watchTravellers()
	want := map[string]ringtest.Placed{}
	secrets := map[string]*corev1.Secret{}

	names := []string{"one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"}
	for i := range 12 { // enough that some belong to each shard
		names = append(names, fmt.Sprintf("more-%d", i))
	}

	for i, name := range names {
		o := w.in([]string{"v1alpha1", "v1"}[i%2], name)
		require.NoError(t, w.Client.Create(t.Context(), o))

		want[name] = ringtest.Placed{Shard: ownerOf(name)}
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "of-" + name}}
		require.NoError(t, controllerutil.SetControllerReference(o, s, w.Client.Scheme()))
		require.NoError(t, w.Client.Create(t.Context(), s))

		secrets[name] = s
	}

	w.start()
	moves.until(t, want)
	w.AtRest()

	for name, at := range want {
		w.Eventually(at, w.in("v1alpha1", name), w.in("v1", name), secrets[name])
		require.Equal(t, []ringtest.Placed{{}, at}, moves.seen[name], "%s should be assigned once", name)
	}

	// A shard leaves, and its objects move; then it comes back and gets them back.
	before := want
	require.NoError(t, w.Shards["c"].Release(t.Context()))

	want, moved := map[string]ringtest.Placed{}, map[string]ringtest.Placed{}
	for _, name := range names {
		if want[name] = (ringtest.Placed{Shard: ownerOf(name)}); want[name] != before[name] {
			moved[name] = want[name]
		}
	}

	require.NotEmpty(t, moved)
	moves.until(t, want)
	w.AtRest()
	w.Join("c")

	for name, at := range moved {
		at.Drain = true
		moves.until(t, map[string]ringtest.Placed{name: at})

		// The shard may know the object in either version.
		for _, version := range []string{"v1", "v1alpha1"} {
			w.Eventually(at, w.in(version, name))
		}

		o := w.in("v1", name)
		require.Equal(t, at, w.Placed(o))
		w.Acknowledge(o)
	}

	moves.until(t, before)
	w.AtRest()

	for _, name := range names {
		w.Eventually(before[name], w.in("v1alpha1", name), w.in("v1", name), secrets[name])

		all := []ringtest.Placed{{}, before[name]}
		if at, ok := moved[name]; ok {
			// Its shard announces no hold-off, so it loses its label before its Secret moves.
			all = append(all, ringtest.Placed{}, at, ringtest.Placed{Shard: at.Shard, Drain: true}, ringtest.Placed{}, before[name])
		}

		require.Equal(t, all, moves.seen[name], "%s should move once each time", name)
		require.Equal(t, len(all)-1, moves.writes[name])
	}
}
