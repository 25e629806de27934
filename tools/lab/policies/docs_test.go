package policies_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestObjectsOfDocs: the API server takes every object that a page shows, without a field that it does not know.
func TestObjectsOfDocs(t *testing.T) {
	p := localplane.Shared(t)
	require.NoError(t, p.Install(t.Context(), "deploy/example/namespace.yaml")) // the namespace of the pages

	pages, err := filepath.Glob("../../../docs/*.md")
	require.NoError(t, err)

	taken := 0

	for _, page := range append(pages, "../../../README.md") {
		content, err := os.ReadFile(page) //nolint:gosec // a page of the repository
		require.NoError(t, err)

		for _, block := range strings.Split(string(content), "\n```yaml\n")[1:] {
			block, _, _ = strings.Cut(block, "\n```\n")
			object := &unstructured.Unstructured{}
			require.NoError(t, yaml.UnmarshalStrict([]byte(block), &object.Object), "%s: %s", page, block)

			if object.GetKind() == "Kustomization" {
				continue // kubectl's, not the API server's
			}
			require.NoError(t, p.Client.Create(t.Context(), object, client.DryRunAll, client.FieldValidation("Strict")),
				"%s: %s", page, block)
			taken++
		}
	}
	require.Positive(t, taken)
}

// TestOnlyTheLeaderWrites hands the Lease of deploy/example-leader-fence from one replica to the next, with identities
// as controller-runtime writes them.
func TestOnlyTheLeaderWrites(t *testing.T) {
	const namespace, name = "operators", "website-operator"

	p := &policies{Plane: localplane.Shared(t), t: t}
	p.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	p.create(&rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "edit"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind,
			Name: "system:serviceaccounts:" + namespace}},
	})

	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
			Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: new("first_5f0c")},
	}
	p.create(lease)
	require.NoError(t, p.Install(t.Context(), "deploy/example-leader-fence/policy.yaml"))

	fence := metav1.ObjectMeta{Name: "leader-fence." + name}
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: fence}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: fence}
	t.Cleanup(func() {
		require.NoError(t, p.Client.Delete(context.WithoutCancel(t.Context()), binding))
		require.NoError(t, p.Client.Delete(context.WithoutCancel(t.Context()), policy))
	})

	write := func(account, pod string) func() error {
		return creating(t, p.as(namespace, account, pod),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "written"}})
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

// TestRights asks the API server what each service may do: what it writes, and nothing of what others write.
func TestRights(t *testing.T) {
	p := localplane.Shared(t)
	require.NoError(t, p.Install(t.Context(), "tools/lab/policies/testdata/ring-rights.yaml"))

	for service, may := range map[string]map[string]bool{
		"leasemonitor": {
			"list leases.coordination.k8s.io": true, "delete leases.coordination.k8s.io": true,
			"update leases.coordination.k8s.io": true,
			"create leases.coordination.k8s.io": false, "create leases.coordination.k8s.io sharding-system/leasemonitor": true,
			"patch clusterrings.sharding.timebertt.dev/status": true, "patch clusterrings.sharding.timebertt.dev": false,
			"create policyparameters.sharding.timebertt.dev": true, "delete policyparameters.sharding.timebertt.dev": true,
			"list configmaps": false,
			"create events":   true, "create events.events.k8s.io": true, "list secrets": false,
			"list things.example.com": false,
		},
		"assigner": {
			"watch policyparameters.sharding.timebertt.dev": true, "update policyparameters.sharding.timebertt.dev": false,
			"watch leases.coordination.k8s.io": true, "update leases.coordination.k8s.io": false,
			"update leases.coordination.k8s.io sharding-system/assigner":          true,
			"update leases.coordination.k8s.io sharding-system/rebalancer":        false,
			"delete mutatingwebhookconfigurations.admissionregistration.k8s.io":   true,
			"create mutatingwebhookconfigurations.admissionregistration.k8s.io":   true,
			"create validatingwebhookconfigurations.admissionregistration.k8s.io": false,
			"patch mutatingwebhookconfigurations.admissionregistration.k8s.io":    false,
			"create events": true, "create events.events.k8s.io": true, "patch secrets sharding-system/assigner-tls": false,
			"get secrets sharding-system/assigner-tls": true, "watch secrets sharding-system/assigner-tls": true,
			"get secrets sharding-system/other": false, "create secrets sharding-system/": true,
			"list secrets sharding-system/":                    false,
			"patch clusterrings.sharding.timebertt.dev/status": true, "patch clusterrings.sharding.timebertt.dev": false,
			"list things.example.com": false,
		},
		"rebalancer": {
			"list leases.coordination.k8s.io": true, "get leases.coordination.k8s.io": true,
			"delete leases.coordination.k8s.io":         false,
			"patch clusterrings.sharding.timebertt.dev": true, "update clusterrings.sharding.timebertt.dev": false,
			"create clusterrings.sharding.timebertt.dev":       false,
			"patch clusterrings.sharding.timebertt.dev/status": true, "watch namespaces": true, "patch namespaces": false,
			"list things.example.com": true, "patch things.example.com": true, "delete things.example.com": false,
			"patch secrets": false,
			"list mutatingwebhookconfigurations.admissionregistration.k8s.io":  true,
			"patch mutatingwebhookconfigurations.admissionregistration.k8s.io": false,
		},
		"ringquery": {
			"list leases.coordination.k8s.io": true, "update leases.coordination.k8s.io": false,
			"create leases.coordination.k8s.io sharding-system/ringquery": false,
			"list clusterrings.sharding.timebertt.dev":                    true,
			"patch clusterrings.sharding.timebertt.dev/status":            false,
			"list things.example.com":                                     true, "patch things.example.com": false,
			"create events":   false,
			"list namespaces": true, "watch namespaces": false, "create tokenreviews.authentication.k8s.io": true,
			"create subjectaccessreviews.authorization.k8s.io":    true,
			"get clusterrings.sharding.timebertt.dev/diagnostics": false,
			"watch secrets sharding-system/ringquery-tls":         true, "get secrets sharding-system/assigner-tls": false,
			"update secrets sharding-system/ringquery-tls": true, "list secrets sharding-system/": false,
			"update configmaps sharding-system/ringquery-ca": true, "update configmaps sharding-system/other": false,
			"delete secrets sharding-system/ringquery-tls": false, "create secrets other/": false,
			"list configmaps sharding-system/": false,
		},
	} {
		for what, want := range may {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:serviceaccount:sharding-system:" + service, ResourceAttributes: attributes(what),
			}}
			require.NoError(t, p.Client.Create(t.Context(), review))
			require.Equal(t, want, review.Status.Allowed, "may %s %s? %s", service, what, review.Status.Reason)
		}
	}
}

// attributes reads "verb resource.group/subresource namespace/name".
func attributes(what string) *authorizationv1.ResourceAttributes {
	fields := strings.Fields(what)

	a := &authorizationv1.ResourceAttributes{Verb: fields[0]}
	if len(fields) > 2 {
		a.Namespace, a.Name, _ = strings.Cut(fields[2], "/")
	}

	resource, sub, _ := strings.Cut(fields[1], "/")
	a.Subresource = sub
	a.Resource, a.Group, _ = strings.Cut(resource, ".")

	return a
}
