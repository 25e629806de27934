package clusterring

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// tenant is a sharder that records what its tenure makes it do.
type tenant struct {
	*world
	*Tenure
	did   []string
	works bool
}

func newTenant(w *world, self Identity) *tenant {
	t := &tenant{world: w}
	t.Tenure = &Tenure{
		Sharder: self, Client: w.client, Live: w.client, Clock: w.clock, Recorder: events.NewFakeRecorder(100),
		Works: func(*v1alpha1.ClusterRing) bool { return t.works },
		Stop:  func(string) { t.did, t.works = append(t.did, "stop"), false },
		Release: func(context.Context, *v1alpha1.ClusterRing, Identity) error {
			holder, held := HolderOf(w.latest())
			require.True(w, held && holder == self, "the ring is given up before its status changes")

			t.did = append(t.did, "release")

			return nil
		},
	}

	return t
}

func (w *world) latest() *v1alpha1.ClusterRing {
	w.Helper()

	ring, err := Latest(w.Context(), w.client, w.ring)
	require.NoError(w, err)

	return ring
}

// hold calls Hold with the present ring.
func (t *tenant) hold() (holds bool, again time.Duration) {
	t.Helper()

	t.did = nil
	holds, again, err := t.Hold(t.Context(), t.latest())
	require.NoError(t, err)

	t.works = holds

	return holds, again
}

// want makes the spec want another sharder.
func (w *world) want(embedded bool) {
	w.Helper()

	ring := w.latest()
	ring.Spec.Sharder, ring.Spec.ShardNamespaces = v1alpha1.SharderServices, []string{"default"}

	if embedded {
		ring.Spec.Sharder = v1alpha1.SharderEmbedded
	}

	require.NoError(w, w.client.Update(w.Context(), ring))
}

// A sharder stops before it gives a ring up, and the next one waits for that.
func TestTenurePassesOn(t *testing.T) {
	w := newWorld(t)
	services, embedded := newTenant(w, Services), newTenant(w, Embedded(w.ring.Name, "default"))

	holds, _ := services.hold()
	require.True(t, holds)
	require.Equal(t, []string{contract.FinalizerRebalancer}, w.latest().Finalizers)

	old := w.latest()

	w.want(true)

	holds, _ = embedded.hold()
	require.False(t, holds, "the services still work")

	holds, _ = services.hold()
	require.False(t, holds)
	require.Equal(t, []string{"stop", "release"}, services.did)

	holds, again, err := services.Hold(t.Context(), old)
	require.NoError(t, err)
	require.False(t, holds, "an old copy of the ring says that the services hold it")
	require.Positive(t, again)

	holds, _ = embedded.hold()
	require.True(t, holds)

	holder, _ := HolderOf(w.latest())
	require.Equal(t, embedded.Sharder, holder)

	require.NoError(t, w.client.Delete(t.Context(), w.ring))
	require.NoError(t, embedded.Finish(t.Context(), w.latest()))
	require.Equal(t, []string{"stop"}, embedded.did)
	require.True(t, apierrors.IsNotFound(w.client.Get(t.Context(), client.ObjectKeyFromObject(w.ring), w.ring)))
}

// The services take a ring from an embedded sharder only when its election Lease has run out.
func TestServicesTakeTheRingOfASharderThatIsGone(t *testing.T) {
	w := newWorld(t)
	w.want(true)

	embedded := newTenant(w, Embedded(w.ring.Name, "default"))
	holds, _ := embedded.hold()
	require.True(t, holds)

	elected := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: embedded.Sharder.Lease.Namespace, Name: embedded.Sharder.Lease.Name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("pod"), LeaseDurationSeconds: new(int32(15))},
	}
	require.NoError(t, w.client.Create(t.Context(), elected))
	w.want(false)

	services := newTenant(w, Services)
	holds, again := services.hold()
	require.False(t, holds)
	require.Equal(t, 15*time.Second, again)

	w.clock.SetTime(w.clock.Now().Add(again - time.Second))

	_, again = services.hold()
	require.Equal(t, time.Second, again)

	w.clock.SetTime(w.clock.Now().Add(again))

	holds, _ = services.hold()
	require.False(t, holds, "the ring has just changed")

	holds, _ = services.hold()
	require.True(t, holds)
}
