package engine

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/move"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// Objects that follow a released object reach the next shard before it does. The object contains their resource
// versions.
func TestChildrenComeFirst(t *testing.T) {
	w := newWorld(t)
	owner := w.owner(w.namesAt(w.target, "b", "owner", 1)[0], "a")
	first, second := w.child(owner, "first", "a"), w.child(owner, "second", "a")
	letGo := w.hold("secrets/second")

	w.e.SetTarget(w.target)
	w.run()
	w.becomes(owner, "a", true)
	require.Equal(t, contract.DrainValue, owner.Labels[contract.DrainLabel(w.ring)],
		"its followers move first, so it must not name the next shard")

	w.acknowledge(owner)

	w.becomes(first, "b", false)
	w.await(func() bool { return w.has("secrets/second") }, "the other child should be moving")
	require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(owner), owner))
	require.Empty(t, owner.Labels, "the owner should wait for it")

	letGo()
	w.becomes(owner, "b", false)
	w.becomes(second, "b", false)
	require.Equal(t, contract.Handover{{Resource: "secrets"}: second.ResourceVersion}, w.handover(owner))
}

// gathered takes an object that is due, makes it wait for its followers if they have to move first, and reports whether
// it is free to go.
func gathered(e *Engine, o feed.Object) bool {
	_, job, ok := e.take()
	if !ok {
		return false
	}

	out := work.Outcome{Object: &o, Next: work.Parked, Cause: work.FollowersOf(o.UID), To: "a"}
	e.report(o.ID, out)

	return job.Gathered.All
}

// A list of followers may have begun before some of them moved. They are not moved again.
func TestListOfFollowersMayBeOld(t *testing.T) {
	w := newWorld(t)
	owner := w.owner(w.namesAt(w.target, "b", "owner", 1)[0], "a")
	first, second := w.child(owner, "first", "a"), w.child(owner, "second", "a")
	before := w.e.Objects.Object(corev1.SchemeGroupVersion.WithResource("secrets"),
		&metav1.PartialObjectMetadata{ObjectMeta: first.ObjectMeta})
	letGo := w.hold("secrets/second")

	w.e.SetTarget(w.target)
	few(w.e, 1)
	w.runUntilGivenUp(owner)
	w.becomes(first, "b", false)
	w.await(func() bool { return !w.e.knows(before.ID) && w.has("secrets/second") }, "its move should be seen")

	w.e.mu.Lock()
	watch := w.e.table.Watch(work.Place{Of: before.GVR.GroupResource()}) // it is open
	w.e.mu.Unlock()
	list := &followed{e: w.e, watch: watch}
	list.Present(t.Context(), w.e.Objects.Object(before.GVR, &metav1.PartialObjectMetadata{ObjectMeta: first.ObjectMeta}))
	list.Present(t.Context(), before)

	require.False(t, w.e.knows(before.ID))

	letGo()
	w.becomes(owner, "b", false)
	w.becomes(second, "b", false)
}

// A follower may have no shard. The object that it follows waits until all followers without a shard have been seen,
// but not forever, and for nothing else.
func TestOwnersWaitUntilUnassignedObjectsAreSeen(t *testing.T) {
	secrets, configMaps := secrets.GroupResource(), schema.GroupResource{Resource: "configmaps"}

	for source, waits := range map[sourceID]bool{
		{looksFor: forUnassigned, Place: work.Place{Of: secrets}}:                   true,
		{looksFor: forUnassigned, Place: work.Place{Of: secrets, Namespace: "one"}}: true,
		newTarget: true,
		{looksFor: forUnassigned, Place: work.Place{Of: configMaps}}: false,
		{looksFor: forDraining, Place: work.Place{Of: secrets}}:      false,
	} {
		t.Run(source.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := New(Config{Ring: "ring", Clock: clock.RealClock{}, Limits: Limits{Workers: 1}})
				ring := target("ring", "secrets")
				followAtOnce(e, ring)

				owner := configMap("owner", "")
				require.True(t, e.saw(ring, &sight{object: owner}))

				watch := e.table.Watch(work.Place{Of: secrets})

				waitsFor := func() bool {
					gathered(e, owner)
					watch.Begin()
					watch.Listed(e.Clock.Now())
					e.table.Seek(e.Clock.Now(), true, !e.unseen())

					return !gathered(e, owner)
				}

				e.listing(source, true)
				require.Equal(t, waits, waitsFor())
				e.listed(source)
				require.False(t, waitsFor())

				again := func() {
					require.True(t, e.saw(ring, &sight{object: owner, at: move.Assessment{InPlace: true}}))
					require.True(t, e.saw(ring, &sight{object: owner}))
				}

				again()
				e.listing(source, false)
				require.Equal(t, source == newTarget, waitsFor(), "it has shown them before")
				again()
				e.listing(source, true)
				require.Equal(t, waits, waitsFor())
				time.Sleep(10 * time.Second) //nolint:forbidigo // the time of the bubble is not real
				require.False(t, waitsFor())
			})
		})
	}
}

// Followers move first at every level: a ServiceAccount before the Secret that controls it, and the Secret before its
// owner. The Secret also contains the resource versions that have to be seen.
func TestGrandchildrenComeBeforeChildren(t *testing.T) {
	w := newWorld(t)
	w.target = w.chained("a", "b")
	owner := w.owner(w.namesAt(w.target, "b", "owner", 1)[0], "a")
	child, stray := w.child(owner, "child", "a"), w.child(owner, "stray", "a")
	grandchild := w.grandchild(child, "grandchild", "a")
	letGo := w.hold("serviceaccounts/grandchild")

	w.runUntilGivenUp(owner)

	w.becomes(stray, "b", false)
	w.await(func() bool { return w.has("serviceaccounts/grandchild") }, "the grandchild should be moving")
	w.await(func() bool { return w.waits(child) }, "the child should wait for it")
	require.False(t, w.has("secrets/child"))
	require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(owner), owner))
	require.Empty(t, owner.Labels, "the owner should wait for both")

	letGo()
	w.becomes(owner, "b", false)
	w.becomes(child, "b", false)
	w.becomes(grandchild, "b", false)

	require.Equal(t, grandchild.ResourceVersion, w.handover(child)[schema.GroupResource{Resource: "serviceaccounts"}])
	require.Equal(t, contract.Handover{{Resource: "serviceaccounts"}: grandchild.ResourceVersion,
		{Resource: "secrets"}: child.ResourceVersion}, w.handover(owner))
}

// A child can be out of its place while its owner is in its place. The followers of the child move first anyway, as
// soon as it is known that there may be any.
func TestGrandchildrenComeBeforeAChildWhoseOwnerStays(t *testing.T) {
	w := newWorld(t)
	w.target = w.chained("a", "b")
	owner := w.owner(w.namesAt(w.target, "b", "owner", 1)[0], "b")
	known := w.grandchild(w.child(owner, "known", "b"), "known", "")

	w.lease("dead", false) // otherwise its objects wait for twice the duration of a Lease

	w.e.SetTarget(w.target)
	w.run()
	w.becomes(known, "b", false)

	// A child whose grandchild does not exist yet when the followers of the child are listed moves alone: then the next
	// pair is tried.
	for i := range 20 {
		name := fmt.Sprintf("pair-%d", i)
		letGo := w.hold("serviceaccounts/" + name)
		child := w.child(owner, name, "dead")
		grandchild := w.grandchild(child, name, "dead")
		moves := func() bool {
			require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(child), child))

			return child.Labels[contract.ShardLabel(w.ring)] == "b"
		}

		w.await(func() bool { return moves() || w.waits(child) && w.has("serviceaccounts/"+name) },
			"the child should wait for the grandchild")

		alone := moves()
		letGo()
		w.becomes(child, "b", false)
		w.becomes(grandchild, "b", false)

		if !alone {
			require.Equal(t, contract.Handover{{Resource: "serviceaccounts"}: grandchild.ResourceVersion}, w.handover(child))
			return
		}
	}

	require.Fail(t, "no child waited for its grandchild")
}

// An object loses its label if the object that it follows no longer follows any other, or if it follows an object
// outside the ring.
func TestGrandchildrenOfOrphansAreReleased(t *testing.T) {
	w := newWorld(t)
	w.target = w.chained("a", "b")
	owner := w.owner(w.namesAt(w.target, "b", "owner", 1)[0], "b")
	child := w.child(owner, "child", "b")
	grandchild := w.grandchild(child, "grandchild", "b")

	w.e.SetTarget(w.target)
	w.run()
	w.await(func() bool { return w.e.Report().Converged }, "the ring should converge")

	before := child.DeepCopy()
	child.OwnerReferences = nil
	require.NoError(t, w.client.Patch(t.Context(), child, client.MergeFrom(before)))

	w.e.SetTarget(w.renewed())
	w.becomes(child, "", false)
	w.becomes(grandchild, "", false)
}

// chained returns a target of a ring with ConfigMaps, their Secrets, and the ServiceAccounts of these.
func (w *world) chained(shards ...string) *Target {
	t := w.targetOf(shards...)
	t.Set = resourcesOf("secrets", "serviceaccounts")

	return t
}

// renewed returns the current target with another revision, so that all objects are checked again.
func (w *world) renewed() *Target {
	t := *w.target
	t.Revision++

	return &t
}

func (w *world) grandchild(of *corev1.Secret, name, shard string) *corev1.ServiceAccount {
	e := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, Labels: w.at(shard)}}
	require.NoError(w, controllerutil.SetControllerReference(of, e, w.client.Scheme()))
	require.NoError(w, w.client.Create(w.Context(), e))

	return e
}

// runUntilGivenUp runs the engine, and releases an object of a as soon as it is drained.
func (w *world) runUntilGivenUp(obj client.Object) {
	w.Helper()
	w.e.SetTarget(w.target)
	w.run()
	w.becomes(obj, "a", true)
	w.acknowledge(obj)
}

// waits reports whether an object waits for its followers.
func (w *world) waits(obj client.Object) bool {
	w.e.mu.Lock()
	defer w.e.mu.Unlock()

	return w.e.table.Waits(work.FollowersOf(obj.GetUID()))
}

func (w *world) handover(obj client.Object) contract.Handover {
	handover, err := contract.ParseHandover(obj.GetAnnotations()[contract.HandoverAnnotation(w.ring)])
	require.NoError(w, err)

	return handover
}

// few makes passes have seen a number of objects.
func few(e *Engine, objects int) {
	for _, l := range e.looks {
		l.counted, l.objects = e.target, 0
	}

	e.looks[0].objects = objects
}

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// If a shard stops, no object is drained until the followers of objects are watched, or until that has taken too long.
func TestDrainsWaitForTheWatchOfFollowers(t *testing.T) {
	for name, c := range map[string]struct {
		stops   bool
		objects int
		follow  []string
		granted bool
	}{
		"a shard stops":                 {stops: true, objects: 1, follow: []string{"secrets"}},
		"no shard stops":                {objects: 1, follow: []string{"secrets"}, granted: true},
		"nothing follows objects":       {stops: true, objects: 1, granted: true},
		"there are too many objects":    {stops: true, objects: fewObjects + 1, follow: []string{"secrets"}, granted: true},
		"nobody knows how many objects": {stops: true, follow: []string{"secrets"}, granted: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := unconnected("r")
			ring := target("r", c.follow...)
			e.SetTarget(of(ring, "a", "b"))
			few(e, c.objects)
			ring.View = membership.NewView("r", []*coordinationv1.Lease{leaseOf("a", "a", false), leaseOf("b", "b", c.stops)},
				nil)
			e.SetTarget(ring)

			o := configMap("object", "b")
			require.True(t, e.saw(e.Target(), &sight{object: o}))

			of := o.GVR.GroupResource()
			granted := func() bool { return e.table.Due() && !e.table.Waits(work.PermitOf("b", of)) }

			_, _, ok := e.take()
			require.True(t, ok)
			e.report(o.ID, work.Outcome{Object: &o, Next: work.Parked, Cause: work.PermitOf("b", of)})
			require.Equal(t, c.granted, granted())

			wanted, _ := e.table.Seek(e.Clock.Now(), e.few(), true)
			require.Equal(t, !c.granted, len(wanted) > 0)

			w := e.table.Watch(work.Place{Of: secrets.GroupResource()})
			w.Begin()
			w.Listed(e.Clock.Now())
			e.table.Seek(e.Clock.Now(), e.few(), true)
			require.True(t, granted())

			o.Draining, o.ResourceVersion = true, "2"
			require.True(t, e.saw(e.Target(), &sight{object: o}))

			wanted, _ = e.table.Seek(e.Clock.Now(), e.few(), true)
			require.Equal(t, len(c.follow) > 0, len(wanted) > 0, "a drained object is about to lose its shard")
		})
	}
}
