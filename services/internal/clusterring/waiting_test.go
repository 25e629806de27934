package clusterring

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// held returns a ring that the shards of a namespace hold.
func held(namespace string) *v1alpha1.ClusterRing {
	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "r", Finalizers: []string{contract.FinalizerRebalancer}}}
	Embedded("r", namespace).Take(ring)

	return ring
}

// election returns an election Lease that lasts for 15 s.
func election(uid types.UID, version, holder string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{UID: uid, ResourceVersion: version},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: new(int32(15))},
	}
}

// A holder works until its election Lease was not renewed for as long as it lasts, measured by whoever waits.
func TestHolderWorksUntilItsLeaseHasRunOut(t *testing.T) {
	unlimited := election("2", "7", "pod-0")
	unlimited.Spec.LeaseDurationSeconds = nil

	nobody := election("2", "8", "")
	nobody.Spec.HolderIdentity = nil

	var w Waiting

	_, news := w.Begin(held("here"))
	require.True(t, news)

	for _, step := range []struct {
		at      time.Duration // since the wait began
		elected *coordinationv1.Lease
		left    time.Duration
		what    string
	}{
		{0, election("1", "5", "pod-0"), 15 * time.Second, "whatever its time of renewal"},
		{14 * time.Second, election("1", "5", "pod-0"), time.Second, "not renewed"},
		{15 * time.Second, election("1", "5", "pod-0"), 0, "run out"},
		{16 * time.Second, election("1", "6", "pod-0"), 15 * time.Second, "renewed"},
		{17 * time.Second, election("2", "6", "pod-0"), 15 * time.Second, "made anew"},
		{18 * time.Second, election("2", "6", ""), 0, "released"},
		{20 * time.Second, nil, absentFor, "deleted"},
		{20*time.Second + absentFor, nil, 0, "deleted for long"},
		{200 * time.Second, unlimited, absentFor, "says nothing of how long it lasts"},
		{201 * time.Second, nobody, 0, "held by nobody"},
	} {
		require.Equal(t, step.left, w.Left("r", step.elected, time.Unix(0, 0).Add(step.at)), "%s: %s", step.at, step.what)
	}
}

// A holder is news once, and its time begins with it.
func TestHolderIsNewsOnce(t *testing.T) {
	var w Waiting

	begin := func(namespace string) bool {
		holder, news := w.Begin(held(namespace))
		require.Equal(t, Embedded("r", namespace), holder)

		return news
	}

	require.True(t, begin("here"))
	require.Equal(t, absentFor, w.Left("r", nil, time.Unix(0, 0)))
	require.False(t, begin("here"))
	require.Equal(t, absentFor-time.Second, w.Left("r", nil, time.Unix(1, 0)))
	require.True(t, begin("there"))
	require.Equal(t, absentFor, w.Left("r", nil, time.Unix(2, 0)))

	w.End("r")
	require.True(t, begin("there"))
}
