package policies_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestRights asks the API server what each service may do: what it writes, and nothing of what others write.
func TestRights(t *testing.T) {
	p := localplane.Shared(t)
	require.NoError(t, p.Install(t.Context(), "tools/lab/policies/testdata/ring-rights.yaml"))

	for service, may := range map[string]map[string]bool{
		"leasemonitor": {
			"list leases.coordination.k8s.io": true, "delete leases.coordination.k8s.io": true, "update leases.coordination.k8s.io": true,
			"create leases.coordination.k8s.io": false, "create leases.coordination.k8s.io sharding-system/leasemonitor": true,
			"patch clusterrings.sharding.timebertt.dev/status": true, "patch clusterrings.sharding.timebertt.dev": false,
			"create policyparameters.sharding.timebertt.dev": true, "delete policyparameters.sharding.timebertt.dev": true, "list configmaps": false,
			"create events": true, "create events.events.k8s.io": true, "list secrets": false, "list things.example.com": false,
		},
		"assigner": {
			"watch policyparameters.sharding.timebertt.dev": true, "update policyparameters.sharding.timebertt.dev": false,
			"watch leases.coordination.k8s.io": true, "update leases.coordination.k8s.io": false,
			"update leases.coordination.k8s.io sharding-system/assigner": true, "update leases.coordination.k8s.io sharding-system/rebalancer": false,
			"delete mutatingwebhookconfigurations.admissionregistration.k8s.io": true, "create mutatingwebhookconfigurations.admissionregistration.k8s.io": true,
			"create validatingwebhookconfigurations.admissionregistration.k8s.io": false, "patch mutatingwebhookconfigurations.admissionregistration.k8s.io": false,
			"create events": true, "create events.events.k8s.io": true, "patch secrets sharding-system/assigner-tls": false,
			"get secrets sharding-system/assigner-tls": true, "watch secrets sharding-system/assigner-tls": true,
			"get secrets sharding-system/other": false, "create secrets sharding-system/": true, "list secrets sharding-system/": false,
			"patch clusterrings.sharding.timebertt.dev/status": true, "patch clusterrings.sharding.timebertt.dev": false, "list things.example.com": false,
		},
		"rebalancer": {
			"list leases.coordination.k8s.io": true, "get leases.coordination.k8s.io": true, "delete leases.coordination.k8s.io": false,
			"patch clusterrings.sharding.timebertt.dev": true, "update clusterrings.sharding.timebertt.dev": false, "create clusterrings.sharding.timebertt.dev": false,
			"patch clusterrings.sharding.timebertt.dev/status": true, "watch namespaces": true, "patch namespaces": false,
			"list things.example.com": true, "patch things.example.com": true, "delete things.example.com": false, "patch secrets": false,
			"list mutatingwebhookconfigurations.admissionregistration.k8s.io": true, "patch mutatingwebhookconfigurations.admissionregistration.k8s.io": false,
		},
		"ringquery": {
			"list leases.coordination.k8s.io": true, "update leases.coordination.k8s.io": false, "create leases.coordination.k8s.io sharding-system/ringquery": false,
			"list clusterrings.sharding.timebertt.dev": true, "patch clusterrings.sharding.timebertt.dev/status": false,
			"list things.example.com": true, "patch things.example.com": false, "create events": false,
			"list namespaces": true, "watch namespaces": false, "create tokenreviews.authentication.k8s.io": true,
			"create subjectaccessreviews.authorization.k8s.io": true, "get clusterrings.sharding.timebertt.dev/diagnostics": false,
			"watch secrets sharding-system/ringquery-tls": true, "get secrets sharding-system/assigner-tls": false,
			"update secrets sharding-system/ringquery-tls": true, "list secrets sharding-system/": false,
			"update configmaps sharding-system/ringquery-ca": true, "update configmaps sharding-system/other": false,
			"delete secrets sharding-system/ringquery-tls": false, "create secrets other/": false, "list configmaps sharding-system/": false,
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
