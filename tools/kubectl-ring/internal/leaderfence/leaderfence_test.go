package leaderfence_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/leaderfence"
	"github.com/clusterring/clusterring/tools/lab/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m)) }

// TestOnlyTheLeaderWrites hands a Lease from one replica to the next, with identities as controller-runtime writes them.
func TestOnlyTheLeaderWrites(t *testing.T) {
	p := localplane.Shared(t)
	ns := p.Namespace(t)
	create := func(o client.Object) {
		t.Helper()
		require.NoError(t, p.Client.Create(t.Context(), o))
	}
	create(&rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "edit"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:serviceaccounts:" + ns}},
	})

	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "op"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: new("op-1_5f0c")},
	}
	create(lease)

	spec := leaderfence.Spec{
		Lease: client.ObjectKeyFromObject(lease), ServiceAccounts: []types.NamespacedName{{Namespace: ns, Name: "op"}},
		Resources: []schema.GroupResource{{Resource: "configmaps"}},
	}
	require.NoError(t, spec.Validate())

	policy, binding := leaderfence.Objects(spec)
	create(policy)
	create(binding)
	t.Cleanup(func() {
		require.NoError(t, p.Client.Delete(context.WithoutCancel(t.Context()), binding))
		require.NoError(t, p.Client.Delete(context.WithoutCancel(t.Context()), policy))
	})

	as := func(account string, pod ...string) client.Client {
		config := rest.CopyConfig(p.Config)

		config.Impersonate = rest.ImpersonationConfig{
			UserName: "system:serviceaccount:" + ns + ":" + account, Groups: []string{"system:serviceaccounts:" + ns, "system:authenticated"},
		}
		if len(pod) > 0 {
			config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/pod-name": pod}
		}

		c, err := client.New(config, client.Options{Scheme: p.Client.Scheme()})
		require.NoError(t, err)

		return c
	}
	write := func(c client.Client) error {
		return c.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "written"}}, client.DryRunAll)
	}
	// The API server learns of policies and Leases a little later.
	becomes := func(refused bool, c client.Client) error {
		t.Helper()

		var err error

		require.Eventually(t, func() bool {
			err = write(c)
			return apierrors.IsForbidden(err) == refused && (refused || err == nil)
		}, 20*time.Second, 20*time.Millisecond)

		return err
	}
	first, second := as("op", "op-1"), as("op", "op-2")

	require.ErrorContains(t, becomes(true, second), "Lease "+ns+"/op is held by op-1_5f0c, and this write comes from Pod op-2")
	require.NoError(t, write(first))
	require.ErrorContains(t, write(as("op", "op")), "this write comes from Pod op", "a name that begins alike is another Pod")
	require.ErrorContains(t, write(as("op")), "is bound to no Pod")
	require.NoError(t, write(as("other")), "others are not fenced")

	lease.Spec.HolderIdentity = new("op-2")
	require.NoError(t, p.Client.Update(t.Context(), lease))
	require.NoError(t, becomes(false, second))
	require.ErrorContains(t, becomes(true, first), "is held by op-2")

	lease.Spec.HolderIdentity = new("")
	require.NoError(t, p.Client.Update(t.Context(), lease))
	require.ErrorContains(t, becomes(true, second), "is held by nobody")
}

func TestInvalidSpecs(t *testing.T) {
	require.EqualError(t, leaderfence.Spec{}.Validate(),
		`Lease "": write NAMESPACE/NAME; name the service account of the controller; name the resources that only the leader may write`)

	spec := leaderfence.Spec{
		Lease: types.NamespacedName{Namespace: "a", Name: "b"}, ServiceAccounts: []types.NamespacedName{{Name: "x"}},
		Resources: []schema.GroupResource{{Group: "coordination.k8s.io", Resource: "leases"}, {Resource: "*"}},
	}
	require.EqualError(t, spec.Validate(), `service account "x": write NAMESPACE/NAME; `+
		`resource leases.coordination.k8s.io: a replica must write the Lease to become the leader; `+
		`resource "*": name a plural and its group, such as websites.example.org`)
}
