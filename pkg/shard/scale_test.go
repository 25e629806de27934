package shard

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// deployed creates a Deployment of one replica with its ReplicaSet, which nothing runs.
func (f *fixture) deployed() (*appsv1.Deployment, *appsv1.ReplicaSet) {
	f.Helper()

	labels := map[string]string{"app": "shard"}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "shards"},
		Spec:       appsv1.DeploymentSpec{Replicas: new(int32(1)), Selector: selector, Template: template},
	}
	require.NoError(f, f.admin.Create(f.Context(), deployment))

	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.namespace, Name: "shards-1",
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(deployment, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
		},
		// As in a rolling update.
		Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(2)), Selector: selector, Template: template},
	}
	require.NoError(f, f.admin.Create(f.Context(), set))

	return deployment, set
}

// pod creates a Pod of the ReplicaSet.
func (f *fixture) pod(set *appsv1.ReplicaSet, name string) {
	f.Helper()

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: name}, Spec: set.Spec.Template.Spec}
	if set.Name != "" {
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	}
	require.NoError(f, f.admin.Create(f.Context(), pod))
}

func (f *fixture) scale(deployment *appsv1.Deployment, replicas int32) {
	f.Helper()
	f.refresh(deployment)
	deployment.Spec.Replicas = &replicas
	require.NoError(f, f.admin.Update(f.Context(), deployment))
}

func (f *fixture) cost(pod string) string {
	f.Helper()

	p := &corev1.Pod{}
	require.NoError(f, f.admin.Get(f.Context(), client.ObjectKey{Namespace: f.namespace, Name: pod}, p))

	return p.Annotations[deletionCost]
}

func TestSlotsFollowTheScaleOfTheDeployment(t *testing.T) {
	f := newFixture(t)
	deployment, set := f.deployed()

	for _, name := range []string{"pod-a", "pod-b", "pod-c"} {
		f.pod(set, name)
	}

	first := f.claim(f.slotted("pod-a", Scale())).got()
	require.Equal(t, contract.SlotName(f.ring, 0), first.Name())
	f.eventually("it is deleted last", func() bool { return f.cost("pod-a") == "5000" })
	f.runs(first, ignore)

	second := f.claim(f.slotted("pod-b", Scale()))
	second.waits("pod-b")
	require.Empty(t, f.cost("pod-b"), "a Pod without a slot is deleted before others")

	f.scale(deployment, 2)
	require.Equal(t, contract.SlotName(f.ring, 1), second.got().Name())
	f.eventually("the Pod of the highest slot is deleted first", func() bool { return f.cost("pod-b") == "4999" })
}

// TestFollowingTheScaleNeeds shows what a shard must be allowed to do, and what it reports if it is not.
func TestFollowingTheScaleNeeds(t *testing.T) {
	f := newFixture(t)
	_, set := f.deployed()
	f.pod(set, "pod-a")
	f.pod(&appsv1.ReplicaSet{Spec: set.Spec}, "alone")

	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "shard"}}
	allow := func(group, resource string, verbs ...string) {
		role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs})
		require.NoError(t, f.admin.Update(t.Context(), role))
	}
	f.grant(role)
	f.config.Impersonate.UserName = f.namespace

	fails := func(pod, message string) {
		t.Helper()
		f.eventually(message, func() bool {
			c := f.claim(f.slotted(pod, Scale()))
			receive(f, c.done, "it fails")
			require.Error(t, c.err)
			t.Log(c.err)

			return strings.Contains(c.err.Error(), message)
		})
	}
	fails("pod-a", `cannot get resource "pods"`)
	allow("", "pods", "get")
	fails("alone", "it has no owner with a scale")
	fails("pod-a", `cannot get resource "replicasets"`)
	allow("apps", "replicasets", "get")
	fails("pod-a", `cannot get resource "deployments"`)
	allow("apps", "deployments", "get")
	fails("pod-a", `cannot get resource "deployments/scale"`)
	allow("apps", "deployments/scale", "get")
	allow("coordination.k8s.io", "leases", "get", "list", "watch", "create", "update", "delete")
	require.Equal(t, contract.SlotName(f.ring, 0), f.claim(f.slotted("pod-a", Scale())).got().Name())
	require.Empty(t, f.cost("pod-a"), "it works without the permission to patch Pods")
}

// While the API server does not answer, a process must not end: it would be started less and less often.
func TestFollowingTheScaleSurvivesAnOutage(t *testing.T) {
	f := newFixture(t)
	_, set := f.deployed()
	f.pod(set, "pod-a")

	n := &network{}
	f.config.Wrap(n.wrap)
	n.down.Store(true)

	c := f.claim(f.slotted("pod-a", Scale()))
	f.eventually("it has tried", func() bool { return n.refused.Load() > 1 })
	n.down.Store(false)
	require.Equal(t, contract.SlotName(f.ring, 0), c.got().Name())
}

// What controls the Deployment may be in no namespace, and of a kind that nobody knows any more.
func TestFollowingTheScaleEndsAtTheNamespace(t *testing.T) {
	for name, kind := range map[string]schema.GroupVersionKind{
		"in no namespace":  rbacv1.SchemeGroupVersion.WithKind("ClusterRole"),
		"of no known kind": {Group: "example.org", Version: "v1", Kind: "Unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			deployment, set := f.deployed()
			f.pod(set, "pod-a")

			above := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "above-" + f.namespace}}
			require.NoError(t, f.admin.Create(t.Context(), above))
			deployment.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(above, kind)}
			require.NoError(t, f.admin.Update(t.Context(), deployment))
			require.Equal(t, contract.SlotName(f.ring, 0), f.claim(f.slotted("pod-a", Scale())).got().Name())
		})
	}
}
