package embedded

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/services/leasemonitor"
	"github.com/clusterring/clusterring/services/rebalancer"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	labprocess "github.com/clusterring/clusterring/tools/testkit/process"
	lab "github.com/clusterring/clusterring/tools/testkit/services"
)

// services runs lease monitor and rebalancer, with their own rights, until the test ends.
func (w *world) services() {
	w.Helper()

	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	commands := map[string]*cobra.Command{"leasemonitor": leasemonitor.NewCommand(), "rebalancer": rebalancer.NewCommand()}
	ended := make(chan error, len(commands))

	for name, cmd := range commands {
		cmd.SetArgs([]string{
			"--kubeconfig=" + w.plane.ServiceKubeconfig(w,
				name), "--metrics-bind-address=0", "--health-probe-bind-address=0", "--log-format=text",
		})
		cmd.SetOut(io.Discard)
		cmd.SetErr(w.Output())

		go func() { ended <- cmd.ExecuteContext(ctx) }()
	}

	w.Cleanup(func() {
		cancel()

		for range commands {
			require.NoError(w, <-ended)
		}
	})
}

// history is what the API server stored, of the ring and of objects, in the order in which it did.
type history struct {
	*world
	rings, objects watch.Interface
}

func (w *world) record() *history {
	w.Helper()

	c, err := client.NewWithWatch(w.plane.Config, client.Options{Scheme: w.client.Scheme()})
	require.NoError(w, err)

	rings, err := c.Watch(w.Context(), &v1alpha1.ClusterRingList{})
	require.NoError(w, err)

	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(websites)
	objects, err := c.Watch(w.Context(), list, client.InNamespace(w.objects))
	require.NoError(w, err)

	return &history{w, rings, objects}
}

// write is one write of the shard or drain label of an object.
type write struct {
	version          int64
	object, by, then string
}

// end returns who held the ring from which resource version on, and the writes of labels by sharders, up to the given
// last versions.
func (h *history) end(lastRing, lastObject int64) (holders []write, writes []write) {
	h.Helper()

	for e := range h.rings.ResultChan() {
		ring, ok := e.Object.(*v1alpha1.ClusterRing)
		require.True(h, ok)

		holder := "services"
		if value, said := ring.Annotations[contract.AnnotationSharder]; said {
			holder = value
		}

		if v := version(h, ring); ring.Name == ringName {
			if n := len(holders); n == 0 || holders[n-1].by != holder {
				holders = append(holders, write{version: v, by: holder})
			}

			if v >= lastRing {
				break
			}
		}
	}

	h.rings.Stop()

	labels := map[string]string{}

	for e := range h.objects.ResultChan() {
		u, ok := e.Object.(*unstructured.Unstructured)
		require.True(h, ok)

		now := u.GetLabels()[contract.ShardLabel(ringName)] + "," + u.GetLabels()[contract.DrainLabel(ringName)]
		if labels[u.GetName()] != now {
			labels[u.GetName()] = now
			writes = append(writes, write{version(h, u), u.GetName(), managerOf(u), now})
		}

		if version(h, u) >= lastObject {
			break
		}
	}

	h.objects.Stop()

	return holders, writes
}

func version(t require.TestingT, obj client.Object) int64 {
	v, err := strconv.ParseInt(obj.GetResourceVersion(), 10, 64)
	require.NoError(t, err)

	return v
}

// managerOf returns who wrote the shard label.
func managerOf(u *unstructured.Unstructured) string {
	for _, m := range u.GetManagedFields() {
		if m.FieldsV1 != nil && strings.Contains(string(m.FieldsV1.GetRawBytes()), contract.ShardLabel(ringName)) {
			return m.Manager
		}
	}

	return ""
}

// TestRingPassesBetweenSharders: services and embedded sharders run all the time, while spec.sharder changes again and
// again, and objects are created and lose their shard all the time. Every label is written by the ring's holder, and
// each time, the other one becomes it.
func TestRingPassesBetweenSharders(t *testing.T) {
	w := newWorld(t, localplane.Shared(t), func(r *v1alpha1.ClusterRing) { r.Spec.Sharder = v1alpha1.SharderServices })
	h := w.record()
	w.join("a", "b")
	w.services()
	w.start(w.options())
	w.start(w.options())

	own := namespace + "/" + contract.SharderLeaseName(ringName)
	created := 0

	for round, to := range []v1alpha1.SharderMode{"", v1alpha1.SharderEmbedded, v1alpha1.SharderServices,
		v1alpha1.SharderEmbedded, v1alpha1.SharderServices} {
		if to != "" {
			w.setSharder(to)
		}

		// Some of them arrive at the old sharder, some at nobody, and some at the new one.
		for range 30 {
			w.create(fmt.Sprintf("site-%d", created))
			created++
		}

		for i := range created {
			w.waitAt(fmt.Sprintf("site-%d", i), "a", "b")
		}

		require.Eventually(t, func() bool {
			ring := w.ring()
			value, said := ring.Annotations[contract.AnnotationSharder]

			return said == (to == v1alpha1.SharderEmbedded) && (!said || value == own) &&
				meta.IsStatusConditionTrue(ring.Status.Conditions, v1alpha1.ConditionAssigned)
		}, patience, interval, "round %d: %+v", round, w.ring())
	}

	// The last write ends the recording.
	last := w.create("last")
	w.waitAt("last", "a", "b")
	require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(last), last))

	holders, writes := h.end(version(t, w.ring()), version(t, last))
	require.Greater(t, len(writes), created)

	var order []string
	for _, held := range holders {
		order = append(order, held.by)
	}

	none := contract.SharderNobody
	require.Equal(t, []string{"services", none, own, none, "services", none, own, none, "services"}, order)

	for _, label := range writes {
		if label.by == "" {
			continue // an object that was created, or deleted
		}

		i := len(holders) - 1
		for holders[i].version > label.version {
			i--
		}

		want := "rebalancer"
		if holders[i].by == own {
			want = contract.SharderLeaseName(ringName)
		}

		require.NotEqual(t, none, holders[i].by, "%+v", label)
		require.Equal(t, want, label.by, "%+v", label)
	}
}

// TestServicesTakeTheRingOfDeadShards: the services wait for the election Lease to run out.
func TestServicesTakeTheRingOfDeadShards(t *testing.T) {
	own := namespace + "/" + contract.SharderLeaseName(ringName)
	w := newWorld(t, localplane.Shared(t), func(r *v1alpha1.ClusterRing) {
		r.Spec.Sharder = v1alpha1.SharderServices
		r.Finalizers = []string{contract.FinalizerRebalancer}
		r.Annotations = map[string]string{contract.AnnotationSharder: own}
	})
	w.join("a")

	now := metav1.NowMicro()
	elected := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
		Name: contract.SharderLeaseName(ringName)}}
	elected.Spec = coordinationv1.LeaseSpec{HolderIdentity: new("gone"), LeaseDurationSeconds: new(int32(3)),
		RenewTime: &now, AcquireTime: &now}
	require.NoError(t, w.client.Create(t.Context(), elected))

	w.create("site")
	w.services()
	w.waitAt("site", "a")
	require.NotContains(t, w.ring().Annotations, contract.AnnotationSharder)
}

// TestRingWaitsForServicesThatAreGone: an embedded sharder cannot know that the services no longer run. An
// administrator says so.
func TestRingWaitsForServicesThatAreGone(t *testing.T) {
	w := newWorld(t, localplane.Shared(t),
		func(r *v1alpha1.ClusterRing) { r.Finalizers = []string{contract.FinalizerRebalancer} })
	w.join("a")
	w.create("site")
	w.start(w.options())

	require.Eventually(t, func() bool { return w.ring().Status.Shards == 1 }, patience, interval,
		"the Leases are monitored")
	require.Empty(t, w.shardOf("site"))

	nobody := client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+contract.AnnotationSharder+`":"`+contract.SharderNobody+`"}}}`))
	require.NoError(t, w.client.Patch(t.Context(), w.ring(), nobody))
	w.waitAt("site", "a")
}

// TestDeletedRingStaysWithItsSharder: it removes all labels, whatever spec.sharder says by then.
func TestDeletedRingStaysWithItsSharder(t *testing.T) {
	w := newWorld(t, localplane.Shared(t))
	s := w.shard("a", time.Hour)
	w.create("site")
	w.start(w.options())
	w.waitAt("site", "a")
	require.NoError(t, s.Release(t.Context()))
	require.NoError(t, w.client.Delete(t.Context(), w.ring()))
	w.waitAt("site", "")
	require.Eventually(t, func() bool {
		return apierrors.IsNotFound(w.client.Get(t.Context(), types.NamespacedName{Name: ringName}, &v1alpha1.ClusterRing{}))
	}, patience, interval)
}

// TestLabelsOfTheRingAreNotTheOperators puts a ring over an operator that clones the labels of its objects into a
// StatefulSet, with its selector and templates, and into a Deployment, and that writes whole label maps. Neither the
// ring nor a fourth shard changes a template or causes an update that the API server refuses, and at rest nothing is
// written.
func TestLabelsOfTheRingAreNotTheOperators(t *testing.T) {
	for name, needed := range map[string][]string{
		"services":            {lab.LeaseMonitor, lab.Rebalancer, lab.Assigner},
		"without an assigner": {lab.LeaseMonitor, lab.Rebalancer},
		"embedded":            nil,
	} {
		t.Run(name, func(t *testing.T) {
			o := newOperator(t)
			stop := o.runsAlone()
			require.Eventually(t, o.complete(), 2*patience, lookAgain, "the operator works without a ring")
			stop()

			before := o.specs()
			o.declare(len(needed) == 0)

			if len(needed) > 0 {
				o.services(needed...)
			}

			for _, shard := range []string{"a", "b", "c"} {
				o.join(shard, len(needed) == 0)
			}

			require.Eventually(t, o.spread("a", "b", "c"), 2*patience, lookAgain, "the ring is over all objects")
			o.requireUnharmed(before)

			o.join("d", len(needed) == 0)
			require.Eventually(t, o.spread("a", "b", "c", "d"), 2*patience, lookAgain, "the fourth shard has its part")
			o.requireUnharmed(before)

			for range 2 {
				versions := o.versions()
				o.touch()
				require.Eventually(t, o.spread("a", "b", "c", "d"), 2*patience, lookAgain, "all objects are reconciled again")
				require.Equal(t, versions, o.versions(), "nothing that the operator makes is written at rest")
			}

			o.requireUnharmed(before)
		})
	}
}

const (
	// existing is how many objects there are before the ring.
	existing = 100
	// lookAgain is when the test lists all objects again.
	lookAgain = 250 * time.Millisecond
)

// operator is an operator of ConfigMaps, which knows nothing of rings.
type operator struct {
	*testing.T

	plane           *localplane.Plane
	config          *rest.Config
	ring, namespace string
	touched         int // how often the user has changed each ConfigMap

	mu sync.Mutex
	// done are the shards that reconciled a ConfigMap last, with the change that it had then.
	done    map[string]reconciled
	refused []error
}

type reconciled struct{ shard, touch string }

const touchKey = "example.com/touch"

func newOperator(t *testing.T) *operator {
	t.Helper()

	plane := localplane.Shared(t)
	o := &operator{T: t, plane: plane, config: rest.CopyConfig(plane.Config), namespace: plane.Namespace(t),
		done: map[string]reconciled{}}
	o.ring, o.config.QPS = o.namespace, -1

	for i := range existing {
		require.NoError(t, plane.Client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: o.namespace, Name: fmt.Sprint("object-",
				i), Labels: map[string]string{"example.com/name": strconv.Itoa(i)},
			Annotations: map[string]string{touchKey: "0"},
		}}))
	}

	return o
}

// declare puts the ring over the objects.
func (o *operator) declare(embedded bool) {
	o.Helper()
	require.NoError(o, o.plane.Client.Create(o.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: o.ring, Labels: map[string]string{contract.LabelAggregateToRebalancer: "true",
			contract.LabelAggregateToAssigner: "true"}},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps", "secrets"},
				Verbs: []string{"get", "list", "watch", "patch"}},
			{APIGroups: []string{"apps"}, Resources: []string{"statefulsets", "deployments"},
				Verbs: []string{"get", "list", "watch", "patch"}},
		},
	}))
	require.NoError(o, o.plane.Aggregate(o.Context()))

	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: o.ring}, Spec: v1alpha1.ClusterRingSpec{
		ShardNamespaces:   []string{o.namespace},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: o.namespace}},
		Resources: []v1alpha1.RingResource{{Resource: "configmaps", ControlledResources: []v1alpha1.ControlledResource{
			{Resource: "secrets"}, {Group: "apps", Resource: "statefulsets"}, {Group: "apps", Resource: "deployments"},
		}}},
	}}
	if embedded {
		ring.Spec.Sharder = v1alpha1.SharderEmbedded
	}

	require.NoError(o, o.plane.Client.Create(o.Context(), ring))
}

// services runs the services until the test ends.
func (o *operator) services(needed ...string) {
	o.Helper()

	bin := o.TempDir()
	free, err := labprocess.FreePorts(1)
	require.NoError(o, err)

	args := map[string][]string{
		lab.Assigner: lab.Webhook(free[0], free[0]), lab.Rebalancer: {"--settle-period=" + lab.SettlePeriod.String()},
	}

	var specs []lab.Spec

	for _, name := range needed {
		build := exec.CommandContext(o.Context(), "go", "build", "-buildvcs=false", "-o", filepath.Join(bin, name),
			"./services/"+name+"/cmd/"+name)
		build.Dir, build.Stderr = localplane.Root(), os.Stderr
		require.NoError(o, build.Run())

		specs = append(specs, lab.Spec{Name: name, Binary: name, Args: append(args[name], "--leader-elect=false")})
	}

	group := lab.New(lab.Options{Plane: o.plane, BinDir: bin, LogDir: o.TempDir(), ShownLines: 20})
	o.Cleanup(func() { require.NoError(o, group.Stop()) })
	require.NoError(o, group.Start(o.Context(), specs...))
	require.NoError(o, group.Ready(o.Context(), needed...))
}

// options are those of the manager, which no ring changes.
func (o *operator) options() ctrl.Options {
	return ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: new(true),
			MaxConcurrentReconciles: 4},
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{o.namespace: {}}},
	}
}

// runsAlone runs the operator as one without a ring.
func (o *operator) runsAlone() (stop func()) {
	o.Helper()

	mgr, err := ctrl.NewManager(o.config, o.options())
	require.NoError(o, err)

	return o.run(mgr, "")
}

// join runs the operator as a shard until the test ends.
func (o *operator) join(name string, embedded bool) {
	o.Helper()

	mgr, err := shard.NewManager(o.config, o.options(), shard.Options{
		Ring: o.ring, Name: name, Namespace: o.namespace, RetryPeriod: 500 * time.Millisecond,
		Kinds: shard.Kinds{
			shard.Main(&corev1.ConfigMap{}), shard.Controlled(&corev1.Secret{}), shard.Controlled(&appsv1.StatefulSet{}),
			shard.Controlled(&appsv1.Deployment{}),
		},
	})
	require.NoError(o, err)

	if embedded {
		require.NoError(o, AddTo(mgr, Options{
			Ring: o.ring, Namespace: o.namespace, LeaseDuration: 4 * time.Second, RenewDeadline: 2 * time.Second,
			RetryPeriod: 500 * time.Millisecond,
		}))
	}

	o.Cleanup(o.run(mgr, name))
}

// run runs the operator in a manager.
func (o *operator) run(mgr manager.Manager, shard string) (stop func()) {
	o.Helper()
	require.NoError(o, ctrl.NewControllerManagedBy(mgr).Named("configmaps").
		For(&corev1.ConfigMap{}).Owns(&corev1.Secret{}).Owns(&appsv1.StatefulSet{}).Owns(&appsv1.Deployment{}).
		Complete(&cloner{mgr.GetClient(), o, shard}))

	ctx, cancel := context.WithCancel(context.WithoutCancel(o.Context()))
	ended := make(chan error, 1)

	go func() { ended <- mgr.Start(ctx) }()

	return func() {
		cancel()
		require.NoError(o, <-ended)
	}
}

// cloner is the reconciler of the operator. It contains nothing about sharding; the shard is for the test.
type cloner struct {
	client.Client

	operator *operator
	shard    string
}

// Reconcile implements reconcile.Reconciler.
func (c *cloner) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	cm := &corev1.ConfigMap{}
	if err := c.Get(ctx, req.NamespacedName, cm); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	err := c.ensure(ctx, cm)

	c.operator.mu.Lock()
	defer c.operator.mu.Unlock()

	switch {
	case err == nil:
		c.operator.done[req.Name] = reconciled{c.shard, cm.Annotations[touchKey]}
	case apierrors.IsInvalid(err):
		c.operator.refused = append(c.operator.refused, err)
	}

	return reconcile.Result{}, err
}

// ensure clones the labels of the ConfigMap into what runs, and writes those of the Secret, and of the ConfigMap
// itself, as a whole.
func (c *cloner) ensure(ctx context.Context, cm *corev1.ConfigMap) error {
	of := metav1.ObjectMeta{Namespace: cm.Namespace, Name: cm.Name}
	template := func(t *corev1.PodTemplateSpec) {
		if t.Labels = maps.Clone(cm.Labels); len(t.Spec.Containers) == 0 {
			t.Spec.Containers = []corev1.Container{{Name: "main", Image: "main"}}
		}
	}

	set := &appsv1.StatefulSet{ObjectMeta: *of.DeepCopy()}
	if _, err := controllerutil.CreateOrUpdate(ctx, c, set, func() error {
		set.Labels, set.Spec.Selector = maps.Clone(cm.Labels), &metav1.LabelSelector{MatchLabels: maps.Clone(cm.Labels)}
		template(&set.Spec.Template)

		if len(set.Spec.VolumeClaimTemplates) == 0 {
			set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources: corev1.VolumeResourceRequirements{
						Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
					},
				}}}
		}

		set.Spec.VolumeClaimTemplates[0].Labels = maps.Clone(cm.Labels)

		return controllerutil.SetControllerReference(cm, set, c.Scheme())
	}); err != nil {
		return err
	}

	deployment := &appsv1.Deployment{ObjectMeta: *of.DeepCopy()}
	if _, err := controllerutil.CreateOrUpdate(ctx, c, deployment, func() error {
		if deployment.Spec.Selector == nil {
			deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: maps.Clone(cm.Labels)}
		}

		template(&deployment.Spec.Template)

		return controllerutil.SetControllerReference(cm, deployment, c.Scheme())
	}); err != nil {
		return err
	}

	secret := &corev1.Secret{ObjectMeta: *of.DeepCopy()}

	err := c.Get(ctx, client.ObjectKeyFromObject(secret), secret)
	if apierrors.IsNotFound(err) {
		if err := controllerutil.SetControllerReference(cm, secret, c.Scheme()); err != nil {
			return err
		}

		return c.Create(ctx, secret)
	}

	if err != nil {
		return err
	}

	secret.Labels = map[string]string{"app": cm.Name}
	if err := c.Update(ctx, secret); err != nil {
		return err
	}

	cm = cm.DeepCopy()
	cm.Labels = map[string]string{"example.com/name": cm.Labels["example.com/name"]}

	return c.Update(ctx, cm)
}

// touch changes all ConfigMaps as a user does.
func (o *operator) touch() {
	o.Helper()
	o.touched++

	for i := range existing {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: fmt.Sprint("object-", i)}}
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, touchKey, strconv.Itoa(o.touched))
		require.NoError(o, o.plane.Client.Patch(o.Context(), cm, client.RawPatch(types.MergePatchType, []byte(patch))))
	}
}

// complete returns a condition: the operator has made everything, and has nothing to do.
func (o *operator) complete() func() bool {
	return func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()

		return len(o.done) == existing
	}
}

// spread returns a condition: each of the shards has objects, each ConfigMap and what it controls is at one of them,
// and that shard has reconciled it as it is.
func (o *operator) spread(shards ...string) func() bool {
	return func() bool {
		ring := &v1alpha1.ClusterRing{}
		require.NoError(o, o.plane.Client.Get(o.Context(), client.ObjectKey{Name: o.ring}, ring))

		if int(ring.Status.AvailableShards) != len(shards) || !meta.IsStatusConditionTrue(ring.Status.Conditions,
			v1alpha1.ConditionAssigned) {
			return false
		}

		at, has := map[string]string{}, map[string]bool{}
		for i := range existing {
			at[fmt.Sprint("object-", i)] = ""
		}

		for _, list := range o.lists() {
			for _, obj := range items(o, list) {
				shard, name := obj.GetLabels()[contract.ShardLabel(o.ring)], obj.GetName()
				if _, drains := obj.GetLabels()[contract.DrainLabel(o.ring)]; drains || shard == "" || at[name] != "" &&
					at[name] != shard {
					return false
				}

				at[name], has[shard] = shard, true
			}
		}

		o.mu.Lock()
		defer o.mu.Unlock()

		for name, shard := range at {
			if o.done[name] != (reconciled{shard, strconv.Itoa(o.touched)}) {
				return false
			}
		}

		return len(has) == len(shards)
	}
}

// lists returns all objects of the ring.
func (o *operator) lists() []client.ObjectList {
	o.Helper()

	lists := []client.ObjectList{&corev1.ConfigMapList{}, &corev1.SecretList{}, &appsv1.StatefulSetList{},
		&appsv1.DeploymentList{}}
	for _, list := range lists {
		require.NoError(o, o.plane.Client.List(o.Context(), list, client.InNamespace(o.namespace)))
	}

	return lists
}

func items(t require.TestingT, list client.ObjectList) (objects []client.Object) {
	require.NoError(t, meta.EachListItem(list, func(item runtime.Object) error {
		objects = append(objects, item.(client.Object)) //nolint:forcetypeassert // lists contain objects

		return nil
	}))

	return objects
}

// versions returns the versions of all objects that the operator makes.
func (o *operator) versions() map[string]string {
	o.Helper()

	versions := map[string]string{}

	for _, list := range o.lists()[1:] {
		for _, obj := range items(o, list) {
			versions[fmt.Sprintf("%T %s", obj, obj.GetName())] = obj.GetResourceVersion()
		}
	}

	return versions
}

// specs returns the specs of what runs.
func (o *operator) specs() map[string]any {
	o.Helper()

	specs := map[string]any{}

	for _, list := range o.lists() {
		for _, obj := range items(o, list) {
			switch obj := obj.(type) {
			case *appsv1.StatefulSet:
				specs["StatefulSet "+obj.Name] = obj.Spec
			case *appsv1.Deployment: // its generation also changes with its annotations
				specs["Deployment "+obj.Name] = obj.Spec
			}
		}
	}

	return specs
}

// requireUnharmed requires that what runs is as it was, so that no Pod restarts, and that no update was refused.
func (o *operator) requireUnharmed(before map[string]any) {
	o.Helper()

	after := o.specs()
	require.Len(o, after, 2*existing)

	for name, spec := range after {
		require.Equal(o, before[name], spec, "the Pods of %s would restart", name)
	}

	o.mu.Lock()
	defer o.mu.Unlock()

	require.Empty(o, o.refused, "updates were refused")
}

const (
	ownLabel = "cloudapi.example.com/shard"
	tenant   = "example.com/tenant"
)

// TestLabelAndKeysOfTheRing: with a label of its own, a ring is sharded once its shards have the permission to write
// the label; objects with one key are at one shard; and without a webhook, a change of the key is found, too.
func TestLabelAndKeysOfTheRing(t *testing.T) {
	w := newWorld(t, localplane.Shared(t), func(ring *v1alpha1.ClusterRing) {
		ring.Spec.ShardLabel = ownLabel
		ring.Spec.Resources[0].Key = &v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant}
	})

	for _, name := range []string{"a", "b", "c"} {
		s := &leasetest.Shard{Client: w.client, Ring: ringName, Namespace: namespace, Name: name, Duration: longest,
			ShardLabel: ownLabel}
		require.NoError(t, s.Acquire(t.Context()))
	}

	w.start(w.options())

	require.Eventually(t, func() bool {
		c := meta.FindStatusCondition(w.ring().Status.Conditions, v1alpha1.ConditionAssigned)

		return c != nil && strings.Contains(c.Message, "may not list clusterrings")
	}, patience, interval, "the condition names the permission")

	w.grant("example-ring-list", rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"clusterrings"}, Verbs: []string{"list"},
	})

	require.Eventually(t, func() bool {
		c := meta.FindStatusCondition(w.ring().Status.Conditions, v1alpha1.ConditionAssigned)

		return c != nil && strings.Contains(c.Message, "may not write the label "+ownLabel)
	}, patience, interval, "the condition names the permission")

	w.grant("example-shard-label", rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{contract.ResourceShardLabels},
		ResourceNames: []string{ownLabel}, Verbs: []string{"write"},
	})

	at := map[string]string{} // the shard of each tenant

	for _, name := range []string{"one", "two", "three", "four", "five", "six"} {
		value := "acme"
		if len(at) == 1 {
			value = "beta-" + name // until one of them is at another shard than acme
		}

		u := website(name, w.objects)
		u.SetLabels(map[string]string{tenant: value})
		require.NoError(t, w.client.Create(t.Context(), u))

		shard := w.labelled(name)
		if at[value] == "" {
			at[value] = shard
		}

		require.Equal(t, at[value], shard, "%s is with the others of %s", name, value)
	}

	other := ""

	for value, shard := range at {
		if shard != at["acme"] {
			other = value
		}
	}

	if other == "" {
		t.Skip("all tenants are at one shard") // never with these names
	}

	// The label is changed where no webhook sees it. The audit finds it, and asks the shard for the object.
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+tenant+`":"`+other+`"}}}`))
	require.NoError(t, w.client.Patch(t.Context(), website("one", w.objects), patch))

	require.Eventually(t, func() bool {
		u := website("one", w.objects)
		require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(u), u))

		return u.GetLabels()[ownLabel+contract.DrainSuffix] != ""
	}, 3*time.Minute, interval, "the shard is asked to hand the object over")
}

// grant gives the shards one more right, in a ClusterRole of this name.
func (w *world) grant(name string, right rbacv1.PolicyRule) {
	w.Helper()

	meta := metav1.ObjectMeta{Name: name}
	role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{right}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "example-shard"}},
	}

	for _, obj := range []client.Object{role, binding} {
		require.NoError(w, w.client.Create(w.Context(), obj))
		w.Cleanup(func() { require.NoError(w, w.client.Delete(context.Background(), obj)) })
	}
}

// labelled waits until a Website has the label of the ring, and returns the shard.
func (w *world) labelled(name string) string {
	w.Helper()

	shard := ""

	require.Eventually(w, func() bool {
		u := website(name, w.objects)
		require.NoError(w, w.client.Get(w.Context(), client.ObjectKeyFromObject(u), u))
		shard = u.GetLabels()[ownLabel]

		return shard != ""
	}, patience, interval, "%s gets a shard", name)

	return shard
}
