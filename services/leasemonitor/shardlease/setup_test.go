package shardlease_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/leasemonitor/shardlease"
)

// A Lease that did not count for the ring of its label has no event when the ring is made anew or deleted, so that it counts: its shard may be dead.
func TestLeasesOfARingThatComesOrGoesAreLookedAt(t *testing.T) {
	m := newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))

	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: m.shard.Ring}}

	for name, happens := range map[string]func(workqueue.TypedRateLimitingInterface[reconcile.Request]){
		"created": func(q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			shardlease.Created(m.Reconciler, t.Context(), event.CreateEvent{Object: ring}, q)
		},
		"deleted": func(q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			shardlease.Deleted(m.Reconciler, t.Context(), event.DeleteEvent{Object: ring}, q)
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
			defer q.ShutDown()

			happens(q)
			require.Equal(t, 1, q.Len())

			request, _ := q.Get()
			require.Equal(t, m.id(), request.NamespacedName)
		})
	}
}
