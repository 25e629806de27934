package shard

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// claiming is a shard that may wait for its slot.
type claiming struct {
	*process

	shard *Shard
}

func (f *fixture) claim(options Options) *claiming {
	f.Helper()

	s, err := New(options)
	require.NoError(f, err)

	return &claiming{f.launch(func(ctx context.Context) error { return s.claim(ctx, f.config) }), s}
}

// standsBy reports whether the process is ready to take a slot.
func (c *claiming) standsBy() bool { return c.shard.standsBy.Load() }

// got waits for the slot.
func (c *claiming) got() *Shard {
	c.f.Helper()
	receive(c.f, c.done, "a slot is taken")
	require.NoError(c.f, c.err)

	return c.shard
}

// waits until the process is known to stand by.
func (c *claiming) waits(pod string) {
	c.f.Helper()
	c.f.eventually(pod+" stands by", func() bool { return c.f.standby(pod) != nil })
}

// standby returns the Lease of the Pod that waits, or nil.
func (f *fixture) standby(pod string) *coordinationv1.Lease {
	f.Helper()

	lease := &coordinationv1.Lease{}
	if err := f.admin.Get(f.Context(), client.ObjectKey{Namespace: f.namespace, Name: standbyName(f.ring, pod)},
		lease); err != nil {
		return nil
	}

	return lease
}

func TestProcessesThatStartTogetherTakeDifferentSlots(t *testing.T) {
	f := newFixture(t)

	const slots = 5

	var all []*claiming
	for i := range slots + 1 {
		all = append(all, f.claim(f.slotOptions(fmt.Sprintf("pod-%d", i), slots)))
	}

	leases := &coordinationv1.LeaseList{}
	f.eventually("all slots are held", func() bool {
		require.NoError(t, f.admin.List(t.Context(), leases, client.InNamespace(f.namespace),
			client.MatchingLabels{contract.LabelClusterRing: f.ring}))

		return len(leases.Items) == slots
	})

	pods := map[string]string{}

	for i := range leases.Items {
		lease := &leases.Items[i]
		require.Equal(t, lease.Name, holder(lease))
		require.Equal(t, "1.5s", lease.Annotations[contract.AnnotationHoldOff])
		pods[lease.Annotations[contract.AnnotationPod]] = lease.Name
	}
	require.Len(t, pods, slots, "no Pod holds two")

	for i, c := range all {
		pod := fmt.Sprintf("pod-%d", i)
		if slot, holds := pods[pod]; holds {
			require.Equal(t, slot, c.got().Name())
		} else {
			c.waits(pod)
		}
	}
}

// TestASlotPassesToTheNextPodAndNothingIsReleased is what happens in a rolling update: the Lease is never free.
func TestASlotPassesToTheNextPodAndNothingIsReleased(t *testing.T) {
	f := newFixture(t)

	first := f.claim(f.slotOptions("pod-a", 1)).got()
	old, worked := f.reports(first)
	cm := f.configMap(first, "object")
	receive(f, worked, "the first Pod works")

	f.eventually("the Lease was held for longer than the hold-off", func() bool {
		lease := f.lease(first)

		return lease.Spec.RenewTime.Sub(lease.Spec.AcquireTime.Time) > minHoldOff
	})

	second := f.claim(f.slotOptions("pod-b", 1))
	second.waits("pod-b")

	leases := f.versions(first)
	before := f.lease(first)
	require.NoError(t, old.stop())

	s := second.got()
	require.Equal(t, first.Name(), s.Name())
	require.Nil(t, f.standby("pod-b"), "it waits no more")

	_, next := f.reports(s)
	receive(f, next, "the second Pod works")

	for _, lease := range leases() {
		require.Equal(t, s.Name(), holder(lease), "the Lease was never free")
		require.Equal(t, before.Spec.AcquireTime, lease.Spec.AcquireTime)
	}
	require.Equal(t, "pod-b", f.lease(s).Annotations[contract.AnnotationPod])
	require.NotContains(t, f.lease(s).Annotations, contract.AnnotationOffered)
	f.refresh(cm)
	require.Equal(t, s.Name(), cm.Labels[s.shardKey])
}

// versions watches the shard's Lease until the returned function is called, which returns its versions.
func (f *fixture) versions(s *Shard) func() []*coordinationv1.Lease {
	f.Helper()

	watch, err := f.adminWithWatch().Watch(f.Context(), &coordinationv1.LeaseList{}, client.InNamespace(f.namespace))
	require.NoError(f, err)

	out := make(chan []*coordinationv1.Lease, 1)

	go func() {
		var all []*coordinationv1.Lease

		for event := range watch.ResultChan() {
			if lease, ok := event.Object.(*coordinationv1.Lease); ok && lease.Name == s.Name() {
				all = append(all, lease)
			}
		}
		out <- all
	}()

	return func() []*coordinationv1.Lease {
		watch.Stop()

		return <-out
	}
}

func TestASlotIsReleasedIfNobodyWaitsForIt(t *testing.T) {
	f := newFixture(t)
	s := f.claim(f.slotOptions("pod-a", 2)).got()
	p, _ := f.reports(s)
	receive(f, p.mgr.Elected(), "the manager has the Lease")
	require.NoError(t, p.stop())
	require.Empty(t, holder(f.lease(s)))
	require.NotContains(t, f.lease(s).Annotations, contract.AnnotationOffered)
}

// TestASlotIsReleasedIfTheWaitingPodDoesNotTakeIt has a standby that was killed.
func TestASlotIsReleasedIfTheWaitingPodDoesNotTakeIt(t *testing.T) {
	f := newFixture(t)
	s := f.claim(f.slotOptions("pod-a", 1)).got()
	p, _ := f.reports(s)
	receive(f, p.mgr.Elected(), "the manager has the Lease")
	require.NoError(t, f.admin.Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: standbyName(f.ring, "pod-b"),
			Labels: map[string]string{contract.LabelStandby: f.ring}},
		Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NowMicro())},
	}))

	leases := f.versions(s)
	require.NoError(t, p.stop())
	require.Empty(t, holder(f.lease(s)))

	var offers int

	for _, lease := range leases() {
		if isOffered(lease) {
			offers++
		}
	}
	require.Equal(t, 1, offers)
}

func TestACrashedPodsSlotIsTakenOverWhileTheLeaseIsStillHeld(t *testing.T) {
	f := newFixture(t)
	first := f.claim(briefly(f.slotOptions("pod-a", 1))).got() // and then the process is gone
	second := f.claim(briefly(f.slotOptions("pod-b", 1)))
	second.waits("pod-b")
	require.Equal(t, "pod-a", f.lease(first).Annotations[contract.AnnotationPod])

	s := second.got()
	require.Equal(t, first.Name(), s.Name())
	require.Equal(t, "pod-b", f.lease(s).Annotations[contract.AnnotationPod])
	require.Equal(t, int32(1), *f.lease(s).Spec.LeaseTransitions)
}

func TestAProcessThatRestartsInItsPodContinuesWithItsSlot(t *testing.T) {
	f := newFixture(t)
	options := f.slotOptions("pod-a", 3)
	options.PodUID = "uid-a"
	other := f.claim(f.slotOptions("pod-b", 3)).got()
	first := f.claim(options).got()
	require.NotEqual(t, other.Name(), first.Name())

	require.Equal(t, first.Name(), f.claim(options).got().Name())
	require.Equal(t, int32(1), *f.lease(first).Spec.LeaseTransitions)

	options.PodUID = "uid-anew"
	require.NotEqual(t, first.Name(), f.claim(options).got().Name(), "a new Pod with the name of the old")
}

// TestASlotThatWasTakenBeforeTheManagerStarts has a process that took its slot and then did something else for too
// long.
func TestASlotThatWasTakenBeforeTheManagerStarts(t *testing.T) {
	f := newFixture(t)
	options := briefly(f.slotOptions("pod-a", 1))
	exited := make(chan error, 1)
	options.Exit = func(err error) { exited <- err }
	late := f.claim(options).got()
	f.reports(f.claim(briefly(f.slotOptions("pod-b", 1))).got())

	p := f.start(late, func(ctrl.Manager) {})
	require.ErrorContains(t, receive(f, exited, "the process ends"), `taken by Pod "pod-b"`)
	require.ErrorIs(t, late.term.lost(), ErrLost)
	require.NoError(t, p.stop())
	require.Equal(t, "pod-b", f.lease(late).Annotations[contract.AnnotationPod])
}

// TestASlotThatWasTakenEndsTheTerm has two processes whose clocks differ: the renewTime of the second is before that of
// the first.
func TestASlotThatWasTakenEndsTheTerm(t *testing.T) {
	f := newFixture(t)
	s := f.claim(f.slotOptions("pod-a", 1)).got()
	l := f.lock(s)
	_, _, err := l.Get(t.Context())
	require.NoError(t, err)
	require.NoError(t, l.Update(t.Context(), record(s.Name(), 1_000_000)))

	f.overwrite(s, func(lease *coordinationv1.Lease) {
		lease.Annotations[contract.AnnotationPod] = "pod-b"
		lease.Spec.RenewTime = new(metav1.NewMicroTime(time.Unix(1, 0)))
	})

	_, _, err = l.Get(t.Context())
	require.ErrorContains(t, err, `taken by Pod "pod-b"`)
	require.ErrorIs(t, s.term.lost(), ErrLost)
}

// Everyone who takes a slot within the hold-off of its holder has to hold off too: a rebalancer may have seen the Lease
// free, and still write. This is so if the answer to the write was lost that has taken the slot.
func TestASlotThatWasFreeLatelyStaysUnsettled(t *testing.T) {
	for name, held := range map[string]time.Duration{"lately": minHoldOff / 2, "long ago": 2 * minHoldOff} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			first := f.claim(f.slotOptions("pod-a", 1)).got()

			written := f.lease(first).Spec.RenewTime.Add(-time.Minute)
			f.overwrite(first, func(lease *coordinationv1.Lease) {
				lease.Spec.AcquireTime, lease.Spec.RenewTime = new(metav1.NewMicroTime(written)),
					new(metav1.NewMicroTime(written.Add(held)))
			})

			s := f.claim(f.slotOptions("pod-a", 1)).got()
			l := f.lock(s)
			_, _, err := l.Get(t.Context())
			require.NoError(t, err)
			require.Equal(t, held > minHoldOff, l.settled)
		})
	}
}

// TestALeaseOfAnotherRingIsNoSlot has a Lease that happens to have the name of the first slot.
func TestALeaseOfAnotherRingIsNoSlot(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, f.admin.Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: contract.SlotName(f.ring, 0)},
	}))
	require.Equal(t, contract.SlotName(f.ring, 1), f.claim(f.slotOptions("pod-a", 2)).got().Name())
}

// deployed creates a Deployment of one replica with its ReplicaSet, which nothing runs.
func (f *fixture) deployed() (*appsv1.Deployment, *appsv1.ReplicaSet) {
	f.Helper()

	labels := map[string]string{"app": "shard"}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "shards"},
		Spec:       appsv1.DeploymentSpec{Replicas: new(int32(1)), Selector: selector, Template: template},
	}
	require.NoError(f, f.admin.Create(f.Context(), deployment))

	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.namespace, Name: "shards-1",
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(deployment,
				appsv1.SchemeGroupVersion.WithKind("Deployment"))},
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
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set,
			appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
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
	f.reports(first)

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

	allow := f.grant()
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

	w := f.wire()
	w.via(down)

	c := f.claim(f.slotted("pod-a", Scale()))
	f.eventually("it has tried", func() bool { return w.count("*") > 1 })
	w.via(nil)
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
