package together_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/services/lab/house"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

const (
	// patience is how long a test waits for a condition.
	patience = time.Minute
	interval = 20 * time.Millisecond

	tenant = "example.com/tenant"
)

func TestMain(m *testing.M) {
	if args := strings.Split(os.Getenv(asShard), ","); len(args) > 1 {
		panic(runShard(args[0], args[1], args[2]))
	}

	os.Exit(house.Main(m))
}

// world is a ring of ConfigMaps that control Secrets, and of Services, in a new namespace, with the services that it
// needs.
type world struct {
	*testing.T

	plane     *localplane.Plane
	ring      string
	namespace string

	mu sync.Mutex
	// works are the shards that work on an object now. twice are the objects on which two have worked at a time.
	works map[types.UID]string
	twice []string
}

func newWorld(t *testing.T, key v1alpha1.ObjectKey) *world {
	t.Helper()

	h := house.New(t)
	w := &world{T: t, plane: h.Plane, namespace: h.Plane.Namespace(t), works: map[types.UID]string{}}
	w.ring = w.namespace
	w.declare(key)
	h.Begin(services.OpenQueries(h.Queries)...)

	return w
}

// declare creates the ring, and grants the services what it needs.
func (w *world) declare(key v1alpha1.ObjectKey) {
	w.Helper()

	require.NoError(w, w.plane.Client.Create(w.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: w.ring, Labels: map[string]string{
			contract.LabelAggregateToRebalancer: "true", contract.LabelAggregateToAssigner: "true",
		}},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps", "secrets", "services"},
			Verbs: []string{"get", "list", "watch", "patch"}}},
	}))
	require.NoError(w, w.plane.Aggregate(w.Context()))
	require.NoError(w, w.plane.Client.Create(w.Context(), &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: w.ring},
		Spec: v1alpha1.ClusterRingSpec{
			ShardNamespaces:   []string{w.namespace},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.namespace}},
			Resources: []v1alpha1.RingResource{
				{Resource: "configmaps", ControlledResources: []v1alpha1.ControlledResource{{Resource: "secrets"}}, Key: &key},
				{Resource: "services", Key: &key},
			},
		},
	}))
}

// begin records that a shard begins to work on an object.
func (w *world) begin(shard string, uid types.UID, name string) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if other := w.works[uid]; other != "" && other != shard {
		w.twice = append(w.twice, name+": "+other+" and "+shard)
	}

	w.works[uid] = shard

	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()

		delete(w.works, uid)
	}
}

// join runs a shard until the test ends. Its controller makes one Secret for every ConfigMap.
func (w *world) join(name string) {
	w.Helper()

	mgr, err := shard.NewManager(w.plane.Config, ctrl.Options{
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true), MaxConcurrentReconciles: 2},
	}, shard.Options{
		Ring: w.ring, Name: name, Namespace: w.namespace, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second,
		RetryPeriod: 500 * time.Millisecond,
		Kinds: shard.Kinds{shard.Main(&corev1.ConfigMap{}), shard.Controlled(&corev1.Secret{}),
			shard.Main(&corev1.Service{})},
		CheckWrites: true,
	})
	require.NoError(w, err)

	require.NoError(w, ctrl.NewControllerManagedBy(mgr).Named(name+"-configmaps").
		For(&corev1.ConfigMap{}).Owns(&corev1.Secret{}).Complete(w.maker(name, mgr.GetClient())))
	require.NoError(w, ctrl.NewControllerManagedBy(mgr).Named(name+"-services").
		For(&corev1.Service{}).
		Complete(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, nil
		})))

	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	ended := make(chan error, 1)

	go func() { ended <- mgr.Start(ctx) }()

	w.Cleanup(func() {
		cancel()
		require.NoError(w, <-ended)
	})
}

// maker returns the reconciler of ConfigMaps.
func (w *world) maker(name string, c client.Client) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		cm := &corev1.ConfigMap{}
		if err := c.Get(ctx, req.NamespacedName, cm); err != nil || len(cm.Data) == 0 {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}

		defer w.begin(name, cm.UID, cm.Name)()

		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: cm.Namespace, Name: cm.Name}}
		if err := c.Get(ctx, client.ObjectKeyFromObject(secret), secret); client.IgnoreNotFound(err) != nil || err == nil {
			return reconcile.Result{}, err
		}

		err := controllerutil.SetControllerReference(cm, secret, c.Scheme())

		return reconcile.Result{}, errors.Join(err, client.IgnoreAlreadyExists(c.Create(ctx, secret)))
	})
}

// create creates a ConfigMap and a Service of a tenant.
func (w *world) create(name, of string) (*corev1.ConfigMap, *corev1.Service) {
	w.Helper()

	m := metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: map[string]string{tenant: of}}
	cm := &corev1.ConfigMap{ObjectMeta: *m.DeepCopy(), Data: map[string]string{"a": "b"}}
	service := &corev1.Service{ObjectMeta: *m.DeepCopy(),
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	require.NoError(w, w.plane.Client.Create(w.Context(), cm))
	require.NoError(w, w.plane.Client.Create(w.Context(), service))

	return cm, service
}

// at returns the shard of an object; "" while it has none, drains, or does not exist.
func (w *world) at(obj client.Object) string {
	if err := w.plane.Client.Get(w.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
		return ""
	}

	if _, drains := obj.GetLabels()[contract.DrainLabel(w.ring)]; drains {
		return ""
	}

	return obj.GetLabels()[contract.ShardLabel(w.ring)]
}

// A tenant's objects of two kinds, and what follows them, are at one shard. When users change the label, all of them
// move, each after its shard has released it.
func TestTenantsMove(t *testing.T) {
	w := newWorld(t, v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant})
	w.join("a")
	w.join("b")

	require.Eventually(t, func() bool {
		ring := &v1alpha1.ClusterRing{}
		require.NoError(t, w.plane.Client.Get(t.Context(), client.ObjectKey{Name: w.ring}, ring))

		return ring.Status.AvailableShards == 2 &&
			meta.IsStatusConditionTrue(ring.Status.Conditions, v1alpha1.ConditionAssigned) &&
			meta.IsStatusConditionTrue(ring.Status.Conditions, v1alpha1.ConditionWebhookRegistered)
	}, patience, interval)

	// Enough tenants for both shards.
	shardOf := map[string]string{}
	members := map[string][]client.Object{}

	for i := range 8 {
		name := fmt.Sprint("tenant-", i)

		for j := range 3 {
			cm, service := w.create(fmt.Sprint("o-", i, "-", j), name)
			members[name] = append(members[name], cm, service,
				&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: cm.Name}})
		}
	}

	together := func(of string) (shard string) {
		for _, o := range members[of] {
			at := w.at(o)
			if at == "" || shard != "" && at != shard {
				return ""
			}

			shard = at
		}

		return shard
	}

	for name := range members {
		require.Eventually(t, func() bool { shardOf[name] = together(name); return shardOf[name] != "" }, patience, interval,
			"%s should be at one shard", name)
	}

	var from, to string

	for name := range members {
		if shardOf[name] == "a" {
			from = name
		} else {
			to = name
		}
	}

	require.NotEmpty(t, from)
	require.NotEmpty(t, to)

	// Everything of one tenant becomes another's, which is at the other shard, and back.
	for _, next := range []string{to, from, to} {
		for _, o := range members[from] {
			if _, follows := o.(*corev1.Secret); follows {
				continue
			}

			body := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, tenant, next)
			require.NoError(t, w.plane.Client.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(body))))
		}

		require.Eventually(t, func() bool { return together(from) == shardOf[next] }, patience, interval,
			"all should follow the label %s", next)
	}

	for name := range members {
		if name != from {
			require.Equal(t, shardOf[name], together(name), "no other tenant should move")
		}
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	require.Empty(t, w.twice, "two shards worked on one object")
}

// A tool applies objects with labels of another shard again and again. No other shard ever works on them, and the
// services write nothing.
func TestStaleManifests(t *testing.T) {
	w := newWorld(t, v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant})
	w.join("a")
	w.join("b")

	conditions := func() []metav1.Condition {
		ring := &v1alpha1.ClusterRing{}
		require.NoError(t, w.plane.Client.Get(t.Context(), client.ObjectKey{Name: w.ring}, ring))

		return ring.Status.Conditions
	}

	require.Eventually(t, func() bool {
		return meta.IsStatusConditionTrue(conditions(), v1alpha1.ConditionAssigned) &&
			meta.IsStatusConditionTrue(conditions(), v1alpha1.ConditionWebhookRegistered)
	}, patience, interval)

	const objects, times = 20, 6

	shardOf, versions := map[string]string{}, map[string]string{}

	for i := range objects {
		name := fmt.Sprint("o-", i)
		cm, _ := w.create(name, name)
		require.Eventually(t, func() bool { shardOf[name] = w.at(cm); return shardOf[name] != "" }, patience, interval)
	}

	since := meta.FindStatusCondition(conditions(), v1alpha1.ConditionAssigned).LastTransitionTime

	for n := range times {
		for name, shard := range shardOf {
			stale := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
				"data": map[string]any{"a": fmt.Sprint(n)}}}
			stale.SetNamespace(w.namespace)
			stale.SetName(name)
			stale.SetLabels(map[string]string{tenant: name,
				contract.ShardLabel(w.ring): map[string]string{"a": "b", "b": "a"}[shard]})

			require.NoError(t, w.plane.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(stale),
				client.FieldOwner("tool"), client.ForceOwnership))

			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
			require.Equal(t, shard, w.at(cm))
			require.Equal(t, fmt.Sprint(n), cm.Data["a"])

			versions[name] = cm.ResourceVersion
			assigned := meta.FindStatusCondition(conditions(), v1alpha1.ConditionAssigned)
			require.Equal(t, metav1.ConditionTrue, assigned.Status, assigned.Message)
			require.Equal(t, since, assigned.LastTransitionTime)
		}
	}

	for name, version := range versions {
		cm := &corev1.ConfigMap{}
		require.NoError(t, w.plane.Client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, cm))
		require.Equal(t, version, cm.ResourceVersion, "nobody else has written it")
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	require.Empty(t, w.twice, "two shards worked on one object")
}
