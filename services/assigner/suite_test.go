package assigner_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/assigner"
	"github.com/clusterring/clusterring/services/internal/admission"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/output"
)

const (
	patience = 20 * time.Second
	interval = 20 * time.Millisecond
)

var names atomic.Int64

// unique returns a name that no other object of this test process has.
func unique(prefix string) string { return fmt.Sprintf("%s-%d", prefix, names.Add(1)) }

// eventually waits until the condition holds. Unlike require.Eventually it asks in the goroutine of the test, so that
// the condition may make requirements of its own.
func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()

	err := wait.PollUntilContextTimeout(t.Context(), interval, patience, true, func(context.Context) (bool, error) {
		return condition(), nil
	})
	require.NoError(t, err, what)
}

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// replica is a running assigner, with the rights of its service account.
type replica struct {
	url, health string
	logs        *output.Buffer
	stop        func() // waits for the end; may be called again
	// mayLackRights is set where missing permissions are what is tested.
	mayLackRights bool
}

func newCommand(args []string) *cobra.Command {
	cmd := assigner.NewCommand()
	cmd.SetErr(&output.Buffer{})
	cmd.SetArgs(args)

	return cmd
}

// launch starts an assigner without waiting for it.
func launch(t *testing.T, p *localplane.Plane, args ...string) *replica {
	t.Helper()

	webhook := localplane.FreeAddress(t)

	return launchAt(t, p, webhook, append([]string{"--webhook-url=https://" + webhook}, args...)...)
}

func launchAt(t *testing.T, p *localplane.Plane, webhook string, args ...string) *replica {
	t.Helper()

	r := &replica{url: "https://" + webhook, health: "http://" + localplane.FreeAddress(t), logs: &output.Buffer{}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))

	cmd := assigner.NewCommand()
	cmd.SetErr(r.logs)
	cmd.SetArgs(append([]string{
		"--kubeconfig=" + p.ServiceKubeconfig(t, "assigner"),
		"--webhook-bind-address=" + webhook, "--webhook-mode=url", "--webhook-timeout=5s", // this machine may be slow
		"--health-probe-bind-address=" + strings.TrimPrefix(r.health, "http://"), "--metrics-bind-address=0",
		"--leader-elect-lease-duration=15s", "--leader-elect-renew-deadline=10s", "--leader-elect-retry-period=200ms",
		"--log-format=text", "--log-level=debug",
	}, args...))

	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()

	r.stop = sync.OnceFunc(func() {
		cancel()

		if err := <-done; err != nil {
			t.Errorf("the assigner failed: %v", err)
		}

		if t.Failed() {
			t.Log(r.logs.String())
		}

		for line := range strings.Lines(r.logs.String()) {
			if strings.Contains(line, "ERROR") {
				t.Log(line)
			}
		}

		if !r.mayLackRights && strings.Contains(r.logs.String(), "forbidden") {
			t.Error("the assigner lacks rights:\n" + r.logs.String())
		}
	})
	t.Cleanup(r.stop)

	return r
}

// start starts an assigner and waits until it is ready.
func start(t *testing.T, p *localplane.Plane, args ...string) *replica {
	t.Helper()

	r := launch(t, p, args...)
	eventually(t, r.ready, "the assigner becomes ready")

	return r
}

var probes = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func (r *replica) ready() bool {
	resp, err := probes.Get(r.health + "/readyz")
	if err != nil {
		return false
	}

	_ = resp.Body.Close()

	return resp.StatusCode == http.StatusOK
}

// fixture is a ring with a resource and a namespace of its own, which configmaps are controlled by.
type fixture struct {
	*localplane.Plane

	t         *testing.T
	name      string // of the ring
	label     string // spec.shardLabel of the ring
	namespace string
	kind      schema.GroupVersionKind
	shards    []string
}

func newFixture(t *testing.T, name string, shards ...string) *fixture {
	t.Helper()

	return newFixtureOf(t, name, []v1alpha1.ControlledResource{{Resource: "configmaps"}}, shards...)
}

// running returns one with an assigner whose webhook the API server calls.
func running(t *testing.T, name string, shards ...string) *fixture {
	t.Helper()

	f := newFixture(t, name, shards...)
	start(t, f.Plane)
	f.registered()

	return f
}

// newFixtureOf is one whose websites control those resources.
func newFixtureOf(t *testing.T, name string, controlled []v1alpha1.ControlledResource, shards ...string) *fixture {
	t.Helper()

	return (&fixture{t: t, name: name}).begin(controlled, shards...)
}

// begin creates the ring, whose name is known.
func (f *fixture) begin(controlled []v1alpha1.ControlledResource, shards ...string) *fixture {
	f.t.Helper()

	f.Plane, f.kind = localplane.Shared(f.t), websiteKind(f.name)
	f.namespace = f.Namespace(f.t)
	f.serve(f.kind)

	f.join(shards...)
	f.declare(v1alpha1.RingResource{Group: f.kind.Group, Resource: "websites", ControlledResources: controlled})

	return f
}

func websiteKind(ring string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: ring + ".example.org", Version: "v1", Kind: "Website"}
}

// serve installs a custom resource and waits until the API server serves it.
func (f *fixture) serve(kind schema.GroupVersionKind) {
	f.t.Helper()

	require.NoError(f.t, apiextensionsv1.AddToScheme(f.Client.Scheme()))

	plural := strings.ToLower(kind.Kind) + "s"
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + kind.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: kind.Group,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: strings.ToLower(kind.Kind),
				Kind: kind.Kind},
			Scope: apiextensionsv1.NamespaceScoped,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: kind.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: new(true),
				}},
			}},
		},
	}
	require.NoError(f.t, f.Client.Create(f.t.Context(), crd))
	f.t.Cleanup(func() { require.NoError(f.t, client.IgnoreNotFound(f.Client.Delete(context.Background(), crd))) })

	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)
	eventually(f.t, func() bool { return f.Client.List(f.t.Context(), list) == nil }, "the custom resource is served")
}

// join makes shards hold their Leases.
func (f *fixture) join(shards ...string) {
	f.t.Helper()

	for _, s := range shards {
		require.NoError(f.t, f.shard(s).Acquire(f.t.Context()))
	}

	f.shards = append(f.shards, shards...)
}

func (f *fixture) shard(name string) *leasetest.Shard {
	return &leasetest.Shard{Client: f.Client, Ring: f.name, Namespace: f.namespace, Name: name, ShardLabel: f.label}
}

// declare creates the ring for the test's namespace.
func (f *fixture) declare(resources ...v1alpha1.RingResource) {
	f.t.Helper()

	ring := &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: f.name},
		Spec: v1alpha1.ClusterRingSpec{
			Resources: resources, ShardLabel: f.label,
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: f.namespace}},
		},
	}
	require.NoError(f.t, f.Client.Create(f.t.Context(), ring))
	f.list()
	f.record(resources...)
	f.t.Cleanup(func() {
		f.changeRing(func(r *v1alpha1.ClusterRing) { r.Finalizers = nil })
		require.NoError(f.t, client.IgnoreNotFound(f.Client.Delete(context.Background(), ring)))
		require.NoError(f.t, client.IgnoreNotFound(f.Client.Delete(context.Background(), f.emptyConfiguration())))
	})
}

// list lists the ring for the admission policies, on behalf of the lease monitor. It stays there.
func (f *fixture) list() {
	f.t.Helper()

	parameter := &v1alpha1.PolicyParameter{ObjectMeta: metav1.ObjectMeta{Name: contract.ShardsParameter}}
	_, err := controllerutil.CreateOrUpdate(f.t.Context(), f.Client, parameter, func() error {
		if parameter.Data == nil {
			parameter.Data = map[string]string{}
		}

		parameter.Data["namespaces."+f.name] = ""

		return nil
	})
	require.NoError(f.t, err)
}

func (f *fixture) ring() *v1alpha1.ClusterRing {
	f.t.Helper()

	ring := &v1alpha1.ClusterRing{}
	require.NoError(f.t, f.Client.Get(f.t.Context(), client.ObjectKey{Name: f.name}, ring))

	return ring
}

// changeRing changes the ring if it still exists. It works in cleanups as well.
func (f *fixture) changeRing(change func(*v1alpha1.ClusterRing)) {
	f.t.Helper()

	ring := &v1alpha1.ClusterRing{}

	err := f.Client.Get(context.Background(), client.ObjectKey{Name: f.name}, ring)
	if err == nil {
		before := ring.DeepCopy()
		change(ring)
		err = f.Client.Patch(context.Background(), ring, client.MergeFrom(before))
	}

	require.NoError(f.t, client.IgnoreNotFound(err))
}

// settle says on behalf of the rebalancer that every object is in its place.
func (f *fixture) settle(shards ...string) {
	f.t.Helper()

	ring := f.ring()
	before := ring.DeepCopy()
	ring.Status.Assignment.Fingerprint = fingerprint(shards)
	require.NoError(f.t, f.Client.Status().Patch(f.t.Context(), ring, client.MergeFrom(before)))
}

// record says on behalf of the rebalancer that objects of the resources may carry labels.
func (f *fixture) record(resources ...v1alpha1.RingResource) {
	f.t.Helper()

	ring := f.ring()
	before := ring.DeepCopy()
	ring.Status.Assignment = &v1alpha1.AssignmentStatus{}

	for _, r := range resources {
		ring.Status.Assignment.Resources = append(ring.Status.Assignment.Resources, v1alpha1.AssignedResource{
			Group: r.Group, Resource: r.Resource, ControlledResources: r.ControlledResources, Key: r.Key,
		})
	}

	require.NoError(f.t, f.Client.Status().Patch(f.t.Context(), ring, client.MergeFrom(before)))
}

// reason returns the reason of the condition WebhookRegistered, with its status.
func (f *fixture) reason() string {
	c := apimeta.FindStatusCondition(f.ring().Status.Conditions, v1alpha1.ConditionWebhookRegistered)
	if c == nil {
		return ""
	}

	return string(c.Status) + " " + c.Reason
}

// registered waits until the API server asks the assigner about new objects.
func (f *fixture) registered() {
	f.t.Helper()

	eventually(f.t, func() bool { return f.reason() == "True Registered" }, "the webhook is registered")
	f.asked()
}

// asked waits until the API server has taken note of the registration.
func (f *fixture) asked() {
	f.t.Helper()

	eventually(f.t, func() bool {
		return f.create(f.website(unique("asked"))).GetLabels()[f.shardLabel()] != ""
	}, "new objects get a shard")
}

func (f *fixture) website(name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(f.kind)
	u.SetNamespace(f.namespace)
	u.SetName(name)

	return u
}

// child returns a configmap that the object controls.
func (f *fixture) child(name string, owner *unstructured.Unstructured) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"})
	u.SetNamespace(f.namespace)
	u.SetName(name)
	u.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())})

	return u
}

// create creates the object and returns it as the API server answers, which is what the write itself has made of it.
func (f *fixture) create(obj *unstructured.Unstructured) *unstructured.Unstructured {
	f.t.Helper()
	require.NoError(f.t, f.Client.Create(f.t.Context(), obj))

	return obj
}

func (f *fixture) shardLabel() string { return contract.LabelKeysOf(f.name, f.label).Shard }

// owner returns the shard that the ring gives a website to.
func (f *fixture) owner(name string) string {
	k := key.Key{Group: f.kind.Group, Kind: f.kind.Kind, Namespace: f.namespace, Name: name}
	shard, _ := hashring.New(f.shards).Owner(k.Hash())

	return shard
}

func fingerprint(shards []string) string { return hashring.New(shards).Fingerprint() }

func (f *fixture) emptyConfiguration() *admissionregistrationv1.MutatingWebhookConfiguration {
	return &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: contract.WebhookConfigurationName(f.name)},
	}
}

// configuration returns the ring's webhook configuration, or nil if there is none.
func (f *fixture) configuration() *admissionregistrationv1.MutatingWebhookConfiguration {
	f.t.Helper()

	c := f.emptyConfiguration()
	if err := f.Client.Get(f.t.Context(), client.ObjectKeyFromObject(c), c); err != nil {
		require.NoError(f.t, client.IgnoreNotFound(err))
		return nil
	}

	return c
}

// sharder returns the webhook of a ring that assigns objects.
func sharder(c *admissionregistrationv1.MutatingWebhookConfiguration) *admissionregistrationv1.MutatingWebhook {
	return &c.Webhooks[slices.IndexFunc(c.Webhooks,
		func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == contract.WebhookName })]
}

// rules returns how many resources are registered.
func (f *fixture) rules() int {
	f.t.Helper()

	if c := f.configuration(); c != nil && len(c.Webhooks) == 3 {
		return len(sharder(c).Rules)
	}

	return 0
}

// metric returns the sum over the series of a metric whose labels match.
func metric(t *testing.T, name string, match func(labels map[string]string) bool) (total float64) {
	t.Helper()

	families, err := metrics.Registry.Gather()
	require.NoError(t, err)

	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}

			if family.GetName() == name && match(labels) {
				total += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}

	return total
}

// count returns how many requests for a ring had an outcome; "" stands for any but those of dry runs that the assigner
// itself sends.
func count(t *testing.T, ring, outcome string) int {
	t.Helper()

	return int(metric(t, "clusterring_assigner_admission_requests_total", func(labels map[string]string) bool {
		return labels["ring"] == ring && (labels["outcome"] == outcome || outcome == "" &&
			labels["outcome"] != string(admission.Probed))
	}))
}

// strayed returns how many requests were sent to paths that are not registered.
func strayed(t *testing.T) float64 {
	t.Helper()

	return metric(t, "clusterring_assigner_admission_errors_total",
		func(labels map[string]string) bool { return labels["code"] == "404" })
}

// warnings collects what the API server warns about.
type warnings struct {
	mu   sync.Mutex
	text []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.text = append(w.text, text)
}

// take returns the warnings since the last call.
func (w *warnings) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()

	defer func() { w.text = nil }()

	return strings.Join(w.text, "\n")
}

// clientWith returns an administrator's client, changed.
func (f *fixture) clientWith(change func(*rest.Config)) client.Client {
	f.t.Helper()

	config := rest.CopyConfig(f.Config)
	change(config)

	c, err := client.New(config, client.Options{Scheme: f.Client.Scheme()})
	require.NoError(f.t, err)

	return c
}

// as returns a client of another user.
func (f *fixture) as(user string, groups ...string) client.Client {
	f.t.Helper()

	return f.clientWith(func(c *rest.Config) {
		c.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
	})
}

// rebalancer returns a client of the rebalancer with every permission.
func (f *fixture) rebalancer() client.Client {
	return f.as("system:serviceaccount:"+contract.SystemNamespace+":rebalancer", "system:masters")
}

// allow lasts until the test ends: a ClusterRole with these labels and rules.
func (f *fixture) allow(name string, labels map[string]string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	f.t.Helper()

	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: f.name + "-" + name, Labels: labels}, Rules: rules}
	require.NoError(f.t, f.Client.Create(f.t.Context(), role))
	f.t.Cleanup(func() { require.NoError(f.t, f.Client.Delete(context.Background(), role)) })
	require.NoError(f.t, f.Aggregate(f.t.Context()))

	return role
}

// ofAssigner are the labels of a ClusterRole that becomes a part of the assigner's.
var ofAssigner = map[string]string{contract.LabelAggregateToAssigner: "true"}

func (f *fixture) warned() (client.Client, *warnings) {
	w := &warnings{}

	return f.clientWith(func(c *rest.Config) { c.WarningHandler = w }), w
}
