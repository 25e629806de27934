package embedded

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// Tests wait for conditions, this long at most and looking this often.
const (
	patience = 60 * time.Second
	interval = 20 * time.Millisecond
	// longest is the longest duration of a Lease that the admission policies allow.
	longest = 300 * time.Second
)

// The ring of deploy/example, whose rights the tests use.
const (
	ringName  = "example"
	namespace = "example"
)

var websites = schema.GroupVersionKind{Group: "example.clusterring.dev", Version: "v1alpha1", Kind: "Website"}

// world is the ring of the example, with its rights.
type world struct {
	*testing.T
	plane  *localplane.Plane
	client client.Client
	// objects is a namespace for objects.
	objects string
}

// newWorld installs the example on the control plane, with its ring, after the given changes to the ring. The ring
// lasts until the test ends.
func newWorld(t *testing.T, plane *localplane.Plane, change ...func(*v1alpha1.ClusterRing)) *world {
	t.Helper()
	require.NoError(t, plane.Install(t.Context(), "deploy/example/crd", "deploy/example/namespace.yaml",
		"deploy/example/rbac.yaml",
		"deploy/example/services-rbac.yaml", "deploy/example-embedded/rbac.yaml"))

	w := &world{T: t, plane: plane, client: plane.Client, objects: plane.Namespace(t)}
	t.Cleanup(w.clean)

	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: ringName}, Spec: ringSpec()}
	ring.Spec.Sharder = v1alpha1.SharderEmbedded
	ring.Spec.ShardNamespaces = []string{namespace}

	for _, c := range change {
		c(ring)
	}

	require.NoError(t, w.client.Create(t.Context(), ring))

	return w
}

func ringSpec() v1alpha1.ClusterRingSpec {
	return v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{
		Group: websites.Group, Resource: "websites",
		ControlledResources: []v1alpha1.ControlledResource{{Resource: "configmaps"}},
	}}}
}

// clean removes the ring and the Leases for later tests, whatever state they are in.
func (w *world) clean() {
	ctx := context.Background()
	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: ringName}}
	none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))

	require.NoError(w, client.IgnoreNotFound(w.client.Patch(ctx, ring, none)))
	require.NoError(w, client.IgnoreNotFound(w.client.Delete(ctx, ring)))
	require.NoError(w, w.client.DeleteAllOf(ctx, website("", w.objects), client.InNamespace(w.objects)))
	require.NoError(w, w.client.DeleteAllOf(ctx, leaseObject(), client.InNamespace(namespace)))
}

// config is that of a process with the rights of a shard of the example.
func (w *world) config() *rest.Config {
	w.Helper()

	path, err := w.plane.ServiceAccountKubeconfig(w.Context(), namespace, "example-shard")
	require.NoError(w, err)
	c, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(w, err)

	return c
}

// manager returns a manager for a program.
func (w *world) manager() manager.Manager {
	w.Helper()

	mgr, err := manager.New(w.config(), manager.Options{
		Logger:  testr.NewWithOptions(w.T, testr.Options{LogTimestamp: true}),
		Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: new(true)},
	})
	require.NoError(w, err)

	return mgr
}

// options are those of short elections.
func (w *world) options() Options {
	return Options{Ring: ringName, Namespace: namespace, LeaseDuration: 4 * time.Second, RenewDeadline: 2 * time.Second,
		RetryPeriod: 500 * time.Millisecond}
}

// start starts a program with an embedded sharder, which ends with the test.
func (w *world) start(o Options) {
	w.Helper()

	mgr := w.manager()
	require.NoError(w, AddTo(mgr, o))

	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	done := make(chan error, 1)

	go func() { done <- mgr.Start(ctx) }()

	w.Cleanup(func() {
		cancel()
		require.NoError(w, <-done)
	})
}

// join lets shards hold their Leases for as long as the test.
func (w *world) join(names ...string) {
	w.Helper()

	for _, name := range names {
		w.shard(name, longest)
	}
}

func (w *world) shard(name string, duration time.Duration) *leasetest.Shard {
	w.Helper()

	s := &leasetest.Shard{Client: w.client, Ring: ringName, Namespace: namespace, Name: name, Duration: duration}
	require.NoError(w, s.Acquire(w.Context()))

	return s
}

func website(name, ns string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(websites)
	u.SetNamespace(ns)
	u.SetName(name)

	if name != "" {
		_ = unstructured.SetNestedField(u.Object, "hello", "spec", "title")
	}

	return u
}

// create creates a Website.
func (w *world) create(name string) *unstructured.Unstructured {
	w.Helper()

	u := website(name, w.objects)
	require.NoError(w, w.client.Create(w.Context(), u))

	return u
}

// shardOf returns the shard of a Website.
func (w *world) shardOf(name string) string {
	w.Helper()

	u := website(name, w.objects)
	require.NoError(w, w.client.Get(w.Context(), client.ObjectKeyFromObject(u), u))

	return u.GetLabels()[contract.ShardLabel(ringName)]
}

// waitAt waits until the Website is at one of the shards.
func (w *world) waitAt(name string, shards ...string) {
	w.Helper()
	require.Eventually(w, func() bool { return slices.Contains(shards, w.shardOf(name)) }, patience, interval,
		"%s never came to %v", name, shards)
}

// ring reads the ring.
func (w *world) ring() *v1alpha1.ClusterRing {
	w.Helper()

	ring := &v1alpha1.ClusterRing{}
	require.NoError(w, w.client.Get(w.Context(), types.NamespacedName{Name: ringName}, ring))

	return ring
}

// setSharder changes spec.sharder.
func (w *world) setSharder(to v1alpha1.SharderMode) {
	w.Helper()
	require.Eventually(w, func() bool {
		ring := w.ring()
		ring.Spec.Sharder = to
		err := w.client.Update(w.Context(), ring)

		if !apierrors.IsConflict(err) {
			require.NoError(w, err)
		}

		return err == nil
	}, patience, interval)
}

func leaseObject() client.Object { return &coordinationv1.Lease{} }
