package record_test

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, nil)) }

const (
	ring     = "recorded"
	patience = 20 * time.Second
)

var labels = record.Labels{Shard: "shard.example.org/ring", Drain: "drain.example.org/ring"}

func TestRecorder(t *testing.T) {
	plane := localplane.Shared(t)
	require.NoError(t, plane.Install(t.Context(), "deploy/example/crd"))
	ns := plane.Namespace(t)
	began := record.Now()
	c := plane.Client
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a",
			Labels: map[string]string{"alpha.sharding.timebertt.dev/clusterring": ring}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("a"), LeaseDurationSeconds: new(int32(2))},
	}
	require.NoError(t, c.Create(t.Context(), lease), "before the record begins")

	ctx, cancel := context.WithCancel(t.Context())
	r, err := record.Start(ctx, plane.Config, record.Options{Ring: ring, Labels: labels, LeaseNamespace: ns,
		Objects: []record.Objects{{Kind: check.Website, Namespace: ns}, {Kind: check.ConfigMap, Namespace: ns}}})
	require.NoError(t, err)
	t.Cleanup(func() { cancel(); r.Wait() })

	lease.Spec.RenewTime = new(metav1.NowMicro())
	require.NoError(t, c.Update(ctx, lease), "a renewal is no version")

	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "X", Name: "x", UID: "owner", Controller: new(true)}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: ns, Name: "cm", Labels: map[string]string{labels.Shard: "a"},
		OwnerReferences: []metav1.OwnerReference{owner},
	}}
	require.NoError(t, c.Create(ctx, cm))
	cm.Labels[labels.Drain] = ""
	require.NoError(t, c.Update(ctx, cm))
	cm.Labels = nil
	require.NoError(t, c.Update(ctx, cm))
	require.NoError(t, c.Delete(ctx, cm))

	require.Eventually(t, func() bool {
		versions, err := r.Versions()
		renewed := slices.ContainsFunc(versions,
			func(v check.Version) bool { return v.Renewed.Equal(lease.Spec.RenewTime.Time) })

		return err == nil && len(versions) == 5 && renewed
	}, patience, time.Millisecond)

	versions, err := r.Versions()
	require.NoError(t, err)

	var got []check.Version

	for _, v := range versions {
		require.NotZero(t, v.Number)
		require.NotEmpty(t, v.UID)
		require.Greater(t, v.At, began)
		v.Number, v.UID, v.At, v.Namespace, v.Renewed = 0, "", 0, "", time.Time{}
		got = append(got, v)
	}

	want := check.Version{Kind: check.ConfigMap, Name: "cm", Owner: "owner"}
	at, draining, deleted := want, want, want
	at.Shard, draining.Shard, draining.Draining, deleted.Deleted = "a", "a", true, true
	require.ElementsMatch(t, []check.Version{
		{Kind: check.Lease, Name: "a", Holder: "a", Duration: 2 * time.Second}, at, draining, want, deleted,
	}, got)
	require.Len(t, r.Newest(), 2)
}
