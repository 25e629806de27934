package engine

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/rebalancer/obligation"
)

// What follows an object that was given up comes to the next shard before it does, and it says when that was.
func TestChildrenComeFirst(t *testing.T) {
	w := newRingOfTwo(t)
	owner := w.owner(w.nameAtB("owner"), "a")
	first, second := w.child(owner, "first", "a"), w.child(owner, "second", "a")
	letGo := w.hold("secrets/second")

	w.e.SetTarget(w.target)
	w.run()
	w.becomes(owner, "a", true)
	require.Equal(t, v1alpha1.DrainValue, owner.Labels[v1alpha1.DrainLabel(w.ring)], "what follows it goes first, to nobody at once")

	w.giveUp(owner)

	w.becomes(first, "b", false)
	w.await(func() bool { return w.has("secrets/second") }, "the other one is on its way")
	require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(owner), owner))
	require.Empty(t, owner.Labels, "the owner waits for it")

	letGo()
	w.becomes(owner, "b", false)
	w.becomes(second, "b", false)
	require.Equal(t, v1alpha1.Handover{{Resource: "secrets"}: second.ResourceVersion}, w.handover(owner))
}

// A list of what follows an object may have begun before some of that moved. That is not moved again.
func TestListOfFollowersMayBeOld(t *testing.T) {
	w := newRingOfTwo(t)
	owner := w.owner(w.nameAtB("owner"), "a")
	first, second := w.child(owner, "first", "a"), w.child(owner, "second", "a")
	before := w.e.Objects.Object(corev1.SchemeGroupVersion.WithResource("secrets"), &metav1.PartialObjectMetadata{ObjectMeta: first.ObjectMeta})
	letGo := w.hold("secrets/second")

	w.runUntilGivenUp(owner)
	w.becomes(first, "b", false)
	w.await(func() bool { _, moves := w.e.Has(before.ID); return !moves && w.has("secrets/second") }, "it was seen to have moved")

	w.e.mu.Lock()
	missing := search{owner.UID: sought{family: w.e.families.byUID[owner.UID]}}
	w.e.mu.Unlock()
	require.NoError(t, w.e.gatherOne(t.Context(), before, missing))
	_, moves := w.e.Has(before.ID)
	require.False(t, moves)

	letGo()
	w.becomes(owner, "b", false)
	w.becomes(second, "b", false)
}

// An object that follows another may be without a shard. The other one waits until all of these are seen, but not for ever, and for nothing else.
func TestOwnersWaitUntilUnassignedObjectsAreSeen(t *testing.T) {
	secrets, configMaps := schema.GroupResource{Resource: "secrets"}, schema.GroupResource{Resource: "configmaps"}

	for source, waits := range map[sourceID]bool{
		{looksFor: forUnassigned, resource: secrets}:                   true,
		{looksFor: forUnassigned, resource: secrets, namespace: "one"}: true,
		newTarget: true,
		{looksFor: forUnassigned, resource: configMaps}: false,
		{looksFor: forLost, resource: secrets}:          false,
		{looksFor: forDraining, resource: secrets}:      false,
	} {
		t.Run(source.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := New(Config{Ring: "ring", Clock: clock.RealClock{}})
				followAtOnce(e, target("ring", "secrets"))

				look := func() (over *atomic.Bool) {
					over = &atomic.Bool{}
					go func() {
						e.gatherAll(t.Context())
						over.Store(true)
					}()
					synctest.Wait()

					return over
				}

				e.listing(source)
				over := look()
				require.Equal(t, !waits, over.Load())
				e.listed(source)
				synctest.Wait()
				require.True(t, over.Load())

				e.listing(source)
				over = look()
				time.Sleep(withoutThem) //nolint:forbidigo // in a bubble, where time is not real
				synctest.Wait()
				require.True(t, over.Load())
			})
		})
	}
}

// What follows an object goes before it at every level: a ServiceAccount before the Secret that controls them, and that before its owner. What is between
// says, too, what has to be seen.
func TestGrandchildrenComeBeforeChildren(t *testing.T) {
	w := newRingOfTwo(t)
	w.target = w.chained("a", "b")
	owner := w.owner(w.nameAtB("owner"), "a")
	child, stray := w.child(owner, "child", "a"), w.child(owner, "stray", "a")
	grandchild := w.grandchild(child, "grandchild", "a")
	letGo := w.hold("serviceaccounts/grandchild")

	w.runUntilGivenUp(owner)

	w.becomes(stray, "b", false)
	w.await(func() bool { return w.has("serviceaccounts/grandchild") }, "the grandchild is on its way")
	w.await(func() bool { return w.waits(child) }, "the child waits for it")
	require.False(t, w.has("secrets/child"))
	require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(owner), owner))
	require.Empty(t, owner.Labels, "the owner waits for both")

	letGo()
	w.becomes(owner, "b", false)
	w.becomes(child, "b", false)
	w.becomes(grandchild, "b", false)

	require.Equal(t, grandchild.ResourceVersion, w.handover(child)[schema.GroupResource{Resource: "serviceaccounts"}])
	require.Equal(t, v1alpha1.Handover{{Resource: "serviceaccounts"}: grandchild.ResourceVersion, {Resource: "secrets"}: child.ResourceVersion}, w.handover(owner))
}

// A child that is out of its place while its owner is not: what follows the child goes first all the same, as soon as it is known that something
// may.
func TestGrandchildrenComeBeforeAChildWhoseOwnerStays(t *testing.T) {
	w := newRingOfTwo(t)
	w.target = w.chained("a", "b")
	owner := w.owner(w.nameAtB("owner"), "b")
	known := w.grandchild(w.child(owner, "known", "b"), "known", "")

	w.e.SetTarget(w.target)
	w.run()
	w.becomes(known, "b", false)

	letGo := w.hold("serviceaccounts/grandchild")
	child := w.child(owner, "child", "dead")
	grandchild := w.grandchild(child, "grandchild", "dead")

	w.await(func() bool { return w.has("serviceaccounts/grandchild") }, "the grandchild is on its way")
	w.await(func() bool { return w.waits(child) }, "the child waits for it")
	require.False(t, w.has("secrets/child"))
	letGo()
	w.becomes(child, "b", false)
	w.becomes(grandchild, "b", false)
	require.Equal(t, v1alpha1.Handover{{Resource: "serviceaccounts"}: grandchild.ResourceVersion}, w.handover(child))
}

// Who follows somebody that follows nobody any more loses the label, and so does who follows a stranger.
func TestGrandchildrenOfOrphansAreReleased(t *testing.T) {
	w := newRingOfTwo(t)
	w.target = w.chained("a", "b")
	owner := w.owner(w.nameAtB("owner"), "b")
	child := w.child(owner, "child", "b")
	grandchild := w.grandchild(child, "grandchild", "b")

	w.e.Limits.AuditBudget = 1
	w.e.SetTarget(w.target)
	w.run()
	w.await(func() bool { return w.e.Report().Converged }, "all is in place")

	before := child.DeepCopy()
	child.OwnerReferences = nil
	require.NoError(t, w.client.Patch(t.Context(), child, client.MergeFrom(before)))

	w.e.SetTarget(w.renewed())
	w.becomes(child, "", false)
	w.becomes(grandchild, "", false)
}

// chained is a target of a ring of ConfigMaps, their Secrets and the ServiceAccounts of these.
func (w *ringOfTwo) chained(shards ...string) *Target {
	t := w.targetOf(shards...)
	t.Set = resourcesOf("secrets", "serviceaccounts")

	return t
}

// renewed is the present target, with all to be looked at again.
func (w *ringOfTwo) renewed() *Target {
	t := *w.target
	t.Revision++

	return &t
}

func (w *ringOfTwo) grandchild(of *corev1.Secret, name, shard string) *corev1.ServiceAccount {
	e := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, Labels: w.at(shard)}}
	require.NoError(w, controllerutil.SetControllerReference(of, e, w.client.Scheme()))
	require.NoError(w, w.client.Create(w.Context(), e))

	return e
}

// runUntilGivenUp lets the engine work, and gives an object of a up as soon as it is drained.
func (w *ringOfTwo) runUntilGivenUp(obj client.Object) {
	w.Helper()
	w.e.SetTarget(w.target)
	w.run()
	w.becomes(obj, "a", true)
	w.giveUp(obj)
}

// giveUp gives an object up as shards do.
func (w *ringOfTwo) giveUp(obj client.Object) {
	before, _ := obj.DeepCopyObject().(client.Object)
	delete(obj.GetLabels(), v1alpha1.DrainLabel(w.ring))
	delete(obj.GetLabels(), v1alpha1.ShardLabel(w.ring))
	require.NoError(w, w.client.Patch(w.Context(), obj, client.MergeFrom(before)))
}

// waits reports whether an object waits for what follows it.
func (w *ringOfTwo) waits(obj client.Object) bool {
	w.e.mu.Lock()
	defer w.e.mu.Unlock()

	return w.e.table.Waits(obligation.FollowersOf(obj.GetUID()))
}

func (w *ringOfTwo) handover(obj client.Object) v1alpha1.Handover {
	handover, err := v1alpha1.ParseHandover(obj.GetAnnotations()[v1alpha1.HandoverAnnotation(w.ring)])
	require.NoError(w, err)

	return handover
}
