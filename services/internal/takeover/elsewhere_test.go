package takeover

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// A shard that holds its Lease keeps what it watches. Nothing but its Lease, as it is now, says what it does not watch.
func TestObjectsThatTheirShardDoesNotWatch(t *testing.T) {
	w := newWorld(t)
	a := w.shard()
	in := func(namespace string) Verdict {
		t.Helper()

		v, err := w.guard.MayTakeIn(t.Context(), "a", namespace)
		require.NoError(t, err)

		return v
	}

	require.NoError(t, a.Acquire(t.Context()))
	w.observe()
	require.False(t, in("other").Allowed, "it watches all")

	a.Namespaces = []string{"mine", "too"}
	require.NoError(t, a.Renew(t.Context()))

	v := in("other")
	require.True(t, v.Allowed)
	require.Equal(t, 1500*time.Millisecond, v.Until.Sub(w.clock.Now()), "another process may take the Lease now, and work after the hold-off")
	require.False(t, in("mine").Allowed)
	require.False(t, in("too").Allowed)
	require.False(t, w.ask("a").Allowed, "not for all objects")

	w.says(a, "100ms")
	require.False(t, in("other").Allowed, "the hold-off is too short for a write")

	w.edit(a, func(l *coordinationv1.Lease) {
		l.Annotations[contract.AnnotationHoldOff] = "2s"
		l.Spec.RenewTime = &metav1.MicroTime{Time: l.Spec.RenewTime.Add(time.Second)}
	})
	require.False(t, in("other").Allowed, "a process that does not know the annotation has renewed the Lease")

	require.NoError(t, a.Release(t.Context()))
	require.True(t, in("other").Allowed)
	require.True(t, in("mine").Allowed, "like any released Lease")
}
