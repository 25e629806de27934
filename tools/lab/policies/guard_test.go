package policies_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// guarded are kinds of what deploy/base installs, with one object of each that Install applies.
var guarded = map[string]client.ObjectKey{
	"v1 Namespace":      {Name: "sharding-system"},
	"v1 ServiceAccount": {Namespace: "sharding-system", Name: "rebalancer"},
	"apiextensions.k8s.io/v1 CustomResourceDefinition": {Name: "clusterrings.sharding.timebertt.dev"},
	"flowcontrol.apiserver.k8s.io/v1 FlowSchema":       {Name: "clusterring-leases"},
	"rbac.authorization.k8s.io/v1 ClusterRole":         {Name: "clusterring:rebalancer"},
	"rbac.authorization.k8s.io/v1 ClusterRoleBinding":  {Name: "clusterring:rebalancer-resources"},
	"rbac.authorization.k8s.io/v1 Role":                {Namespace: "sharding-system", Name: "rebalancer"},
	"rbac.authorization.k8s.io/v1 RoleBinding":         {Namespace: "sharding-system", Name: "rebalancer"},
}

// TestGuard: while there is a ring, neither what is installed nor the ring's rights can be deleted, and the message
// says what to do. Without one, all can. The control plane is the test's own, for other tests have rings.
func TestGuard(t *testing.T) {
	p, err := localplane.Start(localplane.Options{Knows: v1alpha1.AddToScheme})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Stop()) })
	require.NoError(t, p.Install(t.Context(), "deploy/base", "deploy/example/namespace.yaml",
		"deploy/example/services-rbac.yaml"))

	for what, key := range guarded {
		require.NoError(t, tryDelete(t.Context(), p, what, key), "%s %s, without a ring", what, key)
	}

	ring, other := ringOf("example", nil, v1alpha1.RingResource{Resource: "pods"}), ringOf("other", nil,
		v1alpha1.RingResource{Resource: "pods"})
	require.NoError(t, p.Client.Create(t.Context(), ring))

	for what, key := range guarded {
		said := refusal(t, p, what, key)
		require.ErrorContains(t, said, "ring example exists, so the services stay: ")
		require.ErrorContains(t, said, "from all objects that have any. First run: kubectl delete clusterrings --all.",
			"it is true of a ring without shards")
	}

	const role = "rbac.authorization.k8s.io/v1 ClusterRole"

	rights := client.ObjectKey{Name: "example:rebalancer"}
	require.ErrorContains(t, refusal(t, p, role, rights),
		"from all objects that have any. First run: kubectl delete clusterring example. ")
	require.NoError(t, tryDelete(t.Context(), p, role, client.ObjectKey{Name: "example:ringquery"}),
		"labels come off without it")

	require.NoError(t, p.Client.Create(t.Context(), other))
	require.NoError(t, p.Client.Delete(t.Context(), ring))
	allowed(t, p, role, rights) // they are of no other ring
	require.ErrorContains(t, refusal(t, p, "v1 Namespace", guarded["v1 Namespace"]), "ring other exists")

	require.NoError(t, p.Client.Delete(t.Context(), other))

	for what, key := range guarded {
		allowed(t, p, what, key)
	}
}

// refusal waits until the API server refuses to delete the object, and returns what it says: it learns of rings and
// policies a little late.
func refusal(t *testing.T, p *localplane.Plane, what string, key client.ObjectKey) error {
	t.Helper()

	var got error
	require.Eventually(t, func() bool {
		got = tryDelete(t.Context(), p, what, key)
		return got != nil
	}, 3*soon, tick, "%s %s can be deleted", what, key)
	require.True(t, apierrors.IsForbidden(got), got)

	return got
}

func allowed(t *testing.T, p *localplane.Plane, what string, key client.ObjectKey) {
	t.Helper()
	require.Eventually(t, func() bool { return tryDelete(t.Context(), p, what, key) == nil }, soon, tick,
		"%s %s cannot be deleted", what, key)
}

// tryDelete asks the API server to delete an object, and not to do so.
func tryDelete(ctx context.Context, p *localplane.Plane, what string, key client.ObjectKey) error {
	var version, kind string
	if _, err := fmt.Sscan(what, &version, &kind); err != nil {
		return err
	}

	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(schema.FromAPIVersionAndKind(version, kind))
	o.SetNamespace(key.Namespace)
	o.SetName(key.Name)

	return p.Client.Delete(ctx, o, client.DryRunAll)
}
