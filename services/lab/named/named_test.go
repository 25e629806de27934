package named_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

const (
	// root is that of the repository.
	root = "../../.."
	// patience is how long the test waits for a condition.
	patience = 2 * time.Minute
	interval = 20 * time.Millisecond

	label     = "cloudapi.team-orca.dev/shard"
	ringName  = "orca"
	namespace = "example" // of the shards, as in deploy/example
	account   = "example-shard"
	objects   = 24
)

// built is the directory of the binaries, "" until they are needed.
var built string

func TestMain(m *testing.M) {
	code := localplane.Main(m, v1alpha1.AddToScheme)

	if err := os.RemoveAll(built); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// binaries builds the services and the example once, and returns the directory they are in.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "named-")
	if err != nil {
		return "", err
	}

	built = dir

	packages := map[string]string{"example": "./tools/example/cmd/example"}
	for _, name := range services.All {
		packages[name] = "./services/" + name + "/cmd/" + name
	}

	for name, path := range packages {
		build := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, name), path)
		build.Dir, build.Stderr = root, os.Stderr

		build.Env = append(os.Environ(), "CGO_ENABLED=0")

		if err := build.Run(); err != nil {
			return "", fmt.Errorf("build %s: %w", name, err)
		}
	}

	return dir, nil
})

// house is the ring with its services.
type house struct {
	*services.Group

	t     *testing.T
	plane *localplane.Plane
	ring  *v1alpha1.ClusterRing
	space string // the namespace of the Websites
}

func begin(t *testing.T) *house {
	t.Helper()

	bin, err := binaries()
	require.NoError(t, err)
	free, err := process.FreePorts(2)
	require.NoError(t, err)

	plane := localplane.Shared(t)
	require.NoError(t, examplev1alpha1.AddToScheme(plane.Client.Scheme()))
	require.NoError(t, plane.Install(t.Context(), "deploy/example/crd", "deploy/example/namespace.yaml", "deploy/example/rbac.yaml", "deploy/example/services-rbac.yaml"))

	h := &house{t: t, plane: plane, space: plane.Namespace(t)}
	h.Group = services.New(services.Options{Plane: plane, BinDir: bin, LogDir: t.TempDir(), ShownLines: 20})
	t.Cleanup(func() { require.NoError(t, h.Stop()) })

	h.grant()
	h.declare()

	alone := "--leader-elect=false"
	require.NoError(t, h.Start(t.Context(),
		services.Spec{Name: services.LeaseMonitor, Binary: services.LeaseMonitor, Args: []string{alone}},
		services.Spec{Name: services.Assigner, Binary: services.Assigner, Args: append(services.Webhook(free[0], free[0]), alone)},
		services.Spec{Name: services.Rebalancer, Binary: services.Rebalancer, Args: []string{alone, "--settle-period=" + services.SettlePeriod.String()}},
		services.Spec{Name: services.RingQuery, Binary: services.RingQuery, Args: services.OpenQueries(free[1])},
	))

	return h
}

// grant creates the ClusterRoles of the ring, in addition to those on its resources.
func (h *house) grant() {
	h.t.Helper()

	for aggregate, rule := range map[string]rbacv1.PolicyRule{
		contract.LabelAggregateToRebalancer: {
			APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{contract.ResourceShardLabels}, ResourceNames: []string{label}, Verbs: []string{"write"},
		},
		contract.LabelAggregateToAssigner: {
			APIGroups: []string{"admissionregistration.k8s.io"}, Resources: []string{"validatingadmissionpolicybindings"},
			ResourceNames: []string{contract.FenceName(ringName)}, Verbs: []string{"create", "patch", "update", "delete"},
		},
	} {
		require.NoError(h.t, h.plane.Client.Create(h.t.Context(), &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{
				Name:   "orca" + strings.ReplaceAll(strings.TrimPrefix(aggregate, v1alpha1.GroupVersion.Group), "/", ":"),
				Labels: map[string]string{aggregate: "true", contract.LabelClusterRing: ringName},
			},
			Rules: []rbacv1.PolicyRule{rule},
		}))
	}
	require.NoError(h.t, h.plane.Aggregate(h.t.Context()))
}

func (h *house) declare() {
	h.t.Helper()

	h.ring = &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: ringName},
		Spec: v1alpha1.ClusterRingSpec{
			ShardLabel: label, ShardNames: []string{"blue", "green"}, ShardNamespaces: []string{namespace},
			Resources: []v1alpha1.RingResource{{
				Group: examplev1alpha1.SchemeGroupVersion.Group, Resource: "websites", ControlledResources: []v1alpha1.ControlledResource{{Resource: "configmaps"}},
			}},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: h.space}},
			Fence:             &v1alpha1.Fence{Mode: v1alpha1.FenceEnforce, ServiceAccounts: []v1alpha1.ServiceAccountReference{{Namespace: namespace, Name: account}}},
		},
	}
	require.NoError(h.t, h.plane.Client.Create(h.t.Context(), h.ring))
}

// shard starts a process in a Pod that takes one of the names. It is ready when it works, or waits for the name.
func (h *house) shard(pod, names string, more ...string) {
	h.t.Helper()
	require.NoError(h.t, h.Start(h.t.Context(), spec(pod, names, more...)))
}

// refused starts a process in a Pod that may not take the name: it says why, never becomes ready, and is ended.
func (h *house) refused(pod, name, why string, more ...string) {
	h.t.Helper()

	ctx, cancel := context.WithCancel(h.t.Context())
	started := make(chan error, 1)

	go func() { started <- h.Start(ctx, spec(pod, name, more...)) }()

	h.logs(pod, why)
	cancel()
	require.ErrorIs(h.t, <-started, context.Canceled)
	require.NoError(h.t, h.End(pod))
}

func spec(pod, names string, more ...string) services.Spec {
	return services.Spec{
		Name: pod, Binary: "example", Namespace: namespace, Account: account,
		Args: append([]string{
			"--ring=" + ringName, "--slot-names=" + names, "--pod-name=" + pod, "--lease-namespace=" + namespace,
			"--lease-duration=8s", "--lease-retry-period=300ms", "--log-level=info",
		}, more...),
	}
}

// reason waits until a condition of the ring has the reason.
func (h *house) reason(kind, reason string) {
	h.t.Helper()

	var c *metav1.Condition

	require.Eventually(h.t, func() bool {
		require.NoError(h.t, h.plane.Client.Get(h.t.Context(), client.ObjectKeyFromObject(h.ring), h.ring))
		c = apimeta.FindStatusCondition(h.ring.Status.Conditions, kind)

		return c != nil && c.Reason == reason
	}, patience, interval, "the condition %s should have the reason %s: %+v", kind, reason, &c)
}

// labels returns the labels of all Websites, by name.
func (h *house) labels() map[string]map[string]string {
	h.t.Helper()

	list := &examplev1alpha1.WebsiteList{}
	require.NoError(h.t, h.plane.Client.List(h.t.Context(), list, client.InNamespace(h.space)))

	all := map[string]map[string]string{}
	for i := range list.Items {
		all[list.Items[i].Name] = list.Items[i].Labels
	}

	return all
}

// pages returns how many ConfigMaps have the label with that value; "" counts those without the label.
func (h *house) pages(shard string) int {
	h.t.Helper()

	list := &corev1.ConfigMapList{}
	require.NoError(h.t, h.plane.Client.List(h.t.Context(), list, client.InNamespace(h.space)))

	return len(slices.DeleteFunc(list.Items, func(cm corev1.ConfigMap) bool {
		return metav1.GetControllerOf(&cm) == nil || cm.Labels[label] != shard
	}))
}

// as returns a client with the token of a Pod.
func (h *house) as(pod string) client.Client {
	h.t.Helper()

	path, err := h.plane.PodKubeconfig(h.t.Context(), namespace, account, pod)
	require.NoError(h.t, err)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(h.t, err)
	c, err := client.New(config, client.Options{Scheme: h.plane.Client.Scheme()})
	require.NoError(h.t, err)

	return c
}

// logs waits until the log of a process contains the text.
func (h *house) logs(name, text string) {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		content, err := os.ReadFile(h.LogFile(name))
		return err == nil && strings.Contains(string(content), text)
	}, patience, interval, "the log of %s should contain %q", name, text)
}

// TestNamedShardsWithALabelOfTheirOwn follows a ring from its first object to its end.
func TestNamedShardsWithALabelOfTheirOwn(t *testing.T) {
	h := begin(t)

	// A shard that does not know the label is told so, and gets no Lease.
	h.refused("pod-0", "blue", "shard blue selects its objects by the default label, but ring orca has spec.shardLabel "+label)

	// Neither does one with a name that the ring does not list.
	h.refused("pod-1", "red", "list their names in spec.shardNames", "--shard-label="+label)

	h.shard("pod-a", "blue", "--shard-label="+label)
	h.shard("pod-b", "green", "--shard-label="+label)
	h.reason(v1alpha1.ConditionReady, v1alpha1.ReasonReconciliationSucceeded)
	h.reason(v1alpha1.ConditionFenced, v1alpha1.ReasonFenceEnforced)
	require.Eventually(t, func() bool {
		require.NoError(t, h.plane.Client.Get(t.Context(), client.ObjectKeyFromObject(h.ring), h.ring))

		return slices.Equal(h.ring.Status.Holders, []v1alpha1.ShardHolder{{Shard: "blue", Pod: "pod-a"}, {Shard: "green", Pod: "pod-b"}})
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
func (h *house) create() map[string]string {
	h.t.Helper()

	owners := map[string]string{}

	require.Eventually(h.t, func() bool { // the API server learns of the webhook a little late
		probe := h.website("probe")
		require.NoError(h.t, h.plane.Client.Create(h.t.Context(), probe, client.DryRunAll))

		return probe.Labels[label] != ""
	}, patience, interval)

	for i := range objects {
		site := h.website(fmt.Sprint("site-", i))
		require.NoError(h.t, h.plane.Client.Create(h.t.Context(), site))
		require.Contains(h.t, []string{"blue", "green"}, site.Labels[label])
		require.Len(h.t, site.Labels, 1, "no other label is set")
		owners[site.Name] = site.Labels[label]
	}

	require.Eventually(h.t, func() bool { return h.pages("blue")+h.pages("green") == objects }, patience, interval, "each Website should be rendered")

	return owners
}

func (h *house) website(name string) *examplev1alpha1.Website {
	return &examplev1alpha1.Website{ObjectMeta: metav1.ObjectMeta{Namespace: h.space, Name: name}, Spec: examplev1alpha1.WebsiteSpec{Title: name}}
}

// fences requires that the API server refuses writes of a shard to the objects of another.
func (h *house) fences(owners map[string]string) {
	h.t.Helper()

	blue := h.as("pod-a")
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"by":"blue"}}}`))

	for name, owner := range owners {
		err := blue.Patch(h.t.Context(), h.website(name), patch, client.DryRunAll)
		if owner == "blue" {
			require.NoError(h.t, err)
			continue
		}

		require.True(h.t, apierrors.IsForbidden(err), err)
		require.ErrorContains(h.t, err, "fence of ring orca: shard green owns websites "+h.space+"/"+name+"; this write comes from shard blue in Pod pod-a")
	}

	require.Contains(h.t, owners, "site-0")
	require.Len(h.t, slices.Compact(slices.Sorted(maps.Values(owners))), 2, "both shards have objects")
}

// remove deletes the ring. Its permissions stay until nothing carries its labels.
func (h *house) remove() {
	h.t.Helper()

	roles := &rbacv1.ClusterRoleList{}
	require.NoError(h.t, h.plane.Client.List(h.t.Context(), roles, client.MatchingLabels{contract.LabelClusterRing: ringName}))
	require.Len(h.t, roles.Items, 2)

	for i := range roles.Items {
		err := h.plane.Client.Delete(h.t.Context(), &roles.Items[i], client.DryRunAll)
		require.True(h.t, apierrors.IsForbidden(err), err)
	}

	require.NoError(h.t, h.plane.Client.Delete(h.t.Context(), h.ring))
	require.Eventually(h.t, func() bool {
		return apierrors.IsNotFound(h.plane.Client.Get(h.t.Context(), client.ObjectKeyFromObject(h.ring), &v1alpha1.ClusterRing{}))
	}, patience, interval, "the ring should be gone")

	for name, labels := range h.labels() {
		require.Empty(h.t, labels, name)
	}

	require.Equal(h.t, objects, h.pages(""), "no object has the label")
	require.NoError(h.t, h.End("pod-c"))

	for i := range roles.Items {
		require.Eventually(h.t, func() bool {
			return client.IgnoreNotFound(h.plane.Client.Delete(context.WithoutCancel(h.t.Context()), &roles.Items[i])) == nil
		}, patience, interval)
	}
}
