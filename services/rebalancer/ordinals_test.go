package rebalancer

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/pkg/shard/ordinal"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// controllerVersion is a version of a controller that goes from ordinals to a ring.
type controllerVersion int

const (
	byOrdinal controllerVersion = iota // the controller shares objects by itself
	claiming                           // a shard that claims objects by its ordinal
	byRing                             // a shard
)

// workers are the Pods of a StatefulSet, and a record of what they do. ConfigMaps and the Secrets that they control are
// reconciled by two controllers.
type workers struct {
	*testRing

	replicas int32

	pods map[int]func() error // stops the Pod

	mu      sync.Mutex
	inside  map[string]sets.Set[string] // who works on a ConfigMap, or on what it controls
	overlap []string
	done    map[string]string // who has worked last on an object in a state
}

func newWorkers(w *testRing, replicas int32) *workers {
	w.Helper()

	labels := map[string]string{"app": "web"}
	require.NoError(w, w.Client.Create(w.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "web"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/c"}}},
			},
		},
	}))

	return &workers{testRing: w, replicas: replicas, pods: map[int]func() error{}, inside: map[string]sets.Set[string]{},
		done: map[string]string{}}
}

// run runs the version in the Pod with this ordinal, after it has stopped what ran there.
func (w *workers) run(number int, v controllerVersion) {
	w.Helper()

	if stop := w.pods[number]; stop != nil {
		require.NoError(w, stop())
	}

	kube := rest.CopyConfig(w.Plane.Config)
	kube.QPS = -1

	options := manager.Options{
		Cache:      cache.Options{DefaultNamespaces: map[string]cache.Config{w.Namespace: {}}},
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true), MaxConcurrentReconciles: 4},
	}

	var mgr manager.Manager

	if v == byOrdinal {
		mgr = w.byOrdinal(kube, number, options)
	} else {
		mgr = w.asShard(kube, number, v, options)
	}

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)

	go func() { ended <- mgr.Start(ctx) }()

	w.pods[number] = sync.OnceValue(func() error {
		cancel()

		return <-ended
	})
	w.Cleanup(func() { _ = w.pods[number]() })
}

// byOrdinal is a controller that shares objects by a hash of their names, as operators do without a library. All
// replicas work.
func (w *workers) byOrdinal(kube *rest.Config, number int, options manager.Options) manager.Manager {
	w.Helper()

	mgr, err := manager.New(kube, options)
	require.NoError(w, err)

	mine := predicate.NewPredicateFuncs(func(obj client.Object) bool {
		family := &metav1.ObjectMeta{Namespace: obj.GetNamespace(), Name: familyOf(obj)}
		hash := ordinal.Key(schema.GroupKind{Kind: "ConfigMap"}, family)

		return hash%uint64(w.replicas) == uint64(number) //nolint:gosec // neither is negative
	})

	for _, obj := range []client.Object{&corev1.ConfigMap{}, &corev1.Secret{}} {
		require.NoError(w, ctrl.NewControllerManagedBy(mgr).Named(fmt.Sprintf("%T", obj)).
			For(obj, builder.WithPredicates(mine)).
			Complete(w.reconciler("web-"+strconv.Itoa(number), mgr.GetClient(), obj)))
	}

	return mgr
}

func (w *workers) asShard(kube *rest.Config, number int, v controllerVersion, options manager.Options) manager.Manager {
	w.Helper()

	o := shard.Options{
		Ring: w.Ring.Name, Name: "web-" + strconv.Itoa(number), Namespace: w.Namespace,
		LeaseDuration: 9 * time.Second, RetryPeriod: 500 * time.Millisecond, HoldOff: 1500 * time.Millisecond,
		Kinds: shard.Kinds{shard.Main(&corev1.ConfigMap{})},
	}

	if v == claiming {
		o.Controllers = map[string]shard.Placement{"*v1.Secret": shard.EveryReplica()}
	} else {
		o.Kinds = append(o.Kinds, shard.Controlled(&corev1.Secret{}))
	}

	mgr, err := shard.NewManager(kube, options, o)
	require.NoError(w, err)

	s := mgr.Shard()

	if v == claiming {
		require.NoError(w, ordinal.AddClaims(w.Context(), mgr, ordinal.Claims{
			Main: []client.Object{&corev1.ConfigMap{}}, Controlled: []client.Object{&corev1.Secret{}},
			Namespaces: []string{w.Namespace},
		}))
	}

	for _, obj := range []client.Object{&corev1.ConfigMap{}, &corev1.Secret{}} {
		require.NoError(w, ctrl.NewControllerManagedBy(mgr).Named(fmt.Sprintf("%T", obj)).For(obj).
			Complete(s.Reconciler(mgr.GetClient(), obj, w.reconciler(s.Name(), mgr.GetClient(), obj))))
	}

	return mgr
}

// reconciler returns a reconciler that records its work on an object, which counts as work on what controls it.
func (w *workers) reconciler(pod string, c client.Client, kind client.Object) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		obj, _ := kind.DeepCopyObject().(client.Object)
		if err := c.Get(ctx, req.NamespacedName, obj); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}

		family := familyOf(obj)

		w.mu.Lock()
		in := w.inside[family].Clone().Insert(pod)
		w.inside[family] = in

		if in.Len() > 1 {
			w.overlap = append(w.overlap, fmt.Sprint(family, sets.List(in)))
		}
		w.mu.Unlock()

		// A request makes the work last.
		err := w.Client.Get(ctx, types.NamespacedName{Namespace: req.Namespace, Name: family}, &corev1.ConfigMap{})

		w.mu.Lock()
		defer w.mu.Unlock()

		w.inside[family].Delete(pod)
		w.done[state(obj, obj.GetAnnotations()["touched"])] = pod

		return reconcile.Result{}, client.IgnoreNotFound(err)
	})
}

// state identifies an object in a state.
func state(obj client.Object, touched string) string {
	return fmt.Sprintf("%T %s %s", obj, obj.GetName(), touched)
}

// familyOf returns the name of the ConfigMap that the object is, or that controls it.
func familyOf(obj client.Object) string {
	if controller := metav1.GetControllerOfNoCopy(obj); controller != nil {
		return controller.Name
	}

	return obj.GetName()
}

// touchAll changes all objects, and waits until each was reconciled in this state. It returns by whom.
func (w *workers) touchAll(all []client.Object, value string) map[string]string {
	w.Helper()

	for _, obj := range all {
		patch := []byte(`{"metadata":{"annotations":{"touched":"` + value + `"}}}`)
		require.NoError(w, w.Client.Patch(w.Context(), obj, client.RawPatch(types.MergePatchType, patch)))
	}

	by := map[string]string{}

	for _, obj := range all {
		require.Eventually(w, func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()

			by[obj.GetName()] = w.done[state(obj, value)]

			return by[obj.GetName()] != ""
		}, time.Minute, 20*time.Millisecond, "%s has no worker", state(obj, value))
	}

	return by
}

// From ordinals to a ring, and Pod by Pod, each object always has one worker, except while its Pod restarts or while it
// moves, and never two.
func TestFromOrdinalsToARing(t *testing.T) {
	ring := newTestRing(t)
	require.NoError(t, ring.Client.Delete(t.Context(), ring.Ring)) // it comes later

	w := newWorkers(ring, 3)

	var all []client.Object

	for i := range 30 {
		cm := w.Main("object-"+strconv.Itoa(i), "")
		all = append(all, cm, w.Child(cm, ""))
	}

	for pod := range 3 {
		w.run(pod, byOrdinal)
	}

	before := w.touchAll(all, "by-ordinal")

	for _, pod := range []int{2, 1, 0} { // as a StatefulSet is updated
		w.run(pod, claiming)
		require.Equal(t, before, w.touchAll(all, fmt.Sprint("update-", pod)), "no object moves in the update")
	}

	for _, obj := range all {
		w.Eventually(ringtest.Placed{Shard: before[obj.GetName()]}, obj)
	}

	late := w.Main("late", "") // while there is no ring, its ordinal claims it
	require.Eventually(t, func() bool { return w.Placed(late).Shard != "" }, time.Minute, 20*time.Millisecond)

	w.Ring.ResourceVersion, w.Ring.UID = "", ""
	require.NoError(t, w.Client.Create(t.Context(), w.Ring))
	w.start()
	w.AtRest()

	after, moved := w.touchAll(all, "by-label"), 0

	for _, obj := range all {
		if before[obj.GetName()] != after[obj.GetName()] {
			moved++
		}

		w.Eventually(ringtest.Placed{Shard: after[obj.GetName()]}, obj)
	}

	require.Positive(t, moved, "the ring has another opinion")

	for _, pod := range []int{2, 1, 0} {
		w.run(pod, byRing)
		w.touchAll(all, fmt.Sprint("ring-", pod))
	}

	w.AtRest()
	w.touchAll(all, "by-ring")

	w.mu.Lock()
	defer w.mu.Unlock()

	require.Empty(t, w.overlap)
}

// A ring that comes too early would give away objects on which Pods of the previous version work.
func TestARingThatExistsBeforeThePodsAreUpdated(t *testing.T) {
	w := newWorkers(newTestRing(t), 2)
	kinds := []client.Object{&corev1.ConfigMap{}}
	add := func(number int, kinds []client.Object) error {
		mgr, err := shard.NewManager(w.Plane.Config, manager.Options{Metrics: metricsserver.Options{BindAddress: "0"}},
			shard.Options{Ring: w.Ring.Name, Name: "web-" + strconv.Itoa(number), Namespace: w.Namespace,
				Kinds: shard.Kinds{shard.Main(&corev1.ConfigMap{})}})
		require.NoError(t, err)

		return ordinal.AddClaims(t.Context(), mgr, ordinal.Claims{Main: kinds, Namespaces: []string{w.Namespace}})
	}

	// Labels that an earlier ring has left are those of nobody's ordinal. Of so many objects, surely not all belong to
	// ordinal 1.
	for i := range 32 {
		w.Main(fmt.Sprint("left-", i), "web-1")
	}

	w.delete()
	require.ErrorContains(t, add(1, kinds), "and does not belong to ordinal 1. If an earlier ring has left the label, remove it")
	require.NoError(t, w.Client.DeleteAllOf(t.Context(), &corev1.ConfigMap{}, client.InNamespace(w.Namespace)))
	require.NoError(t, add(1, kinds))

	w.Ring.ResourceVersion, w.Ring.UID = "", ""
	require.NoError(t, w.Client.Create(t.Context(), w.Ring))

	require.ErrorContains(t, add(1, kinds), "Pod web-0 is no shard of it yet: it may still work on objects that have no label")
	require.NoError(t, add(0, kinds), "there is none below")

	w.Join("web-0")
	require.NoError(t, add(1, kinds))

	require.ErrorContains(t, add(1, nil), "name at least one main kind")
}
