package named_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/lab/house"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

const (
	// patience is how long the test waits for a condition.
	patience = 2 * time.Minute
	interval = 20 * time.Millisecond

	label     = "cloudapi.team-orca.dev/shard"
	ringName  = "orca"
	namespace = "example" // of the shards, as in deploy/example
	account   = "example-shard"
	objects   = 24
)

func TestMain(m *testing.M) { os.Exit(house.Main(m)) }

// orca is the ring with its services.
type orca struct {
	*house.House

	ring  *v1alpha1.ClusterRing
	space string // the namespace of the Websites
}

func begin(t *testing.T) *orca {
	t.Helper()

	h := &orca{House: house.New(t)}
	h.space = h.Plane.Namespace(t)
	require.NoError(t, examplev1alpha1.AddToScheme(h.Plane.Client.Scheme()))
	require.NoError(t, h.Plane.Install(t.Context(), "deploy/example/crd", "deploy/example/namespace.yaml",
		"deploy/example/rbac.yaml", "deploy/example/services-rbac.yaml"))
	h.grant()
	h.declare()
	h.Begin(services.OpenQueries(h.Queries)...)

	return h
}

// grant creates the ClusterRoles of the ring, in addition to those on its resources.
func (h *orca) grant() {
	h.T.Helper()

	for aggregate, rule := range map[string]rbacv1.PolicyRule{
		contract.LabelAggregateToRebalancer: {
			APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{contract.ResourceShardLabels},
			ResourceNames: []string{label}, Verbs: []string{"write"},
		},
		contract.LabelAggregateToAssigner: {
			APIGroups: []string{"admissionregistration.k8s.io"}, Resources: []string{"validatingadmissionpolicybindings"},
			ResourceNames: []string{contract.FenceName(ringName)}, Verbs: []string{"create", "patch", "update", "delete"},
		},
	} {
		require.NoError(h.T, h.Plane.Client.Create(h.T.Context(), &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{
				Name:   "orca" + strings.ReplaceAll(strings.TrimPrefix(aggregate, v1alpha1.GroupVersion.Group), "/", ":"),
				Labels: map[string]string{aggregate: "true", contract.LabelClusterRing: ringName},
			},
			Rules: []rbacv1.PolicyRule{rule},
		}))
	}
	require.NoError(h.T, h.Plane.Aggregate(h.T.Context()))
}

func (h *orca) declare() {
	h.T.Helper()

	h.ring = &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: ringName},
		Spec: v1alpha1.ClusterRingSpec{
			ShardLabel: label, ShardNames: []string{"blue", "green"}, ShardNamespaces: []string{namespace},
			Resources: []v1alpha1.RingResource{{
				Group: examplev1alpha1.SchemeGroupVersion.Group, Resource: "websites",
				ControlledResources: []v1alpha1.ControlledResource{{Resource: "configmaps"}},
			}},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: h.space}},
			Fence: &v1alpha1.Fence{Mode: v1alpha1.FenceEnforce,
				ServiceAccounts: []v1alpha1.ServiceAccountReference{{Namespace: namespace, Name: account}}},
		},
	}
	require.NoError(h.T, h.Plane.Client.Create(h.T.Context(), h.ring))
}

// shard starts a process in a Pod that takes one of the names. It is ready when it works, or waits for the name.
func (h *orca) shard(pod, names string, more ...string) {
	h.T.Helper()
	require.NoError(h.T, h.Start(h.T.Context(), spec(pod, names, more...)))
}

// refused starts a process in a Pod that may not take the name: it says why, never becomes ready, and is ended.
func (h *orca) refused(pod, name, why string, more ...string) {
	h.T.Helper()

	ctx, cancel := context.WithCancel(h.T.Context())
	started := make(chan error, 1)

	go func() { started <- h.Start(ctx, spec(pod, name, more...)) }()

	h.logs(pod, why)
	cancel()
	require.ErrorIs(h.T, <-started, context.Canceled)
	require.NoError(h.T, h.End(pod))
}

func spec(pod, names string, more ...string) services.Spec {
	return services.Spec{
		Name: pod, Binary: house.Example, Namespace: namespace, Account: account,
		Args: append([]string{
			"--ring=" + ringName, "--slot-names=" + names, "--pod-name=" + pod, "--lease-namespace=" + namespace,
			"--lease-duration=8s", "--lease-retry-period=300ms", "--log-level=info",
		}, more...),
	}
}

// reason waits until a condition of the ring has the reason.
func (h *orca) reason(kind, reason string) {
	h.T.Helper()

	var c *metav1.Condition

	require.Eventually(h.T, func() bool {
		require.NoError(h.T, h.Plane.Client.Get(h.T.Context(), client.ObjectKeyFromObject(h.ring), h.ring))
		c = apimeta.FindStatusCondition(h.ring.Status.Conditions, kind)

		return c != nil && c.Reason == reason
	}, patience, interval, "the condition %s should have the reason %s: %+v", kind, reason, &c)
}

// labels returns the labels of all Websites, by name.
func (h *orca) labels() map[string]map[string]string {
	h.T.Helper()

	list := &examplev1alpha1.WebsiteList{}
	require.NoError(h.T, h.Plane.Client.List(h.T.Context(), list, client.InNamespace(h.space)))

	all := map[string]map[string]string{}
	for i := range list.Items {
		all[list.Items[i].Name] = list.Items[i].Labels
	}

	return all
}

// pages returns how many ConfigMaps have the label with that value; "" counts those without the label.
func (h *orca) pages(shard string) int {
	h.T.Helper()

	list := &corev1.ConfigMapList{}
	require.NoError(h.T, h.Plane.Client.List(h.T.Context(), list, client.InNamespace(h.space)))

	return len(slices.DeleteFunc(list.Items, func(cm corev1.ConfigMap) bool {
		return metav1.GetControllerOf(&cm) == nil || cm.Labels[label] != shard
	}))
}

// as returns a client with the token of a Pod.
func (h *orca) as(pod string) client.Client {
	h.T.Helper()

	path, err := h.Plane.PodKubeconfig(h.T.Context(), namespace, account, pod)
	require.NoError(h.T, err)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(h.T, err)
	c, err := client.New(config, client.Options{Scheme: h.Plane.Client.Scheme()})
	require.NoError(h.T, err)

	return c
}

// logs waits until the log of a process contains the text.
func (h *orca) logs(name, text string) {
	h.T.Helper()
	require.Eventually(h.T, func() bool {
		content, err := os.ReadFile(h.LogFile(name))
		return err == nil && strings.Contains(string(content), text)
	}, patience, interval, "the log of %s should contain %q", name, text)
}

// TestNamedShardsWithALabelOfTheirOwn follows a ring from its first object to its end.
func TestNamedShardsWithALabelOfTheirOwn(t *testing.T) {
	h := begin(t)

	// A shard that does not know the label is told so, and gets no Lease.
	h.refused("pod-0", "blue",
		"shard blue selects its objects by the default label, but ring orca has spec.shardLabel "+label)

	// Neither does one with a name that the ring does not list.
	h.refused("pod-1", "red", "list their names in spec.shardNames", "--shard-label="+label)

	h.shard("pod-a", "blue", "--shard-label="+label)
	h.shard("pod-b", "green", "--shard-label="+label)
	h.reason(v1alpha1.ConditionReady, v1alpha1.ReasonReconciliationSucceeded)
	h.reason(v1alpha1.ConditionFenced, v1alpha1.ReasonFenceEnforced)
	require.Eventually(t, func() bool {
		require.NoError(t, h.Plane.Client.Get(t.Context(), client.ObjectKeyFromObject(h.ring), h.ring))

		return slices.Equal(h.ring.Status.Holders,
			[]v1alpha1.ShardHolder{{Shard: "blue", Pod: "pod-a"}, {Shard: "green", Pod: "pod-b"}})
	}, patience, interval)
	require.Equal(t, label, h.ring.Status.ShardLabel)

	owners := h.create()
	h.fences(owners)

	// A third Pod waits for a name, and takes it over: nothing moves.
	h.shard("pod-c", "blue", "--shard-label="+label)
	h.logs("pod-c", "Waiting for a slot")

	before := h.labels()

	require.NoError(t, h.End("pod-a"))
	h.logs("pod-c", "Took a slot")
	require.Equal(t, before, h.labels())

	// A shard that stops hands its objects over, one by one.
	require.NoError(t, h.End("pod-b"))
	require.Eventually(t, func() bool {
		for _, labels := range h.labels() {
			if len(labels) != 1 || labels[label] != "blue" {
				return false
			}
		}

		return h.pages("blue") == objects
	}, patience, interval, "all objects should be at the shard that is left")

	h.remove()
}

// create creates Websites, and returns their shards. Each is assigned in admission, and rendered by its shard.
func (h *orca) create() map[string]string {
	h.T.Helper()

	owners := map[string]string{}

	require.Eventually(h.T, func() bool { // the API server learns of the webhook a little late
		probe := h.website("probe")
		require.NoError(h.T, h.Plane.Client.Create(h.T.Context(), probe, client.DryRunAll))

		return probe.Labels[label] != ""
	}, patience, interval)

	for i := range objects {
		site := h.website(fmt.Sprint("site-", i))
		require.NoError(h.T, h.Plane.Client.Create(h.T.Context(), site))
		require.Contains(h.T, []string{"blue", "green"}, site.Labels[label])
		require.Len(h.T, site.Labels, 1, "no other label is set")
		owners[site.Name] = site.Labels[label]
	}

	require.Eventually(h.T, func() bool { return h.pages("blue")+h.pages("green") == objects }, patience, interval,
		"each Website should be rendered")

	return owners
}

func (h *orca) website(name string) *examplev1alpha1.Website {
	return &examplev1alpha1.Website{ObjectMeta: metav1.ObjectMeta{Namespace: h.space, Name: name},
		Spec: examplev1alpha1.WebsiteSpec{Title: name}}
}

// fences requires that the API server refuses writes of a shard to the objects of another.
func (h *orca) fences(owners map[string]string) {
	h.T.Helper()

	blue := h.as("pod-a")
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"by":"blue"}}}`))

	for name, owner := range owners {
		err := blue.Patch(h.T.Context(), h.website(name), patch, client.DryRunAll)
		if owner == "blue" {
			require.NoError(h.T, err)
			continue
		}

		require.True(h.T, apierrors.IsForbidden(err), err)
		require.ErrorContains(h.T, err,
			"fence of ring orca: shard green owns websites "+h.space+"/"+name+"; this write comes from shard blue in Pod pod-a")
	}

	require.Contains(h.T, owners, "site-0")
	require.Len(h.T, slices.Compact(slices.Sorted(maps.Values(owners))), 2, "both shards have objects")
}

// remove deletes the ring. Its permissions stay until nothing carries its labels.
func (h *orca) remove() {
	h.T.Helper()

	roles := &rbacv1.ClusterRoleList{}
	require.NoError(h.T, h.Plane.Client.List(h.T.Context(), roles,
		client.MatchingLabels{contract.LabelClusterRing: ringName}))
	require.Len(h.T, roles.Items, 2)

	for i := range roles.Items {
		err := h.Plane.Client.Delete(h.T.Context(), &roles.Items[i], client.DryRunAll)
		require.True(h.T, apierrors.IsForbidden(err), err)
	}

	require.NoError(h.T, h.Plane.Client.Delete(h.T.Context(), h.ring))
	require.Eventually(h.T, func() bool {
		return apierrors.IsNotFound(h.Plane.Client.Get(h.T.Context(), client.ObjectKeyFromObject(h.ring),
			&v1alpha1.ClusterRing{}))
	}, patience, interval, "the ring should be gone")

	for name, labels := range h.labels() {
		require.Empty(h.T, labels, name)
	}

	require.Equal(h.T, objects, h.pages(""), "no object has the label")
	require.NoError(h.T, h.End("pod-c"))

	for i := range roles.Items {
		require.Eventually(h.T, func() bool {
			return client.IgnoreNotFound(h.Plane.Client.Delete(context.WithoutCancel(h.T.Context()), &roles.Items[i])) == nil
		}, patience, interval)
	}
}
