package chart_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/chart"
)

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
	{`image.tag="v9"`, assigner, container + "image", `"clusterring/assigner:v9"`},
	{`image.pullPolicy="Always"`, assigner, container + "imagePullPolicy", `"Always"`},
	{`imagePullSecrets=[{"name": "registry"}]`, assigner, pod + "imagePullSecrets", `[{"name": "registry"}]`},
	{`priorityClassName="mine"`, assigner, pod + "priorityClassName", `"mine"`},
	{`priorityClassName="mine"`, "ResourceQuota sharding-system critical-pods", "spec scopeSelector matchExpressions 0 values", `["mine"]`},
	{`priorityClassName=""`, "ResourceQuota sharding-system critical-pods", "", `null`},
	{`quota.enabled=false`, "ResourceQuota sharding-system critical-pods", "", `null`},
	{`quota.pods="7"`, "ResourceQuota sharding-system critical-pods", "spec hard pods", `"7"`},
	{`commonLabels={"team": "a"}`, "ClusterRole clusterring:assigner", "metadata labels team", `"a"`},
	{`commonLabels={"team": "a"}`, assigner, "spec template metadata labels team", `"a"`},
	{`commonAnnotations={"team": "a"}`, "Service sharding-system assigner", "metadata annotations", `{"team": "a"}`},
	{`commonAnnotations={"team": "a"}`, assigner, "spec template metadata annotations team", `"a"`},
	{`podLabels={"team": "a"}`, assigner, "spec template metadata labels team", `"a"`},
	{`podLabels={"team": "a"}`, assigner, "metadata labels team", `null`},
	{`podAnnotations={"team": "a"}`, assigner, "spec template metadata annotations team", `"a"`},
	{`nodeSelector={"disk": "ssd"}`, assigner, pod + "nodeSelector", `{"disk": "ssd"}`},
	{`tolerations=[{"key": "x"}]`, assigner, pod + "tolerations", `[{"key": "x"}]`},
	{`affinity={"nodeAffinity": {}}`, assigner, pod + "affinity", `{"nodeAffinity": {}}`},
	{`crds.enabled=false`, "CustomResourceDefinition clusterrings.sharding.timebertt.dev", "", `null`},
	{`crds.keep=true`, "CustomResourceDefinition clusterrings.sharding.timebertt.dev", "metadata annotations helm.sh/resource-policy", `"keep"`},
	{`crds.keep=false`, "CustomResourceDefinition clusterrings.sharding.timebertt.dev", "metadata annotations helm.sh/resource-policy", `null`},
	{`namespace.create=true`, "Namespace sharding-system", "metadata annotations helm.sh/resource-policy", `"keep"`},
	{`namespace.create=false`, "Namespace sharding-system", "", `null`},
	{`policies.removal=false`, "ValidatingAdmissionPolicy removal.sharding.timebertt.dev", "", `null`},
	{`policies.removal=false`, "ValidatingAdmissionPolicyBinding ring-rights.sharding.timebertt.dev", "", `null`},
	{`policies.services=false`, "ValidatingAdmissionPolicy rebalancer.sharding.timebertt.dev", "", `null`},
	{`policies.shardLeases=false`, "ValidatingAdmissionPolicy ring-shards.sharding.timebertt.dev", "", `null`},
	{`policies.fence=false`, "ValidatingAdmissionPolicy fence.sharding.timebertt.dev", "", `null`},
	{
		`policies.webhookURLs=["https://a.example.com/"]`, "ValidatingAdmissionPolicy assigner.sharding.timebertt.dev", "spec variables 0",
		`{"name": "urls", "expression": "[\"https://a.example.com/\"]"}`,
	},
	{
		`certManager={"enabled": true, "issuerRef": {"kind": "ClusterIssuer", "name": "mine"}}`, "Certificate sharding-system ringquery", "spec issuerRef",
		`{"kind": "ClusterIssuer", "name": "mine"}`,
	},
	{`certManager={"enabled": true, "issuerRef": {"name": "mine"}}`, "Certificate sharding-system clusterring-ca", "", `null`},
	{`networkPolicies={"enabled": true, "apiServerPorts": [1234]}`, "NetworkPolicy sharding-system to-api-server", "spec egress", `[{"ports": [{"port": 1234, "protocol": "TCP"}]}]`},
	{
		`networkPolicies={"enabled": true, "apiServerCIDRs": ["10.0.0.1/32"]}`, "NetworkPolicy sharding-system to-api-server", "spec egress 0 to",
		`[{"ipBlock": {"cidr": "10.0.0.1/32"}}]`,
	},
	{
		`networkPolicies={"enabled": true, "metricsNamespaceLabels": {"a": "b", "metrics": null}}`, "NetworkPolicy sharding-system to-metrics",
		"spec ingress 0 from 0 namespaceSelector matchLabels", `{"a": "b"}`,
	},
	{`autoscaling={"enabled": true, "minReplicas": 3}`, "HorizontalPodAutoscaler sharding-system assigner", "spec minReplicas", `3`},
	{`autoscaling={"enabled": true, "maxReplicas": 30}`, "HorizontalPodAutoscaler sharding-system assigner", "spec maxReplicas", `30`},
	{
		`autoscaling={"enabled": true, "targetCPUUtilizationPercentage": 50}`, "HorizontalPodAutoscaler sharding-system assigner",
		"spec metrics 0 resource target averageUtilization", `50`,
	},
	{`monitoring={"enabled": true, "interval": "5s"}`, "ServiceMonitor sharding-system clusterring", "spec endpoints 0 interval", `"5s"`},
	{`monitoring={"enabled": true, "labels": {"release": "p"}}`, "ServiceMonitor sharding-system clusterring", "metadata labels release", `"p"`},
	{`pods={"enabled": true, "shardNamespaces": ["a"]}`, "RoleBinding a clusterring-leasemonitor-pods", "subjects 0 namespace", `"sharding-system"`},
	{`pods={"enabled": false, "shardNamespaces": ["a"]}`, "RoleBinding a clusterring-leasemonitor-pods", "", `null`},
	{`assigner.replicas=5`, assigner, "spec replicas", `5`},
	{`assigner.args=["--log-level=debug"]`, assigner, container + "args -1", `"--log-level=debug"`},
	{`assigner.env=[{"name": "A", "value": "b"}]`, assigner, container + "env -1", `{"name": "A", "value": "b"}`},
	{`assigner.resources={"limits": {"cpu": "2"}}`, assigner, container + "resources", `{"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "256Mi"}}`},
	{`assigner.podDisruptionBudget.enabled=false`, "PodDisruptionBudget sharding-system assigner", "", `null`},
	{`assigner.podDisruptionBudget.maxUnavailable="50%"`, "PodDisruptionBudget sharding-system assigner", "spec maxUnavailable", `"50%"`},
	{`assigner.topologySpreadConstraints=[]`, assigner, pod + "topologySpreadConstraints", `[]`},
	{`assigner.podLabels={"a": "b"}`, assigner, "spec template metadata labels a", `"b"`},
	{`assigner.podLabels={"a": "b"}`, "Deployment sharding-system ringquery", "spec template metadata labels a", `null`},
	{`assigner.podAnnotations={"a": "b"}`, assigner, "spec template metadata annotations a", `"b"`},
	{`assigner.nodeSelector={"disk": "ssd"}`, assigner, pod + "nodeSelector", `{"disk": "ssd"}`},
	{`assigner.tolerations=[{"key": "x"}]`, assigner, pod + "tolerations", `[{"key": "x"}]`},
	{`assigner.affinity={"podAffinity": {}}`, assigner, pod + "affinity", `{"podAffinity": {}}`},
	{`assigner.serviceAccountAnnotations={"a": "b"}`, "ServiceAccount sharding-system assigner", "metadata annotations a", `"b"`},
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

// TestEachValueIsTested: the README names no value that is missing in the tests. The services have the same values.
func TestEachValueIsTested(t *testing.T) {
	readme, err := os.ReadFile(dir + "/README.md")
	require.NoError(t, err)

	tested := map[string]bool{"enabled": true, "global": true} // others use them

	var add func(path string, value any)

	add = func(path string, value any) {
		tested[path] = true

		in, _ := value.(map[string]any)
		for name, value := range in {
			add(path+"."+name, value)
		}
	}

	service := regexp.MustCompile(`^(leasemonitor|rebalancer|ringquery)\.`)
	values := slices.Clone(imageValues)

	for _, test := range effects {
		values = append(values, test.value)
	}

	components, err := chart.Components(root)
	require.NoError(t, err)

	for _, component := range components {
		values = append(values, chart.Value(component)+".enabled=true")
	}

	for _, value := range values {
		path, content, _ := strings.Cut(value, "=")

		var parsed any
		require.NoError(t, json.Unmarshal([]byte(content), &parsed))
		add(service.ReplaceAllString(path, "assigner."), parsed)
	}

	rows := regexp.MustCompile("(?m)^\\| `([a-zA-Z.]+)` \\|").FindAllStringSubmatch(string(readme), -1)
	require.Greater(t, len(rows), 60)

	for _, row := range rows {
		assert.True(t, tested[service.ReplaceAllString(row[1], "assigner.")], row[1])
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

func TestLint(t *testing.T) {
	out, err := helm(t, "lint", "--strict", dir)
	require.NoError(t, err, out)
	assert.Contains(t, out, "0 chart(s) failed")
}

// TestKubernetesVersionIsRequired: the admission policies need a version that has them.
func TestKubernetesVersionIsRequired(t *testing.T) {
	_, err := helm(t, "template", "clusterring", dir, "--kube-version", "1.29.0")
	require.ErrorContains(t, err, "chart requires kubeVersion: >=1.30.0-0")
}
