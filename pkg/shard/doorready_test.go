package shard_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/internal/testenv"
	"github.com/clusterring/clusterring/pkg/shard"
)

// slot returns the options of a shard in the Pod that waits for one of so many slots.
func (f *operators) slot(pod string, slots int) shard.Options {
	o := f.shard("")
	o.Pod, o.Slots = pod, shard.Count(slots)

	return o
}

// served are options of a manager with probes.
func (f *operators) served() (o manager.Options, url string) {
	f.Helper()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(f, err)
	require.NoError(f, listener.Close())

	o = f.options()
	o.HealthProbeBindAddress = listener.Addr().String()

	return o, "http://" + o.HealthProbeBindAddress + "/readyz"
}

// status returns the code of the answer; 0 if there is none.
func status(url string) int {
	resp, err := http.Get(url)
	if err != nil {
		return 0
	}

	defer resp.Body.Close()

	return resp.StatusCode
}

func (f *operators) lease(name string) *coordinationv1.Lease {
	f.Helper()

	return testenv.Lease(f, f.admin, client.ObjectKey{Namespace: f.namespace, Name: name})
}

func (f *operators) isHeld(name string) bool {
	return ptr.Deref(f.lease(name).Spec.HolderIdentity, "") == name
}

// counting counts the answers with a code to requests for a resource.
func (f *operators) counting(resource string, code int) *atomic.Int64 {
	var count atomic.Int64

	f.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return trip(func(req *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(req)
			if err == nil && resp.StatusCode == code && strings.Contains(req.URL.Path, "/"+resource) {
				count.Add(1)
			}

			return resp, err
		})
	})

	return &count
}

type trip func(*http.Request) (*http.Response, error)

func (t trip) RoundTrip(req *http.Request) (*http.Response, error) { return t(req) }

// gated is an index function that lets a cache be filled when it is opened.
func gated(open <-chan struct{}) client.IndexerFunc {
	return func(client.Object) []string {
		<-open
		return nil
	}
}

// A container that restarts holds its slot from the claim on, however long its caches take to be filled; it is ready when it works.
func TestClaimedSlotIsRenewedWhileCachesAreFilled(t *testing.T) {
	f, o := newOperators(t), newOperator()
	options := f.slot("pod-a", 1)
	options.LeaseDuration, options.RenewDeadline = 3*time.Second, 2*time.Second
	served, url := f.served()
	mgr, err := shard.NewManager(f.config, served, options)
	require.NoError(t, err)

	open := make(chan struct{})
	require.NoError(t, mgr.GetFieldIndexer().IndexField(t.Context(), &corev1.ConfigMap{}, "gate", gated(open)))
	require.NoError(t, o.SetupWithManager(mgr, "maps"))

	slot := f.namespace + "-0"
	f.configMap("mine", slot)
	f.start(mgr)
	f.eventually(func() bool { return f.isHeld(slot) }, "it claims the slot")

	claimed := f.lease(slot).Spec.RenewTime.Time
	f.eventually(func() bool { return f.lease(slot).Spec.RenewTime.Sub(claimed) > 2*options.LeaseDuration }, "it renews the Lease")
	require.Equal(t, http.StatusInternalServerError, status(url), "it does not work yet")
	require.Equal(t, "pod-a", f.lease(slot).Annotations["alpha.sharding.timebertt.dev/pod"])
	require.Zero(t, o.calls("mine"))

	close(open)
	f.eventually(func() bool { return o.calls("mine") > 0 }, "it works")
	f.eventually(func() bool { return status(url) == http.StatusOK }, "it is ready")
}

// While a Pod stands by, it serves probes, and what runs in every replica reads kinds that are not sharded.
func TestStandbyServes(t *testing.T) {
	f := newOperators(t)
	first := f.manager(f.slot("pod-a", 1))
	require.NoError(t, newOperator().SetupWithManager(first, "maps"))
	stop := f.start(first)
	<-first.Elected()

	options := f.slot("pod-b", 1)
	options.Controllers = map[string]shard.Placement{"own": shard.EveryReplica()}
	served, url := f.served()
	mgr, err := shard.NewManager(f.config, served, options)
	require.NoError(t, err)

	o := newOperator()
	require.NoError(t, o.SetupWithManager(mgr, "maps"))

	read := make(chan error, 10)
	own := reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
		read <- errors.Join(mgr.GetClient().List(ctx, &corev1.SecretList{}, client.InNamespace(f.namespace)))
		read <- mgr.GetClient().List(ctx, &corev1.ConfigMapList{})

		return reconcile.Result{}, nil
	})
	c, err := ctrlcontroller.New("own", mgr, ctrlcontroller.Options{Reconciler: own})
	require.NoError(t, err)
	require.NoError(t, c.Watch(tick{}))

	f.start(mgr)
	f.eventually(func() bool { return status(url) == http.StatusOK }, "a standby is ready")
	require.NoError(t, receive(f, read, "it reads other kinds"))
	require.ErrorContains(t, receive(f, read, "it cannot read sharded kinds"), "does not work as a shard yet")

	f.configMap("mine", f.namespace+"-0")
	require.NoError(t, stop())
	f.eventually(func() bool { return o.calls("mine") > 0 }, "it takes the slot, and works")
	require.NoError(t, o.failed())
}

// The watches of other kinds start before the shard has its objects. A function that maps their events to objects of the shard waits for these.
func TestEventsBeforeTheClaimAreMappedAfterIt(t *testing.T) {
	f := newOperators(t)
	require.NoError(t, f.admin.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "for-all"}}))
	f.configMap("mine", f.namespace+"-0")

	first := f.manager(f.slot("pod-a", 1))
	require.NoError(t, newOperator().SetupWithManager(first, "maps"))
	stop := f.start(first)
	<-first.Elected()

	o, served := newOperator(), f.options()
	served.Cache.DefaultNamespaces = map[string]cache.Config{f.namespace: {}}
	mgr, err := shard.NewManager(f.config, served, f.slot("pod-b", 1))
	require.NoError(t, err)

	o.client = mgr.GetClient()
	mapped := make(chan error, 1)
	all := func(ctx context.Context, _ client.Object) []reconcile.Request {
		list := &corev1.ConfigMapList{}
		err := o.client.List(ctx, list)

		if len(list.Items) != 1 {
			err = errors.Join(err, fmt.Errorf("%d objects", len(list.Items)))
		}
		mapped <- err

		return nil
	}
	own, err := cache.New(f.config, cache.Options{DefaultNamespaces: served.Cache.DefaultNamespaces})
	require.NoError(t, err)
	require.NoError(t, mgr.Add(own))
	require.NoError(t, ctrl.NewControllerManagedBy(mgr).Named("maps").For(&corev1.ConfigMap{}).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(all)).
		WatchesRawSource(source.Kind(own, &corev1.ServiceAccount{}, &handler.TypedEnqueueRequestForObject[*corev1.ServiceAccount]{})). // a cache of its own
		Complete(o))
	f.start(mgr)
	f.eventually(func() bool {
		return testenv.Lease(f, f.admin, client.ObjectKey{Namespace: f.namespace, Name: "standby-" + f.namespace + "-pod-b"}).Name != ""
	}, "it waits for the slot")
	require.Empty(t, mapped)

	require.NoError(t, stop())
	require.NoError(t, receive(f, mapped, "the event is mapped"))
}

// The services assign nothing to a shard that would not see it.
func TestLeaseNamesTheNamespacesOfTheManager(t *testing.T) {
	f := newOperators(t)
	o := f.options()
	o.Cache.DefaultNamespaces = map[string]cache.Config{f.namespace: {}, "default": {}}
	mgr, err := shard.NewManager(f.config, o, f.shard("shard-0"))
	require.NoError(t, err)
	require.NoError(t, newOperator().SetupWithManager(mgr, "namespaces"))
	f.start(mgr)
	<-mgr.Elected()

	lease := testenv.Lease(f, f.admin, client.ObjectKey{Namespace: f.namespace, Name: "shard-0"})
	require.Equal(t, "default,"+f.namespace, contract.Namespaces(lease.Annotations, lease.Spec.RenewTime.Time))
}

// A version that may not read one more kind takes nothing: whoever has the objects keeps them.
func TestVersionThatCannotFillItsCachesTakesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		kinds  shard.Kinds
		watch  client.Object
		denied string
	}{
		"a sharded kind": {kinds: shard.Kinds{shard.Main(&corev1.ConfigMap{}), shard.Controlled(&corev1.Secret{})}, denied: "secrets"},
		"another kind":   {kinds: shard.Kinds{shard.Main(&corev1.ConfigMap{})}, watch: &corev1.Secret{}, denied: "secrets"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newOperators(t)
			role := &rbacv1.ClusterRole{
				ObjectMeta: metav1.ObjectMeta{Name: f.namespace},
				Rules: []rbacv1.PolicyRule{
					{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"*"}},
					{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"*"}},
				},
			}
			require.NoError(t, f.admin.Create(t.Context(), role))
			require.NoError(t, f.admin.Create(t.Context(), &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: f.namespace},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
				Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: f.namespace}},
			}))

			f.config.Impersonate.UserName = f.namespace
			refused := f.counting(tc.denied, http.StatusForbidden)

			options := f.slot("pod-a", 1)
			options.Kinds = tc.kinds
			served, url := f.served()
			mgr, err := shard.NewManager(f.config, served, options)
			require.NoError(t, err)

			o := newOperator()
			o.client = mgr.GetClient()
			b := ctrl.NewControllerManagedBy(mgr).Named("maps").For(&corev1.ConfigMap{})

			if tc.watch != nil {
				b = b.Watches(tc.watch, &handler.EnqueueRequestForObject{}, builder.OnlyMetadata)
			}

			require.NoError(t, b.Complete(o))
			f.start(mgr)

			f.eventually(func() bool { return status(url) == http.StatusInternalServerError }, "it answers, and is not ready")
			f.eventually(func() bool { return refused.Load() > 1 }, "it has tried")
			require.Empty(t, f.lease(f.namespace+"-0").Name, "it takes nothing")

			role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{tc.denied}, Verbs: []string{"*"}})
			require.NoError(t, f.admin.Update(t.Context(), role))
			f.eventually(func() bool { return status(url) == http.StatusOK }, "it works as soon as it may")
		})
	}
}

// A runnable that ignores that the manager stops does not keep the process, and with it the Lease, alive after another one has failed.
func TestFailureEndsTheProcessWhateverHangs(t *testing.T) {
	f := newOperators(t)
	options := f.options()
	options.GracefulShutdownTimeout = new(200 * time.Millisecond)
	o := f.shard("shard-0")
	o.Runnables = map[string]shard.Placement{"*shard_test.hanging": shard.EveryReplica(), "*shard_test.failing": shard.EveryReplica()}
	mgr, err := shard.NewManager(f.config, options, o)
	require.NoError(t, err)
	require.NoError(t, newOperator().SetupWithManager(mgr, "maps"))

	hanging, failing := &hanging{until: make(chan struct{})}, &failing{when: make(chan struct{})}
	require.NoError(t, mgr.Add(hanging))
	require.NoError(t, mgr.Add(failing))

	ended := make(chan error, 1)

	go func() { ended <- mgr.Start(t.Context()) }()

	<-mgr.Elected()
	close(failing.when)
	require.ErrorIs(t, receive(f, ended, "Start returns"), errFailing)
	require.Empty(t, ptr.Deref(f.lease("shard-0").Spec.HolderIdentity, ""), "no worker runs, so the Lease is released")
	close(hanging.until)
}

var errFailing = errors.New("it fails")

type (
	hanging struct{ until chan struct{} }
	failing struct{ when chan struct{} }
)

func (h *hanging) Start(context.Context) error {
	<-h.until
	return nil
}

func (h *failing) Start(ctx context.Context) error {
	select {
	case <-h.when:
		return errFailing
	case <-ctx.Done():
		return nil
	}
}
