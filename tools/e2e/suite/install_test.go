package suite_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	shardingv1alpha1 "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/e2e/report"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

// crds are the definitions that are installed.
var crds = []string{"clusterrings.sharding.timebertt.dev", "websites.example.clusterring.dev"}

// partOf marks what belongs to the services.
var partOf = client.MatchingLabels{"app.kubernetes.io/part-of": "clusterring"}

// install installs everything on a cluster that has nothing of it, as a user would.
func (s *suite) install(t *testing.T) {
	ctx := t.Context()
	err := s.Client.Get(ctx, client.ObjectKey{Name: system}, &corev1.Namespace{})
	require.True(t, apierrors.IsNotFound(err), "namespace %s is there already (%v): remove it, or set E2E_REUSE to use what is installed", system, err)

	began := s.Clock.Now()
	for _, dir := range []string{"deploy/base/crd", "deploy/example/crd"} {
		_, err := s.Kubectl(ctx, "apply", "-k", filepath.Join(s.root, dir))
		require.NoError(t, err)
	}
	for _, crd := range crds {
		_, err := s.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", "crd/"+crd)
		require.NoError(t, err)
	}
	_, err = s.Kubectl(ctx, "apply", "-k", s.dir)
	require.NoError(t, err)
	for _, name := range []string{"leasemonitor", "assigner", "rebalancer", "ringquery"} {
		require.NoError(t, s.Rolled(ctx, service(name), patience))
	}
	require.NoError(t, s.Rolled(ctx, cluster.Example.Shards, patience))
	s.complete(t, cluster.Example, 3)
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
		require.NotEmpty(t, site.Labels[shardingv1alpha1.ShardLabel("example")], "assigned in admission")
	}
	s.complete(t, cluster.Example, 3)
	restarts := 0
	for _, name := range []string{"leasemonitor", "assigner", "rebalancer", "ringquery"} {
		pods, err := s.Pods(ctx, service(name))
		require.NoError(t, err)
		for _, p := range pods {
			restarts += int(p.Status.ContainerStatuses[0].RestartCount)
		}
	}
	s.demand(t, report.Figure{Name: "restarts of services", Value: restarts, Limit: "none", Kept: restarts == 0})
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

		return probe.Labels[shardingv1alpha1.ShardLabel("example")] != "", err
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
		assert.Contains(t, names, l.Name, "a shard is called like its pod")
		assert.Equal(t, l.Name, *l.Spec.HolderIdentity)
		assert.Equal(t, "ready", l.Labels[shardingv1alpha1.LabelState])
		assert.NotNil(t, l.Spec.RenewTime)
	}
	s.demand(t, report.Figure{Name: "Leases of 3 pods", Value: len(leases), Limit: "3", Kept: len(leases) == 3})
}

// webhook checks what is registered for the example.
func (s *suite) webhook(t *testing.T) {
	t.Helper()
	found := &admissionregistrationv1.MutatingWebhookConfiguration{}
	require.NoError(t, s.Client.Get(t.Context(), client.ObjectKey{Name: "sharding-clusterring-50d858e0-example"}, found))
	assert.Equal(t, "example", found.Labels[shardingv1alpha1.LabelClusterRing])
	require.Len(t, found.Webhooks, 1)
	hook := found.Webhooks[0]
	assert.Equal(t, "sharder.sharding.timebertt.dev", hook.Name)
	assert.Equal(t, admissionregistrationv1.Ignore, *hook.FailurePolicy)
	assert.EqualValues(t, 5, *hook.TimeoutSeconds)
	assert.Equal(t, "/webhooks/sharder/clusterring/example", *hook.ClientConfig.Service.Path)
	assert.NotEmpty(t, hook.ClientConfig.CABundle)
}

// removal removes everything: the rings first, for the services take their labels off the objects, and then the rest.
func (s *suite) removal(t *testing.T) {
	ctx := t.Context()
	began := s.Clock.Now()
	_, err := s.Kubectl(ctx, "delete", "clusterrings", "--all", "--timeout=180s")
	require.NoError(t, err)
	s.note(t, "rings gone after", s.Clock.Since(began).Round(100*time.Millisecond))

	labelled := s.labelled(t)
	s.demand(t, report.Figure{Name: "objects with labels of rings", Value: len(labelled), Limit: "none", Kept: len(labelled) == 0})
	assert.Empty(t, labelled)
	// The assigner removes its configuration when it sees that the ring is gone.
	require.NoError(t, s.Until(ctx, patience, func(ctx context.Context) error {
		var hooks admissionregistrationv1.MutatingWebhookConfigurationList
		if err := s.Client.List(ctx, &hooks, client.HasLabels{shardingv1alpha1.LabelClusterRing}); err != nil || len(hooks.Items) > 0 {
			return fmt.Errorf("%d webhook configurations are left (%w)", len(hooks.Items), err)
		}
		return nil
	}))

	_, err = s.Kubectl(ctx, "delete", "-k", s.dir, "--ignore-not-found", "--timeout=240s")
	require.NoError(t, err)
	require.NoError(t, s.Until(ctx, patience, s.remains))
	s.demand(t, report.Figure{Name: "all gone after", Value: s.Clock.Since(began).Round(time.Second), Limit: "nothing left", Kept: true})
}

// labelled returns the objects of any namespace that have a label of a ring.
func (s *suite) labelled(t *testing.T) []string {
	t.Helper()
	var found []string
	var sites v1alpha1.WebsiteList
	require.NoError(t, s.Client.List(t.Context(), &sites))
	var pages corev1.ConfigMapList
	require.NoError(t, s.Client.List(t.Context(), &pages))
	var objects []client.Object
	for i := range sites.Items {
		objects = append(objects, &sites.Items[i])
	}
	for i := range pages.Items {
		objects = append(objects, &pages.Items[i])
	}
	for _, o := range objects {
		for key := range o.GetLabels() {
			if strings.HasPrefix(key, shardingv1alpha1.LabelShardPrefix) || strings.HasPrefix(key, shardingv1alpha1.LabelDrainPrefix) {
				found = append(found, fmt.Sprintf("%T %s/%s: %s", o, o.GetNamespace(), o.GetName(), key))
			}
		}
	}
	return found
}

// remains returns an error that names what is left of the installation and of the rings of the tests.
func (s *suite) remains(ctx context.Context) error {
	var left []string
	var namespaces corev1.NamespaceList
	if err := s.Client.List(ctx, &namespaces); err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	for _, n := range namespaces.Items {
		if n.Name == system || n.Name == cluster.Example.Namespace() || strings.HasPrefix(n.Name, "e2e-") {
			left = append(left, "namespace "+n.Name)
		}
	}
	for _, l := range []struct {
		list client.ObjectList
		by   client.ListOption
	}{
		{&admissionregistrationv1.MutatingWebhookConfigurationList{}, client.HasLabels{shardingv1alpha1.LabelClusterRing}},
		{&rbacv1.ClusterRoleList{}, partOf},
		{&rbacv1.ClusterRoleBindingList{}, partOf},
	} {
		if err := s.Client.List(ctx, l.list, l.by); err != nil {
			return fmt.Errorf("list %T: %w", l.list, err)
		}
		if n := length(l.list); n > 0 {
			left = append(left, fmt.Sprintf("%d of %T", n, l.list))
		}
	}
	leases, err := s.Kubectl(ctx, "get", "leases", "-A", "-l", shardingv1alpha1.LabelClusterRing, "-o", "name")
	if err != nil {
		return err
	}
	definitions, err := s.Kubectl(ctx, append([]string{"get", "crd", "--ignore-not-found", "-o", "name"}, crds...)...)
	if err != nil {
		return err
	}
	left = append(left, strings.Fields(leases+definitions)...)
	if len(left) > 0 {
		return fmt.Errorf("there is left: %s", strings.Join(left, ", "))
	}
	return nil
}

func length(list client.ObjectList) int {
	switch l := list.(type) {
	case *admissionregistrationv1.MutatingWebhookConfigurationList:
		return len(l.Items)
	case *rbacv1.ClusterRoleList:
		return len(l.Items)
	case *rbacv1.ClusterRoleBindingList:
		return len(l.Items)
	default:
		return 0
	}
}
