package chart_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/chart"
	"github.com/clusterring/clusterring/tools/manifests"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// digest is that of an image that does not exist.
const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// images are what kustomize makes of the names in the base, and the chart with imageValues.
var images = []map[string]string{
	{"name": "clusterring/leasemonitor", "newName": "registry.example.com/clusterring/leasemonitor", "newTag": "v7"},
	{"name": "clusterring/assigner", "newName": "registry.example.com/clusterring/assigner", "digest": digest},
	{"name": "clusterring/rebalancer", "newName": "registry.example.com/mine", "newTag": "v7"},
	{"name": "clusterring/ringquery", "newName": "other.example.com/clusterring/ringquery", "newTag": "v8"},
}

var imageValues = []string{
	`image={"registry": "registry.example.com", "tag": "v7"}`, `assigner.image.digest="` + digest + `"`,
	`rebalancer.image.repository="mine"`,
	`ringquery.image={"registry": "other.example.com", "tag": "v8"}`,
}

// with returns the values that install some components, with the images of the test.
func with(components []string) []string {
	values := append([]string{"namespace.create=true"}, imageValues...)
	for _, component := range components {
		values = append(values, chart.Value(component)+".enabled=true")
	}

	return values
}

// TestChartIsTheKustomization: with the values of some components, the chart is what kustomize builds of the base and
// these components.
func TestChartIsTheKustomization(t *testing.T) {
	all, err := chart.Components(root)
	require.NoError(t, err)
	require.Greater(t, len(all), 5)

	combinations := [][]string{
		{}, all, {"autoscaling", "network-policies"}, {"cert-manager", "monitoring", "network-policies"}, {"cert-manager",
			"sharder"}, {"development", "pods"},
	}
	for _, component := range all {
		combinations = append(combinations, []string{component})
	}

	for _, components := range combinations {
		t.Run("base with "+strings.Join(components, " and "), func(t *testing.T) {
			t.Parallel()

			built, err := manifests.Combine(root, images, components...)
			require.NoError(t, err)

			want := objects{}
			for _, o := range built {
				want[key(o)] = o
			}

			got := render(t, system, with(components)...)
			for name, o := range got {
				unstructured.RemoveNestedField(o.Object, "metadata", "annotations", "helm.sh/resource-policy")

				if len(o.GetAnnotations()) == 0 {
					unstructured.RemoveNestedField(o.Object, "metadata", "annotations")
				}

				if assert.Contains(t, want, name) {
					assert.Equal(t, plain(t, want[name]), plain(t, o), name)
				}
			}
			require.Len(t, got, len(want))
		})
	}
}

// plain returns an object as JSON, so that 1 and 1.0 are the same.
func plain(t *testing.T, o *unstructured.Unstructured) string {
	t.Helper()

	content, err := json.MarshalIndent(o.Object, "", " ")
	require.NoError(t, err)

	return string(content)
}

// TestNamespaceIsThatOfTheRelease: in another namespace, everything names that one, and the services know about it.
func TestNamespaceIsThatOfTheRelease(t *testing.T) {
	const other = "elsewhere"

	all, err := chart.Components(root)
	require.NoError(t, err)

	in, elsewhere := render(t, system, with(all)...), render(t, other, with(all)...)
	require.Len(t, elsewhere, len(in))

	added := []string{"--namespace=" + other,
		"--default-namespace-selector=kubernetes.io/metadata.name notin (kube-node-lease,kube-public,kube-system," +
			other + ")"}

	for name, o := range in {
		if o.GetKind() == "CustomResourceDefinition" {
			continue
		}

		want := strings.ReplaceAll(plain(t, o), system, other)
		got := elsewhere[strings.ReplaceAll(name, system, other)]
		require.NotNil(t, got, name)

		if o.GetKind() == "Deployment" {
			container, ok := at(t, got.Object, container).(map[string]any)
			require.True(t, ok)

			args, _, _ := unstructured.NestedStringSlice(container, "args")
			require.Equal(t, added, args[len(args)-2:])
			require.NoError(t, unstructured.SetNestedStringSlice(container, args[:len(args)-2], "args"))
		}
		require.Equal(t, want, plain(t, got))
	}
}

// at returns what is at a path of keys and indices, separated by spaces, in an object.
func at(t *testing.T, from any, path string) any {
	t.Helper()

	for step := range strings.FieldsSeq(path) {
		switch in := from.(type) {
		case map[string]any:
			from = in[step]
		case []any:
			i, err := strconv.Atoi(step)
			require.NoError(t, err)

			if i < 0 {
				i += len(in)
			}

			from = in[i]
		default:
			return nil
		}
	}

	return from
}

const (
	assigner  = "Deployment sharding-system assigner"
	pod       = "spec template spec "
	container = pod + "containers 0 "
)

// effects says which field of which object a value changes, and to what. A field that is empty is the whole object.
var effects = []struct{ value, object, field, want string }{
	{`image.registry="r.example.com"`, assigner, container + "image", `"r.example.com/clusterring/assigner:v0.1.0"`},
	{`image.pullPolicy="Always"`, assigner, container + "imagePullPolicy", `"Always"`},
	{`imagePullSecrets=[{"name": "registry"}]`, assigner, pod + "imagePullSecrets", `[{"name": "registry"}]`},
	{`priorityClassName="mine"`, assigner, pod + "priorityClassName", `"mine"`},
	{`priorityClassName="mine"`, "ResourceQuota sharding-system critical-pods",
		"spec scopeSelector matchExpressions 0 values", `["mine"]`},
	{`priorityClassName=""`, "ResourceQuota sharding-system critical-pods", "", `null`},
	{`quota.enabled=false`, "ResourceQuota sharding-system critical-pods", "", `null`},
	{`quota.pods="7"`, "ResourceQuota sharding-system critical-pods", "spec hard pods", `"7"`},
	{`commonLabels={"team": "a"}`, "ClusterRole clusterring:assigner", "metadata labels team", `"a"`},
	{`commonLabels={"team": "a"}`, assigner, "spec template metadata labels team", `"a"`},
	{`commonAnnotations={"team": "a"}`, "Service sharding-system assigner", "metadata annotations", `{"team": "a"}`},
	{`commonAnnotations={"team": "a"}`, assigner, "spec template metadata annotations team", `"a"`},
	{`podLabels={"team": "a"}`, assigner, "spec template metadata labels team", `"a"`},
	{`podAnnotations={"team": "a"}`, assigner, "spec template metadata annotations team", `"a"`},
	{`nodeSelector={"disk": "ssd"}`, assigner, pod + "nodeSelector", `{"disk": "ssd"}`},
	{`tolerations=[{"key": "x"}]`, assigner, pod + "tolerations", `[{"key": "x"}]`},
	{`affinity={"nodeAffinity": {}}`, assigner, pod + "affinity", `{"nodeAffinity": {}}`},
	{`crds.enabled=false`, "CustomResourceDefinition clusterrings.sharding.timebertt.dev", "", `null`},
	{`crds.keep=false`, "CustomResourceDefinition clusterrings.sharding.timebertt.dev",
		"metadata annotations helm.sh/resource-policy", `null`},
	{`namespace.create=false`, "Namespace sharding-system", "", `null`},
	{`policies.removal=false`, "ValidatingAdmissionPolicy removal.sharding.timebertt.dev", "", `null`},
	{`policies.removal=false`, "ValidatingAdmissionPolicyBinding ring-rights.sharding.timebertt.dev", "", `null`},
	{`policies.services=false`, "ValidatingAdmissionPolicy rebalancer.sharding.timebertt.dev", "", `null`},
	{`policies.shardLeases=false`, "ValidatingAdmissionPolicy ring-shards.sharding.timebertt.dev", "", `null`},
	{`policies.fence=false`, "ValidatingAdmissionPolicy fence.sharding.timebertt.dev", "", `null`},
	{
		`policies.webhookURLs=["https://a.example.com/"]`, "ValidatingAdmissionPolicy assigner.sharding.timebertt.dev",
		"spec variables 0",
		`{"name": "urls", "expression": "[\"https://a.example.com/\"]"}`,
	},
	{
		`certManager={"enabled": true, "issuerRef": {"kind": "ClusterIssuer", "name": "mine"}}`,
		"Certificate sharding-system ringquery", "spec issuerRef",
		`{"kind": "ClusterIssuer", "name": "mine"}`,
	},
	{`certManager={"enabled": true, "issuerRef": {"name": "mine"}}`, "Certificate sharding-system clusterring-ca",
		"", `null`},
	{`networkPolicies={"enabled": true, "apiServerPorts": [1234]}`, "NetworkPolicy sharding-system to-api-server",
		"spec egress", `[{"ports": [{"port": 1234, "protocol": "TCP"}]}]`},
	{
		`networkPolicies={"enabled": true, "apiServerCIDRs": ["10.0.0.1/32"]}`, "NetworkPolicy sharding-system to-api-server",
		"spec egress 0 to",
		`[{"ipBlock": {"cidr": "10.0.0.1/32"}}]`,
	},
	{
		`networkPolicies={"enabled": true, "metricsNamespaceLabels": {"a": "b", "metrics": null}}`,
		"NetworkPolicy sharding-system to-metrics",
		"spec ingress 0 from 0 namespaceSelector matchLabels", `{"a": "b"}`,
	},
	{`autoscaling={"enabled": true, "minReplicas": 3}`, "HorizontalPodAutoscaler sharding-system assigner",
		"spec minReplicas", `3`},
	{`autoscaling={"enabled": true, "maxReplicas": 30}`, "HorizontalPodAutoscaler sharding-system assigner",
		"spec maxReplicas", `30`},
	{
		`autoscaling={"enabled": true, "targetCPUUtilizationPercentage": 50}`,
		"HorizontalPodAutoscaler sharding-system assigner",
		"spec metrics 0 resource target averageUtilization", `50`,
	},
	{`monitoring={"enabled": true, "interval": "5s"}`, "ServiceMonitor sharding-system clusterring",
		"spec endpoints 0 interval", `"5s"`},
	{`monitoring={"enabled": true, "labels": {"release": "p"}}`, "ServiceMonitor sharding-system clusterring",
		"metadata labels release", `"p"`},
	{`pods={"enabled": true, "shardNamespaces": ["a"]}`, "RoleBinding a clusterring-leasemonitor-pods",
		"subjects 0 namespace", `"sharding-system"`},
	{`pods={"enabled": false, "shardNamespaces": ["a"]}`, "RoleBinding a clusterring-leasemonitor-pods", "", `null`},
	{`assigner.replicas=5`, assigner, "spec replicas", `5`},
	{`assigner.args=["--log-level=debug"]`, assigner, container + "args -1", `"--log-level=debug"`},
	{`assigner.env=[{"name": "A", "value": "b"}]`, assigner, container + "env -1", `{"name": "A", "value": "b"}`},
	{`assigner.resources={"limits": {"cpu": "2"}}`, assigner, container + "resources",
		`{"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "256Mi"}}`},
	{`assigner.podDisruptionBudget.enabled=false`, "PodDisruptionBudget sharding-system assigner", "", `null`},
	{`assigner.podDisruptionBudget.maxUnavailable="50%"`, "PodDisruptionBudget sharding-system assigner",
		"spec maxUnavailable", `"50%"`},
	{`assigner.topologySpreadConstraints=[]`, assigner, pod + "topologySpreadConstraints", `[]`},
	{`assigner.podLabels={"a": "b"}`, assigner, "spec template metadata labels a", `"b"`},
	{`assigner.podLabels={"a": "b"}`, "Deployment sharding-system ringquery", "spec template metadata labels a", `null`},
	{`assigner.podAnnotations={"a": "b"}`, assigner, "spec template metadata annotations a", `"b"`},
	{`assigner.nodeSelector={"disk": "ssd"}`, assigner, pod + "nodeSelector", `{"disk": "ssd"}`},
	{`assigner.serviceAccountAnnotations={"a": "b"}`, "ServiceAccount sharding-system assigner",
		"metadata annotations a", `"b"`},
	{`assigner.serviceAnnotations={"a": "b"}`, "Service sharding-system assigner", "metadata annotations a", `"b"`},
}

// TestValuesHaveTheirEffect: each value, apart from those of components, changes the field that it is about.
func TestValuesHaveTheirEffect(t *testing.T) {
	for _, test := range effects {
		t.Run(test.value, func(t *testing.T) {
			t.Parallel()

			var found any
			if o := render(t, system, test.value)[test.object]; o != nil {
				found = at(t, o.Object, test.field)
			} else {
				require.Empty(t, test.field, "there is no %s", test.object)
			}

			got, err := json.Marshal(found)
			require.NoError(t, err)
			require.JSONEq(t, test.want, string(got))
		})
	}
}

// TestMistakesAreRefused: values that do not exist or make no sense are refused, by name.
func TestMistakesAreRefused(t *testing.T) {
	for value, want := range map[string]string{
		`replicas=3`:                   "additional properties 'replicas' not allowed",
		`assigner.replica=3`:           "at '/assigner': additional properties 'replica' not allowed",
		`assigner.replicas="3"`:        "at '/assigner/replicas': got string, want integer",
		`assigner.replicas=-1`:         "at '/assigner/replicas': minimum: got -1, want 0",
		`assigner.image.digest="v1"`:   "at '/assigner/image/digest': 'v1' does not match pattern",
		`assigner.resources.limit={}`:  "at '/assigner/resources': additional properties 'limit' not allowed",
		`image.pullPolicy="Sometimes"`: "at '/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'",
		`networkPolicies.enabled="no"`: "at '/networkPolicies/enabled': got string, want boolean",
		`networkPolicies={"enabled": true, "apiServerPorts": [70000]}`: "maximum: got 70,000, want 65,535",
		`commonLabels={"app.kubernetes.io/name": "x"}`:                 "at '/commonLabels/app.kubernetes.io~1name': false schema",
		`certManager.issuerRef={"kind": "ClusterIssuer"}`:              "at '/certManager/issuerRef': properties 'name' required, if 'kind' exists",
		`imagePullSecrets=["registry"]`:                                "at '/imagePullSecrets/0': got string, want object",
	} {
		t.Run(value, func(t *testing.T) {
			t.Parallel()

			_, err := helm(t, "template", "clusterring", dir, "--set-json", value)
			require.ErrorContains(t, err, want)
		})
	}
}

// TestKubernetesVersionIsRequired: the admission policies need a version that has them.
func TestKubernetesVersionIsRequired(t *testing.T) {
	_, err := helm(t, "template", "clusterring", dir, "--kube-version", "1.29.0")
	require.ErrorContains(t, err, "chart requires kubeVersion: >=1.30.0-0")
}

const (
	root   = "../.."
	dir    = root + "/charts/clusterring"
	system = "sharding-system"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// program builds Helm if it is not in the cache, and returns its path.
var program = sync.OnceValues(func() (string, error) {
	build := exec.Command(filepath.Join(root, "hack", "tool"), "helm")
	build.Stderr = os.Stderr
	path, err := build.Output()

	return strings.TrimSpace(string(path)), err
})

// helm runs Helm, without the settings of the user who runs the test, and returns its output, and its errors as an
// error.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()

	path, err := program()
	require.NoError(t, err)

	var stdout, stderr bytes.Buffer

	home := t.TempDir()
	command := exec.CommandContext(t.Context(), path, args...)
	command.Stdout, command.Stderr = &stdout, &stderr

	command.Env = append(os.Environ(), "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "HELM_CACHE_HOME="+home,
		"HELM_NAMESPACE=")

	if err := command.Run(); err != nil {
		return stdout.String(), fmt.Errorf("helm %s: %w: %s", args[0], err, stderr.String())
	}

	return stdout.String(), nil
}

// objects are objects by kind, namespace, and name.
type objects map[string]*unstructured.Unstructured

func key(o *unstructured.Unstructured) string {
	return strings.TrimSuffix(o.GetKind()+" "+o.GetNamespace(), " ") + " " + o.GetName()
}

// render returns the objects of the chart with these values, without hooks.
func render(t *testing.T, namespace string, values ...string) objects {
	t.Helper()

	args := []string{"template", "clusterring", dir, "--namespace", namespace, "--no-hooks"}
	for _, value := range values {
		args = append(args, "--set-json", value)
	}

	out, err := helm(t, args...)
	require.NoError(t, err)

	found := objects{}

	for document := range strings.SplitSeq(out, "\n---\n") {
		o := &unstructured.Unstructured{}
		require.NoError(t, yaml.UnmarshalStrict([]byte(document), &o.Object), document)

		if len(o.Object) > 0 {
			require.NotContains(t, found, key(o))
			found[key(o)] = o
		}
	}

	return found
}

// ringCRD is the definition of rings, and category what a former version of it has.
const (
	ringCRD  = "CustomResourceDefinition clusterrings.sharding.timebertt.dev"
	category = "former"
)

// everything is what needs no API but that of Kubernetes.
var everything = []string{
	"namespace.create=true", "networkPolicies.enabled=true", "autoscaling.enabled=true", "sharder.enabled=true",
	"development.enabled=true",
	`pods={"enabled": true, "shardNamespaces": ["default"]}`, `networkPolicies.apiServerCIDRs=["10.0.0.1/32"]`,
}

// release is a release of the chart on a control plane of its own.
type release struct {
	*testing.T
	client client.Client
	config string
}

// helm runs a command for the release.
func (r release) helm(args ...string) error {
	_, err := helm(r.T, append(args, "--kubeconfig", r.config, "--namespace", system)...)
	return err
}

// read reads an object of the chart again, and reports whether it exists and is not being deleted.
func (r release) read(o *unstructured.Unstructured) (*unstructured.Unstructured, bool) {
	r.Helper()

	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(o.GroupVersionKind())

	err := r.client.Get(r.Context(), client.ObjectKeyFromObject(o), found)
	require.NoError(r, client.IgnoreNotFound(err), key(o))

	return found, err == nil && found.GetDeletionTimestamp() == nil
}

// is demands the replicas of the rebalancer and the categories of the definition of rings.
func (r release) is(all objects, replicas int64, categories any) {
	r.Helper()

	deployment, _ := r.read(all["Deployment sharding-system rebalancer"])
	crd, _ := r.read(all[ringCRD])

	assert.EqualValues(r, replicas, at(r.T, deployment.Object, "spec replicas"))
	assert.Equal(r, categories, at(r.T, crd.Object, "spec names categories"))
}

// guarded waits until the API server guards the release, or no longer does: it takes it a moment to notice a policy,
// and that a ring is gone.
func (r release) guarded(namespace *unstructured.Unstructured, want bool) {
	r.Helper()
	require.NoError(r, wait.PollUntilContextTimeout(r.Context(), 100*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			return want == apierrors.IsForbidden(r.client.Delete(ctx, namespace.DeepCopy(), client.DryRunAll)), nil
		}))
}

// TestRelease installs the chart on an empty cluster, upgrades it from a former version with another definition of
// rings, rolls it back, and removes it, which is refused while there is a ring. The definitions and the namespace stay.
// Then it takes over what kustomize has installed.
func TestRelease(t *testing.T) {
	plane, err := localplane.Start(localplane.Options{Knows: v1alpha1.AddToScheme, Log: os.Stderr})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plane.Stop()) })

	r := release{t, plane.Client, plane.Kubeconfig()}
	all := render(t, system, everything...)
	values := []string{"--create-namespace", "--take-ownership"}

	for _, value := range everything {
		values = append(values, "--set-json", value)
	}

	require.NoError(t, r.helm(append([]string{"install", "clusterring", former(t)}, values...)...))

	for name, o := range all {
		_, exists := r.read(o)
		assert.True(t, exists, name)
	}
	r.is(all, 2, []any{category})

	upgrade := []string{"upgrade", "clusterring", dir, "--reuse-values", "--set-json", "rebalancer.replicas=3"}
	require.NoError(t, r.helm(upgrade...))
	r.is(all, 3, nil)
	require.NoError(t, r.helm("rollback", "clusterring"))
	r.is(all, 2, []any{category})
	require.NoError(t, r.helm(upgrade...))
	r.is(all, 3, nil)

	r.refused(all)
	require.NoError(t, r.helm("uninstall", "clusterring"))

	for name, o := range all {
		_, exists := r.read(o)
		kept := o.GetKind() == "CustomResourceDefinition" || o.GetKind() == "Namespace"
		assert.Equal(t, kept, exists, name)
	}
	require.NoError(t, plane.Install(t.Context(), "deploy/base"))
	require.NoError(t, r.helm(append([]string{"install", "clusterring", dir, "--force-conflicts"}, values...)...))
	r.is(all, 2, nil)
}

// refused demands that the release cannot be removed while there is a ring, and that trying that deletes nothing. It
// removes the ring.
func (r release) refused(all objects) {
	r.Helper()

	ring := &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: "example"},
		Spec: v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Group: "example.clusterring.dev",
			Resource: "websites"}}},
	}
	require.NoError(r, r.client.Create(r.Context(), ring))
	r.guarded(all["Namespace sharding-system"], true)

	r.shrinks(all["PodDisruptionBudget sharding-system rebalancer"])

	for range 2 { // the second attempt begins with what the first one has left
		require.ErrorContains(r, r.helm("uninstall", "clusterring"), "First run: kubectl delete clusterrings --all")

		for name, o := range all {
			_, exists := r.read(o)
			assert.True(r, exists, name)
		}
	}

	require.NoError(r, r.helm("rollback", "clusterring", "7"), "for an administrator who has changed their mind")
	require.NoError(r, r.client.Delete(r.Context(), ring))
	r.guarded(all["Namespace sharding-system"], false)
}

// shrinks demands that an upgrade does not delete a budget while there is a ring, unless it has lost its label.
func (r release) shrinks(budget *unstructured.Unstructured) {
	r.Helper()

	without := []string{"upgrade", "clusterring", dir, "--reuse-values", "--set",
		"rebalancer.podDisruptionBudget.enabled=false"}
	require.ErrorContains(r, r.helm(without...), "First run: kubectl delete clusterrings --all")

	unlabelled, exists := r.read(budget)
	require.True(r, exists)
	unstructured.RemoveNestedField(unlabelled.Object, "metadata", "labels", "app.kubernetes.io/part-of")
	require.NoError(r, r.client.Update(r.Context(), unlabelled))
	require.NoError(r, r.helm(without...))

	_, exists = r.read(budget)
	require.False(r, exists)
	require.NoError(r, r.helm("upgrade", "clusterring", dir, "--reuse-values", "--set",
		"rebalancer.podDisruptionBudget.enabled=true"))
}

// former returns a copy of the chart whose definition of rings has a category that the present one does not have.
func former(t *testing.T) string {
	t.Helper()

	copied := filepath.Join(t.TempDir(), "clusterring")
	require.NoError(t, os.CopyFS(copied, os.DirFS(dir)))

	file := filepath.Join(copied, "templates/crds.yaml")
	content, err := os.ReadFile(file)
	require.NoError(t, err)

	const names = "    listKind: ClusterRingList\n"

	changed := strings.Replace(string(content), names, names+"    categories: ["+category+"]\n", 1)
	require.NotEqual(t, string(content), changed)
	require.NoError(t, os.WriteFile(file, []byte(changed), 0o600))

	return copied
}
