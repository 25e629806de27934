package embedded

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// BenchmarkAssignment measures the time from when a create of an object returns to the user until a watch shows its
// shard: what an embedded sharder adds to the time of the webhook's assignment, which is in the create. It does so for
// a ring with controlled resources, and for one without.
func BenchmarkAssignment(b *testing.B) {
	b.Run("controlled", func(b *testing.B) { benchmark(b, func(*v1alpha1.ClusterRing) {}) })
	b.Run("alone", func(b *testing.B) {
		benchmark(b, func(r *v1alpha1.ClusterRing) { r.Spec.Resources[0].ControlledResources = nil })
	})
}

func benchmark(b *testing.B, change func(*v1alpha1.ClusterRing)) {
	b.Helper()

	w := newWorld(b, localplane.Shared(b), change)
	w.join("a", "b", "c")
	w.start(w.options())

	c, err := client.NewWithWatch(w.plane.Config, client.Options{Scheme: w.client.Scheme()})
	require.NoError(b, err)

	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(websites)
	events, err := c.Watch(b.Context(), list, client.InNamespace(w.objects))
	require.NoError(b, err)
	b.Cleanup(events.Stop)

	assigned := func(name string) {
		for e := range events.ResultChan() {
			if u, ok := e.Object.(*unstructured.Unstructured); ok && u.GetName() == name &&
				u.GetLabels()[contract.ShardLabel(ringName)] != "" {
				return
			}
		}
	}

	w.create("first")
	assigned("first")

	var (
		took []time.Duration
		wall clock.RealClock
	)

	for i := 0; b.Loop(); i++ {
		name := fmt.Sprintf("site-%d", i)
		w.create(name)

		created := wall.Now()

		assigned(name)

		took = append(took, wall.Since(created))
	}

	slices.Sort(took)

	for _, quantile := range []int{50, 90, 99} {
		b.ReportMetric(float64(took[len(took)*quantile/100].Microseconds())/1000, fmt.Sprintf("p%d-ms", quantile))
	}
}
