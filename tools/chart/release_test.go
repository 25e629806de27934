package chart_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// ringCRD is the definition of rings, and category what a former version of it has.
const (
	ringCRD  = "CustomResourceDefinition clusterrings.sharding.timebertt.dev"
	category = "former"
)

// everything is what needs no API but that of Kubernetes.
var everything = []string{
	"namespace.create=true", "networkPolicies.enabled=true", "autoscaling.enabled=true", "sharder.enabled=true", "development.enabled=true",
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

// guarded waits until the API server guards the release, or no longer does: it takes it a moment to notice a policy, and that a ring is gone.
func (r release) guarded(namespace *unstructured.Unstructured, want bool) {
	r.Helper()
	require.NoError(r, wait.PollUntilContextTimeout(r.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		return want == apierrors.IsForbidden(r.client.Delete(ctx, namespace.DeepCopy(), client.DryRunAll)), nil
	}))
}

// TestRelease installs the chart on an empty cluster, upgrades it from a former version with another definition of rings, rolls it back, and
// removes it, which is refused while there is a ring. The definitions and the namespace stay. Then it takes over what kustomize has installed.
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

// refused demands that the release cannot be removed while there is a ring, and that trying that deletes nothing. It removes the ring.
func (r release) refused(all objects) {
	r.Helper()

	ring := &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: "example"},
		Spec:       v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Group: "example.clusterring.dev", Resource: "websites"}}},
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

	require.NoError(r, r.helm("rollback", "clusterring", "7"), "whoever has changed their mind")
	require.NoError(r, r.client.Delete(r.Context(), ring))
	r.guarded(all["Namespace sharding-system"], false)
}

// shrinks demands that an upgrade does not delete a budget while there is a ring, unless it has lost its label.
func (r release) shrinks(budget *unstructured.Unstructured) {
	r.Helper()

	without := []string{"upgrade", "clusterring", dir, "--reuse-values", "--set", "rebalancer.podDisruptionBudget.enabled=false"}
	require.ErrorContains(r, r.helm(without...), "First run: kubectl delete clusterrings --all")

	unlabelled, exists := r.read(budget)
	require.True(r, exists)
	unstructured.RemoveNestedField(unlabelled.Object, "metadata", "labels", "app.kubernetes.io/part-of")
	require.NoError(r, r.client.Update(r.Context(), unlabelled))
	require.NoError(r, r.helm(without...))

	_, exists = r.read(budget)
	require.False(r, exists)
	require.NoError(r, r.helm("upgrade", "clusterring", dir, "--reuse-values", "--set", "rebalancer.podDisruptionBudget.enabled=true"))
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
