package chart_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/clusterring/clusterring/tools/chart"
	"github.com/clusterring/clusterring/tools/manifests"
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
	`image={"registry": "registry.example.com", "tag": "v7"}`, `assigner.image.digest="` + digest + `"`, `rebalancer.image.repository="mine"`,
	`ringquery.image={"registry": "other.example.com", "tag": "v8"}`,
}

// TestChartIsTheKustomization: with the values of some components, the chart is what kustomize builds of the base and these components.
func TestChartIsTheKustomization(t *testing.T) {
	all, err := chart.Components(root)
	require.NoError(t, err)
	require.Greater(t, len(all), 5)

	combinations := [][]string{
		{}, all, {"autoscaling", "network-policies"}, {"cert-manager", "monitoring", "network-policies"}, {"cert-manager", "sharder"}, {"development", "pods"},
	}
	for _, component := range all {
		combinations = append(combinations, []string{component})
	}

	for _, components := range combinations {
		t.Run("base with "+strings.Join(components, " and "), func(t *testing.T) {
			t.Parallel()

			values := append([]string{"namespace.create=true"}, imageValues...)
			for _, component := range components {
				values = append(values, chart.Value(component)+".enabled=true")
			}

			built, err := manifests.Combine(root, images, components...)
			require.NoError(t, err)

			want := objects{}
			for _, o := range built {
				want[key(o)] = o
			}

			got := render(t, system, values...)
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

	values := append([]string{"namespace.create=true"}, imageValues...)
	for _, component := range all {
		values = append(values, chart.Value(component)+".enabled=true")
	}

	in, elsewhere := render(t, system, values...), render(t, other, values...)
	require.Len(t, elsewhere, len(in))

	added := []string{"--namespace=" + other, "--default-namespace-selector=kubernetes.io/metadata.name notin (kube-node-lease,kube-public,kube-system," + other + ")"}

	for name, o := range in {
		if o.GetKind() == "CustomResourceDefinition" {
			continue
		}

		want := strings.ReplaceAll(plain(t, o), system, other)
		got := elsewhere[strings.ReplaceAll(name, system, other)]
		require.NotNil(t, got, name)

		if o.GetKind() == "Deployment" {
			container := containerOf(t, got)
			args, _, _ := unstructured.NestedStringSlice(container, "args")
			require.Subset(t, args, added)
			require.Equal(t, added, args[len(args)-2:])
			require.NoError(t, unstructured.SetNestedStringSlice(container, args[:len(args)-2], "args"))
		}
		require.Equal(t, want, plain(t, got))
	}
}

func containerOf(t *testing.T, deployment *unstructured.Unstructured) map[string]any {
	t.Helper()

	containers, found, err := unstructured.NestedFieldNoCopy(deployment.Object, "spec", "template", "spec", "containers")
	require.NoError(t, err)
	require.True(t, found)

	list, ok := containers.([]any)
	require.True(t, ok)
	container, ok := list[0].(map[string]any)
	require.True(t, ok)

	return container
}
