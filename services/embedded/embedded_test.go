package embedded

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestElectedProcessShardsTheRing: with the rights of deploy/example-embedded alone, new objects get a shard, the
// objects of a shard that is silent move to the others, and the ring's status tells.
func TestElectedProcessShardsTheRing(t *testing.T) {
	w := newWorld(t, localplane.Shared(t))
	w.join("a")
	w.shard("b", time.Second)
	w.start(w.options())
	w.start(w.options())

	for i := range 20 {
		w.create(fmt.Sprintf("site-%d", i))
	}

	for i := range 20 {
		w.waitAt(fmt.Sprintf("site-%d", i), "a") // at first, some are at b, which never renews its Lease
	}

	require.Eventually(t, func() bool {
		return meta.IsStatusConditionTrue(w.ring().Status.Conditions, v1alpha1.ConditionAssigned)
	}, patience, interval)

	ring := w.ring()
	require.True(t, meta.IsStatusConditionTrue(ring.Status.Conditions, v1alpha1.ConditionReady))
	require.Nil(t, meta.FindStatusCondition(ring.Status.Conditions, v1alpha1.ConditionWebhookRegistered))
	require.EqualValues(t, 1, ring.Status.AvailableShards)
	require.Equal(t, namespace+"/"+contract.SharderLeaseName(ringName), ring.Annotations[contract.AnnotationSharder])

	l := &coordinationv1.Lease{}
	require.NoError(t, w.client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: "b"}, l))
	require.Equal(t, "dead", l.Labels[contract.LabelState])
}

func TestOptionsAreValidated(t *testing.T) {
	w := newWorld(t, localplane.Shared(t))
	mgr := w.manager()

	shard, admin := w.config(), w.plane.Config
	nobody := &rest.Config{Host: "http://" + localplane.FreeAddress(t)}

	for name, tc := range map[string]struct {
		config *rest.Config
		change func(*Options)
		want   string
	}{
		"no ring": {shard, func(o *Options) { o.Ring = "" }, "ring: set its name"},
		"another ring": {shard, func(o *Options) { o.Ring = "other" },
			"check the name, and grant get, list, watch, and patch on this ring"},
		"a ring that does not exist": {admin, func(o *Options) { o.Ring = "missing" },
			"ClusterRing missing does not exist: create it, with spec.sharder Embedded"},
		"no API server": {nobody, func(*Options) {}, "cannot reach the Kubernetes API server at " + nobody.Host},
		"no namespace": {shard, func(o *Options) { o.Namespace = "" },
			"namespace: set it, outside of a Pod it is not known"},
		"bad namespace": {shard, func(o *Options) { o.Namespace = "a/b" }, `namespace "a/b" is no namespace name`},
		"parts of a second": {shard, func(o *Options) { o.LeaseDuration = 1500 * time.Millisecond },
			"lease duration must be whole seconds"},
		"deadline too long": {shard, func(o *Options) { o.RenewDeadline = time.Minute },
			"lease duration (4s) must be greater than renew deadline (1m0s)"},
		"negative retry": {shard, func(o *Options) { o.RetryPeriod = -1 }, "retry period must be greater than 0"},
	} {
		t.Run(name, func(t *testing.T) {
			o := w.options()
			tc.change(&o)
			require.ErrorContains(t, AddTo(elsewhere{mgr, tc.config}, o), tc.want)
		})
	}
}

type elsewhere struct {
	manager.Manager
	config *rest.Config
}

func (e elsewhere) GetConfig() *rest.Config { return e.config }

func TestNamespaceIsThatOfThePod(t *testing.T) {
	o, err := Options{Ring: "r"}.complete(func(string) ([]byte, error) { return []byte("here\n"), nil })
	require.NoError(t, err)
	require.Equal(t, "here", o.Namespace)
	require.Equal(t, []time.Duration{15 * time.Second, 10 * time.Second, 2 * time.Second},
		[]time.Duration{o.LeaseDuration, o.RenewDeadline, o.RetryPeriod})

	_, err = Options{Ring: "r"}.complete(func(string) ([]byte, error) { return nil, errors.Join(os.ErrNotExist) })
	require.ErrorContains(t, err, "outside of a Pod")
}

// TestShardsDoNotChangeTheirRing: the API server refuses a shard with the rights of deploy/example-embedded all that
// its sharder does not write.
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
		`{"spec":{"resources":[{"group":"","resource":"secrets"}]}}`: "spec",
		`{"spec":{"sharder":"Services"}}`:                            "spec",
		`{"metadata":{"annotations":{"` + contract.AnnotationUnboundShards + `":"true"}}}`: "annotation " +
			contract.AnnotationUnboundShards,
		`{"metadata":{"finalizers":["` + contract.FinalizerRebalancer + `","example.com/more"]}}`: "finalizer example.com/more",
		`{"metadata":{"labels":{"a":"b"}}}`: "label a",
	} {
		write := client.RawPatch(types.MergePatchType, []byte(patch))
		require.Eventually(t, func() bool {
			err = shard.Patch(t.Context(), w.ring(), write, client.DryRunAll)
			return err != nil
		}, patience, interval, "%s: the API server knows a policy a little late", patch)
		require.True(t, apierrors.IsForbidden(err), err)
		require.ErrorContains(t, err, "may not change "+what+" of ring "+ringName)
	}

	err = shard.Status().Patch(t.Context(), w.ring(),
		client.RawPatch(types.MergePatchType, []byte(`{"status":{"shardLabel":"example.com/other"}}`)))
	require.ErrorContains(t, err, "may not change status.shardLabel of ring "+ringName)

	require.Equal(t, v1alpha1.SharderEmbedded, w.ring().Spec.Sharder)
}
