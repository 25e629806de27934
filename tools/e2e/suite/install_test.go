package suite_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/e2e/report"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

// crds are the definitions that are installed.
var crds = []string{"clusterrings.sharding.timebertt.dev", "policyparameters.sharding.timebertt.dev", "websites.example.clusterring.dev"}

// partOf marks what belongs to the services.
const partOf = "app.kubernetes.io/part-of=clusterring"

// install installs everything on a cluster that has nothing of it, as a user would.
func (s *suite) install(t *testing.T) {
	ctx := t.Context()
	s.absent(t)
	began := s.Clock.Now()
	s.apply(t, s.present())
	s.note(t, "ready after", s.Clock.Since(began).Round(time.Second))

	s.leases(t)
	s.webhook(t)
	s.admission(t)

	for i := range s.size.websites {
		site := &v1alpha1.Website{
			ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Example.Namespace(), Name: fmt.Sprintf("site-%d", i)},
			Spec:       v1alpha1.WebsiteSpec{Title: "Installed"},
		}
		require.NoError(t, s.Client.Create(ctx, site))
		require.NotEmpty(t, site.Labels[contract.ShardLabel("example")], "assigned in admission")
	}
	s.complete(t, cluster.Example, 3)

	restarts := 0

	for _, name := range services {
		pods, err := s.Pods(ctx, service(name))
		require.NoError(t, err)

		for _, p := range pods {
			restarts += int(p.Status.ContainerStatuses[0].RestartCount)
		}
	}
	s.demand(t, report.Figure{Name: "restarts of services", Value: restarts, Limit: "none", Kept: restarts == 0})
}

// version is a version of all that is installed: its definitions, which come first, and everything, each as arguments of kubectl.
type version struct{ definitions, all []string }

// present is the version under test.
func (s *suite) present() version {
	return version{
		definitions: []string{"-k", filepath.Join(s.root, "deploy/base/crd"), "-k", filepath.Join(s.root, "deploy/example/crd")},
		all:         []string{"-k", s.dir},
	}
}

// absent demands that nothing is installed.
func (s *suite) absent(t *testing.T) {
	t.Helper()
	err := s.Client.Get(t.Context(), client.ObjectKey{Name: system}, &corev1.Namespace{})
	require.True(t, apierrors.IsNotFound(err), "namespace %s is there already (%v): remove it, or set E2E_REUSE to use what is installed", system, err)
}

// apply applies a version and waits until all of it runs, and the example's ring is complete.
func (s *suite) apply(t *testing.T, v version) {
	t.Helper()

	ctx := t.Context()
	for args := range slices.Chunk(v.definitions, 2) { // kubectl takes one -k at a time
		_, err := s.Kubectl(ctx, append([]string{"apply"}, args...)...)
		require.NoError(t, err)
	}

	// A previous version may have fewer.
	applied, err := s.Kubectl(ctx, append([]string{"get", "crd", "--ignore-not-found", "-o", "name"}, crds...)...)
	require.NoError(t, err)

	_, err = s.Kubectl(ctx, append([]string{"wait", "--for=condition=Established", "--timeout=60s"}, strings.Fields(applied)...)...)
	require.NoError(t, err)

	_, err = s.Kubectl(ctx, append([]string{"apply"}, v.all...)...)
	require.NoError(t, err)

	for _, name := range services {
		require.NoError(t, s.Rolled(ctx, service(name), patience))
	}
	require.NoError(t, s.Rolled(ctx, cluster.Example.Shards, patience))
	s.complete(t, cluster.Example, 3)
}

// admission waits until the API server asks the assigner: it takes it a moment to notice a new registration.
func (s *suite) admission(t *testing.T) {
	t.Helper()

	began := s.Clock.Now()
	require.NoError(t, wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		probe := &v1alpha1.Website{
			ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Example.Namespace(), Name: "probe"},
			Spec:       v1alpha1.WebsiteSpec{Title: "Nobody sees this"},
		}
		err := s.Client.Create(ctx, probe, client.DryRunAll)

		return probe.Labels[contract.ShardLabel("example")] != "", err
	}), "nothing is assigned in admission")
	s.note(t, "first admission after", s.Clock.Since(began).Round(100*time.Millisecond))
}

// leases checks the Leases of the example's pods.
func (s *suite) leases(t *testing.T) {
	t.Helper()
	leases, err := s.Leases(t.Context(), cluster.Example)
	require.NoError(t, err)
	pods, err := s.Pods(t.Context(), cluster.Example.Shards)
	require.NoError(t, err)

	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}

	for _, l := range leases {
		assert.Equal(t, cluster.Example.Namespace(), l.Namespace)
		assert.Contains(t, names, l.Annotations[contract.AnnotationPod], "a pod holds the slot")
		assert.Regexp(t, "^example-[0-2]$", l.Name)
		assert.Equal(t, l.Name, *l.Spec.HolderIdentity)
		assert.Equal(t, "ready", l.Labels[contract.LabelState])
		assert.NotNil(t, l.Spec.RenewTime)
	}
	s.demand(t, report.Figure{Name: "Leases of 3 pods", Value: len(leases), Limit: "3", Kept: len(leases) == 3})
}

// webhook checks what is registered for the example.
func (s *suite) webhook(t *testing.T) {
	t.Helper()

	found := &admissionregistrationv1.MutatingWebhookConfiguration{}
	require.NoError(t, s.Client.Get(t.Context(), client.ObjectKey{Name: "sharding-clusterring-50d858e0-example"}, found))
	assert.Equal(t, "example", found.Labels[contract.LabelClusterRing])
	require.Len(t, found.Webhooks, 3)
	hook := found.Webhooks[1]
	assert.Equal(t, "sharder.sharding.timebertt.dev", hook.Name)
	assert.Equal(t, admissionregistrationv1.Ignore, *hook.FailurePolicy)
	assert.EqualValues(t, 1, *hook.TimeoutSeconds)
	assert.Regexp(t, "^/webhooks/sharder/clusterring/example/[0-9a-f]{32}$", *hook.ClientConfig.Service.Path)
	assert.NotEmpty(t, hook.ClientConfig.CABundle)
}
