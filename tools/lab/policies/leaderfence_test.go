package policies_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestOnlyTheLeaderWrites hands the Lease of deploy/example-leader-fence from one replica to the next, with identities as controller-runtime writes them.
func TestOnlyTheLeaderWrites(t *testing.T) {
	const namespace, name = "operators", "website-operator"

	p := &policies{Plane: localplane.Shared(t), t: t}
	p.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	p.create(&rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "edit"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:serviceaccounts:" + namespace}},
	})

	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: new("first_5f0c")},
	}
	p.create(lease)
	require.NoError(t, p.Install(t.Context(), "deploy/example-leader-fence/policy.yaml"))

	fence := metav1.ObjectMeta{Name: "leader-fence." + name}
	policy, binding := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: fence}, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: fence}
	t.Cleanup(func() {
		require.NoError(t, p.Client.Delete(context.WithoutCancel(t.Context()), binding))
		require.NoError(t, p.Client.Delete(context.WithoutCancel(t.Context()), policy))
	})

	write := func(account, pod string) func() error {
		return creating(t, p.as(namespace, account, pod), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "written"}})
	}
	becomes := func(holder string) {
		lease.Spec.HolderIdentity = &holder
		require.NoError(t, p.Client.Update(t.Context(), lease))
	}
	first, second := write(name, "first"), write(name, "second")

	p.refused(second, "Lease operators/website-operator is held by first_5f0c, and this write comes from Pod second")
	require.NoError(t, first())
	p.refused(write(name, "fir"), "this write comes from Pod fir") // a name that begins alike is another Pod
	p.refused(write(name, ""), "is bound to no Pod")
	require.NoError(t, write("other", "second")(), "others are not fenced")

	becomes("second")
	p.refused(first, "is held by second") // the former leader, if it wakes up
	require.NoError(t, second())

	becomes("")
	p.refused(second, "is held by nobody")

	// To begin, writes are reported. Without the Lease, they are an error, which the failure policy is about.
	begin := func(o client.Object, patch string) {
		require.NoError(t, p.Client.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))))
	}
	begin(binding, `{"spec":{"validationActions":["Warn","Audit"]}}`)
	require.Eventually(t, func() bool { return second() == nil }, soon, tick)

	require.NoError(t, p.Client.Delete(t.Context(), lease))
	require.Eventually(t, func() bool { return apierrors.IsInvalid(second()) }, soon, tick)
	begin(policy, `{"spec":{"failurePolicy":"Ignore"}}`)
	require.Eventually(t, func() bool { return second() == nil }, soon, tick)
}
