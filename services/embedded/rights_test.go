package embedded

import (
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestShardsDoNotChangeTheirRing: the API server refuses a shard with the rights of deploy/example-embedded all that its sharder does not write.
func TestShardsDoNotChangeTheirRing(t *testing.T) {
	plane, err := localplane.Start(localplane.Options{Knows: v1alpha1.AddToScheme})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plane.Stop()) })
	require.NoError(t, plane.Install(t.Context(), "deploy/base/crd")) // a ring without services needs nothing else

	w := newWorld(t, plane)
	w.join("a")
	w.create("site")

	w.start(w.options())
	w.waitAt("site", "a")

	shard, err := client.New(w.config(), client.Options{Scheme: w.client.Scheme()})
	require.NoError(t, err)

	require.Error(t, shard.Update(t.Context(), w.ring()), "there is no right to update it")

	for patch, what := range map[string]string{
		`{"spec":{"resources":[{"group":"","resource":"secrets"}]}}`:                              "spec",
		`{"spec":{"sharder":"Services"}}`:                                                         "spec",
		`{"metadata":{"annotations":{"` + contract.AnnotationUnboundShards + `":"true"}}}`:        "annotation " + contract.AnnotationUnboundShards,
		`{"metadata":{"finalizers":["` + contract.FinalizerRebalancer + `","example.com/more"]}}`: "finalizer example.com/more",
		`{"metadata":{"labels":{"a":"b"}}}`:                                                       "label a",
	} {
		write := client.RawPatch(types.MergePatchType, []byte(patch))
		require.Eventually(t, func() bool {
			err = shard.Patch(t.Context(), w.ring(), write, client.DryRunAll)
			return err != nil
		}, patience, interval, "%s: the API server knows a policy a little late", patch)
		require.True(t, apierrors.IsForbidden(err), err)
		require.ErrorContains(t, err, "may not change "+what+" of ring "+ringName)
	}

	err = shard.Status().Patch(t.Context(), w.ring(), client.RawPatch(types.MergePatchType, []byte(`{"status":{"shardLabel":"example.com/other"}}`)))
	require.ErrorContains(t, err, "may not change status.shardLabel of ring "+ringName)

	require.Equal(t, v1alpha1.SharderEmbedded, w.ring().Spec.Sharder)
}
