package command_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/pkg/shard/shardtest"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/command"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// operator are flags of init.
const operator = " -n ops --service-account operator"

// manifests returns what init prints for kubectl apply, in a file.
func manifests(t *testing.T, args ...string) string {
	t.Helper()
	p := newProgram(t)
	require.Equal(t, command.Fine, p.run(t.Context(), append([]string{"init"}, args...)...), p.err.String())

	file := filepath.Join(t.TempDir(), "ring.yaml")
	require.NoError(t, os.WriteFile(file, []byte(p.out.String()), 0o600))

	return file
}

// grants returns each verb of rules, with a resource and, if the rule names any, objects.
func grants(rules []rbacv1.PolicyRule) map[string]bool {
	all := map[string]bool{}

	for _, r := range rules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					all[strings.Join(append([]string{verb, resource + "." + group}, r.ResourceNames...), " ")] = true
				}
			}
		}
	}

	return all
}

// byName returns the objects of manifests by their kinds and names.
func byName(t *testing.T, files ...string) map[string]*unstructured.Unstructured {
	t.Helper()

	all := map[string]*unstructured.Unstructured{}

	for _, file := range files {
		objects, err := localplane.Manifests(file)
		require.NoError(t, err)

		for _, o := range objects {
			all[o.GetKind()+" "+o.GetName()] = o
		}
	}

	return all
}

// TestInitIsTheExample compares what init prints for the example with the manifests of the example, which the services
// and shards of other tests and of the demo run with. One of them is the name of the fence, which the assigner derives
// from that of the ring.
func TestInitIsTheExample(t *testing.T) {
	got := byName(t, manifests(t, "example", "--resource", "websites.example.clusterring.dev,fleets.example.clusterring.dev",
		"--controlled", "configmaps,ships.example.clusterring.dev", "-n", "example", "--service-account", "example-shard",
		"--fence"))
	want := byName(t, "deploy/example/rbac.yaml", "deploy/example/services-rbac.yaml", "deploy/example/flow-schema.yaml",
		"deploy/example/clusterring.yaml")

	rules := func(o *unstructured.Unstructured) map[string]bool {
		var role rbacv1.ClusterRole
		require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &role))

		return grants(role.Rules)
	}

	for _, role := range []string{
		"ClusterRole example:rebalancer", "ClusterRole example:ringquery", "ClusterRole example:assigner", "Role example-shard",
	} {
		require.Contains(t, got, role)
		require.Equal(t, rules(want[role]), rules(got[role]), role)
		require.Equal(t, want[role].GetLabels(), got[role].GetLabels(), role)
	}

	require.Subset(t, rules(want["ClusterRole example-shard"]), rules(got["ClusterRole example:shard"]),
		"the example may also write its objects")

	binding, clusterBinding := got["RoleBinding example-shard"], got["ClusterRoleBinding example:shard"]
	require.Equal(t, want["RoleBinding example-shard"].Object, binding.Object)
	require.Equal(t, binding.Object["subjects"], clusterBinding.Object["subjects"])
	require.Equal(t, want["FlowSchema example-leases"].Object, got["FlowSchema example-leases"].Object)

	fence := func(o *unstructured.Unstructured) any {
		accounts, _, err := unstructured.NestedSlice(o.Object, "spec", "fence", "serviceAccounts")
		require.NoError(t, err)

		return accounts
	}
	require.Equal(t, fence(want["ClusterRing example"]), fence(got["ClusterRing example"]))
}

// TestInitOnACluster applies what init prints. The service account then may do exactly what the shard needs, the shard
// works with its token, and the services may do their part.
func TestInitOnACluster(t *testing.T) {
	const websites = "websites.example.clusterring.dev"

	plane := localplane.Shared(t)
	require.NoError(t, plane.Install(t.Context(), "deploy/example/crd"))

	ns := plane.Namespace(t)
	args := []string{
		ns, "--resource", "website", "--controlled", "replicasets.apps:pods,cm", "-n", ns, "--service-account", "operator",
		"--slots", "3", "--fence", "--kubeconfig", plane.Kubeconfig(), "--cache-dir", t.TempDir(),
	}
	require.NoError(t, plane.Client.Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "operator"}}))

	config := rest.CopyConfig(plane.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + ns + ":operator", Groups: []string{"system:authenticated"},
	}
	account, err := client.New(config, client.Options{Scheme: plane.Client.Scheme(), Mapper: plane.Client.RESTMapper()})
	require.NoError(t, err)

	before := mayDo(t.Context(), t, account, ns)
	require.NoError(t, plane.Install(t.Context(), manifests(t, args...)))

	want := map[string]bool{}

	for resource, verbs := range map[string]string{
		websites: "get list watch patch", "configmaps.": "get list watch patch", "pods.": "get list watch patch",
		"replicasets.apps": "get list watch patch", "leases.coordination.k8s.io": "get list watch create update delete",
	} {
		for verb := range strings.FieldsSeq(verbs) {
			want[verb+" "+resource] = true
		}
	}

	mayIn := func(namespace string) { // the API server learns of roles one by one
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			got := mayDo(t.Context(), c, account, namespace)
			maps.DeleteFunc(got, func(grant string, _ bool) bool { return before[grant] })
			require.Equal(c, want, got)
		}, soon, tick)
	}
	mayIn(ns)
	maps.DeleteFunc(want, func(grant string, _ bool) bool { return strings.Contains(grant, "leases.") })
	mayIn(metav1.NamespaceDefault) // there, Leases are those of others

	for _, may := range []struct{ service, verb, group, resource, name string }{
		{"rebalancer", "patch", "example.clusterring.dev", "websites", ""},
		{"ringquery", "watch", "", "pods", ""},
		{"assigner", "get", "apps", "replicasets", ""},
		{"assigner", "create", "admissionregistration.k8s.io", "validatingadmissionpolicybindings", contract.FenceName(ns)},
	} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:" + v1alpha1.NamespaceSystem + ":" + may.service,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: may.verb, Group: may.group, Resource: may.resource, Name: may.name},
		}}
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			require.NoError(c, plane.Client.Create(t.Context(), review))
			require.True(c, review.Status.Allowed, may)
		}, soon, tick)
	}

	ring := &v1alpha1.ClusterRing{}
	require.NoError(t, plane.Client.Get(t.Context(), client.ObjectKey{Name: ns}, ring))
	require.Equal(t, v1alpha1.FenceAudit, ring.Spec.FenceMode())

	requireWorks(t, plane, ns)

	p := newProgram(t)
	args[2] = "nothings.example.org"
	require.Equal(t, command.NoAnswer, p.run(t.Context(), append([]string{"init"}, args...)...))
	require.Contains(t, p.err.String(), `the cluster has no resource "nothings.example.org"`)

	nowhere := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, localplane.WriteKubeconfig(nowhere, &rest.Config{Host: "https://127.0.0.1:1"}, "", ""))

	p = newProgram(t)
	require.Equal(t, command.NoAnswer, p.run(t.Context(), append(append([]string{"init"}, args...), "--kubeconfig", nowhere)...))
	require.Contains(t, p.err.String(), "do not ask the cluster: --offline")

	p = newProgram(t)
	args[4] = "configmaps"
	require.Equal(t, command.Fine, p.run(t.Context(), append([]string{"init", "--offline"}, args...)...), p.err.String())
	require.Contains(t, p.err.String(), "shard.Main(&examplev1.Nothing{})")
}

// mayDo returns what an account may do in a namespace, by the rules that the API server reports.
func mayDo(ctx context.Context, t require.TestingT, account client.Client, namespace string) map[string]bool {
	review := &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace},
	}
	require.NoError(t, account.Create(ctx, review))
	require.False(t, review.Status.Incomplete, review.Status.EvaluationError)

	var rules []rbacv1.PolicyRule
	for _, r := range review.Status.ResourceRules {
		rules = append(rules, rbacv1.PolicyRule{
			Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames,
		})
	}

	return grants(rules)
}

// requireWorks runs a shard as a Pod of the operator: it takes a slot, reconciles an object, and releases it.
func requireWorks(t *testing.T, plane *localplane.Plane, ns string) {
	t.Helper()

	kubeconfig, err := plane.PodKubeconfig(t.Context(), ns, "operator", "operator-1")
	require.NoError(t, err)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)

	website := &unstructured.Unstructured{}
	website.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.clusterring.dev", Version: "v1alpha1", Kind: "Website"})

	mgr, err := shard.NewManager(config, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}}, shard.Options{
		Ring: ns, Namespace: ns, Pod: "operator-1", Slots: shard.Count(3), DrainTimeout: -1,
		Kinds: shard.Kinds{shard.Main(website.DeepCopy()), shard.Controlled(&appsv1.ReplicaSet{}),
			shard.Controlled(&corev1.Pod{}), shard.Controlled(&corev1.ConfigMap{})},
	})
	require.NoError(t, err)

	reconciled := make(chan string, 10)
	require.NoError(t, ctrl.NewControllerManagedBy(mgr).Named(ns).For(website.DeepCopy()).Owns(&corev1.ConfigMap{}).Complete(
		reconcile.Func(func(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
			reconciled <- req.Name
			return reconcile.Result{}, nil
		})))

	begin(t, mgr)

	website.SetNamespace(ns)
	website.SetName("blog")
	require.NoError(t, unstructured.SetNestedField(website.Object, "Blog", "spec", "title"))
	require.NoError(t, plane.Client.Create(t.Context(), website))

	ring := shardtest.New(t, plane.Client, ns)
	ring.Assign(website, contract.SlotName(ns, 0))

	select {
	case name := <-reconciled:
		require.Equal(t, "blog", name)
	case <-clock.RealClock{}.After(soon):
		require.Fail(t, "no shard has reconciled the object")
	}

	ring.Drain(website)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		require.NoError(c, plane.Client.Get(t.Context(), client.ObjectKeyFromObject(website), website))
		require.Empty(c, website.GetLabels())
	}, soon, tick)
}

// TestInitForKustomize builds a kustomization with a Deployment and with what init prints as a component.
func TestInitForKustomize(t *testing.T) {
	args := strings.Fields("--resource websites.example.org --slots 3" + operator)

	p := newProgram(t)
	require.Equal(t, command.Fine, p.run(t.Context(), append([]string{"init", "-o", "kustomize"}, args...)...))

	resources, err := os.ReadFile(manifests(t, args...))
	require.NoError(t, err)

	files := filesys.MakeFsInMemory()
	for name, content := range map[string]string{
		"kustomization.yaml": "{resources: [deployment.yaml], components: [sharded]}",
		"deployment.yaml": "{apiVersion: apps/v1, kind: Deployment, metadata: {name: operator, namespace: ops}, " +
			"spec: {template: {spec: {containers: [{name: manager, args: [--mine]}]}}}}",
		"sharded/kustomization.yaml": p.out.String(),
		"sharded/ring.yaml":          string(resources),
	} {
		require.NoError(t, files.WriteFile(name, []byte(content)))
	}

	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, ".")
	require.NoError(t, err)
	require.Equal(t, 1+len(byName(t, manifests(t, args...))), built.Size())

	text, err := built.Resources()[0].AsYAML()
	require.NoError(t, err)

	var got appsv1.Deployment
	require.NoError(t, yaml.UnmarshalStrict(text, &got))
	require.Equal(t, int32(3), *got.Spec.Replicas)
	require.Equal(t, 0, got.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue())
	require.Equal(t, int64(60), *got.Spec.Template.Spec.TerminationGracePeriodSeconds)

	containers := got.Spec.Template.Spec.Containers
	require.Len(t, containers, 1)
	require.Equal(t, []string{"--mine"}, containers[0].Args)
	require.Equal(t, "/readyz", containers[0].ReadinessProbe.HTTPGet.Path)
}
