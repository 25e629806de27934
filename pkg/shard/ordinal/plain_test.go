package ordinal_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/shard/ordinal"
)

func pod(number int) string { return fmt.Sprintf("%s-%d", setName, number) }

// index returns the ordinal of an object, by the definition.
func index(cm *corev1.ConfigMap, replicas int) int {
	return int(ordinal.Key(schema.GroupKind{Kind: "ConfigMap"}, cm) % uint64(replicas))
}

func TestEachObjectHasOneProcess(t *testing.T) {
	f := newFixture(t, 3)
	all := f.objects(30)

	for i := range 3 {
		f.start(i)
	}

	for _, cm := range all {
		f.eventually(func() bool { return len(f.record.by(cm.Name, "0")) > 0 }, "%s has no process", cm.Name)
	}

	f.touch(all, "1")

	for _, cm := range all {
		f.eventually(func() bool { return len(f.record.by(cm.Name, "1")) > 0 }, "%s has no process", cm.Name)
		require.Equal(t, []string{pod(index(cm, 3))}, f.record.by(cm.Name, "0"))
		require.Equal(t, []string{pod(index(cm, 3))}, f.record.by(cm.Name, "1"))
	}
}

// What the package does not promise: while processes know different numbers of replicas, some objects have two processes, and
// some have none. As soon as all know the number, each has one.
func TestDoublesAndOrphansWhileProcessesKnowDifferentNumbers(t *testing.T) {
	f := newFixture(t, 2)
	all := f.objects(60)

	members := []*member{f.start(0), f.start(1), f.start(2)}
	for _, cm := range all {
		f.eventually(func() bool { return len(f.record.by(cm.Name, "0")) > 0 }, "%s has no process", cm.Name)
	}

	require.ErrorContains(t, members[2].process.Working(), "ordinal 2 is not one of the ordinals 0 to 1")

	members[1].wire.holdNumbers() // it still knows two replicas
	f.scale(3)
	f.eventually(func() bool { return members[2].process.Working() == nil }, "process 2 has no share")
	f.eventually(func() bool { return works(members[0], all) == shareOf(all, 3) }, "process 0 does not know the number")

	since := time.Now() //nolint:forbidigo // it measures
	f.touch(all, "1")

	doubles, orphans := 0, 0

	for _, cm := range all {
		old, is := index(cm, 2), index(cm, 3)

		want := map[string]bool{}
		if old == 1 {
			want[pod(1)] = true // what process 1 believes
		}

		if is != 1 {
			want[pod(is)] = true // what processes 0 and 2 know
		}

		switch len(want) {
		case 2:
			doubles++
		case 0:
			orphans++
		}

		f.eventually(func() bool { return len(f.record.by(cm.Name, "1")) == len(want) }, "%s should have %d processes", cm.Name, len(want))

		for _, p := range f.record.by(cm.Name, "1") {
			require.True(t, want[p], "%s should not work on %s", p, cm.Name)
		}
	}

	require.Positive(t, doubles)
	require.Positive(t, orphans)

	// Orphans still have no process: all others do, and nothing is left to be done.
	for _, cm := range all {
		if index(cm, 2) == 0 && index(cm, 3) == 1 {
			require.Empty(t, f.record.by(cm.Name, "1"))
		}
	}

	members[1].wire.release()
	t.Logf("of %d objects, %d had two processes and %d had none, for the %s that a process did not know the new number",
		len(all), doubles, orphans, time.Since(since).Round(time.Millisecond)) //nolint:forbidigo // it measures

	for _, cm := range all { // process 1 is told by nobody: its source enqueues what it has got
		f.eventually(func() bool {
			for _, p := range f.record.by(cm.Name, "1") {
				if p == pod(index(cm, 3)) {
					return true
				}
			}

			return false
		}, "%s is still an orphan", cm.Name)
	}

	f.touch(all, "2")

	for _, cm := range all {
		f.eventually(func() bool { return len(f.record.by(cm.Name, "2")) > 0 }, "%s has no process", cm.Name)
	}

	for _, cm := range all {
		require.Equal(t, []string{pod(index(cm, 3))}, f.record.by(cm.Name, "2"))
	}
}

// works returns how many of the objects the process would work on.
func works(m *member, all []*corev1.ConfigMap) (count int) {
	for _, cm := range all {
		if owns, err := m.process.Owns(cm); owns && err == nil {
			count++
		}
	}

	return count
}

// shareOf returns how many of the objects are those of ordinal 0.
func shareOf(all []*corev1.ConfigMap, replicas int) (count int) {
	for _, cm := range all {
		if index(cm, replicas) == 0 {
			count++
		}
	}

	return count
}

// The cache keeps stubs of foreign objects, and the client hides them.
func TestForeignObjectsAreStubs(t *testing.T) {
	f := newFixture(t, 2)
	all := f.objects(20)
	m := f.start(0)

	f.eventually(func() bool { return len(f.record.by(first(all, 0).Name, "0")) > 0 }, "the process should work")

	foreign, mine := first(all, 1), first(all, 0)

	var cached corev1.ConfigMap

	require.NoError(t, m.mgr.GetCache().Get(t.Context(), client.ObjectKeyFromObject(foreign), &cached))
	require.Empty(t, cached.Data)
	require.Empty(t, cached.ManagedFields)
	require.Equal(t, foreign.UID, cached.UID)

	require.NoError(t, m.mgr.GetClient().Get(t.Context(), client.ObjectKeyFromObject(foreign), &cached))
	require.Equal(t, foreign.Data, cached.Data)
	require.Empty(t, cached.Annotations)
	require.NoError(t, m.mgr.GetCache().Get(t.Context(), client.ObjectKeyFromObject(mine), &cached))
	require.Equal(t, mine.Data, cached.Data)

	var list corev1.ConfigMapList

	require.NoError(t, m.mgr.GetClient().List(t.Context(), &list, client.InNamespace(f.namespace)))
	require.Len(t, list.Items, shareOf(all, 2))

	// What it gets when the number changes is reconciled as it is, and not as a stub.
	f.scale(1)

	for _, cm := range all {
		f.eventually(func() bool { return len(f.record.by(cm.Name, "0")) == 1 }, "%s should be reconciled", cm.Name)
	}

	require.NoError(t, m.mgr.GetClient().List(t.Context(), &list, client.InNamespace(f.namespace)))
	require.Len(t, list.Items, len(all))

	for i := range list.Items {
		require.Empty(t, list.Items[i].Annotations)
	}
}

// first returns an object of an ordinal, of two.
func first(all []*corev1.ConfigMap, number int) *corev1.ConfigMap {
	for _, cm := range all {
		if index(cm, 2) == number {
			return cm
		}
	}

	return nil
}

// An object that was deleted is reconciled once more where it was, and nowhere else.
func TestDeletedObjects(t *testing.T) {
	f := newFixture(t, 2)
	all := f.objects(20)
	members := []*member{f.start(0), f.start(1)}

	for number, m := range members {
		cm := first(all, number)
		f.eventually(func() bool { return len(f.record.by(cm.Name, "0")) > 0 }, "%s has no process", cm.Name)
		require.NoError(t, f.admin.Delete(t.Context(), cm))
		f.eventually(func() bool { return len(f.record.by(cm.Name, deleted)) > 0 }, "nobody was told that %s was deleted", cm.Name)
		require.Equal(t, []string{pod(number)}, f.record.by(cm.Name, deleted))

		// Events of what it controlled lead everybody here.
		elsewhere := m.process.Reconciler(m.mgr.GetClient(), cm, reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, errors.New("it has never run for the object")
		}))
		_, err := elsewhere.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cm)})
		require.NoError(t, err)
	}
}

// A Pod whose ordinal is not one of the replicas works on nothing.
func TestOrdinalsThatAreNoReplicas(t *testing.T) {
	f := newFixture(t, 1)
	all := f.objects(2)
	m := f.start(0)

	for _, cm := range all {
		f.eventually(func() bool { return len(f.record.by(cm.Name, "0")) > 0 }, "%s has no process", cm.Name)
	}

	f.scale(0)
	f.eventually(func() bool { return m.process.Working() != nil }, "no replica, no work")
	require.ErrorContains(t, m.process.Working(), "has no replicas")
	f.patchSet(`{"spec":{"replicas":1,"ordinals":{"start":5}}}`)
	f.eventually(func() bool {
		err := m.process.Working()
		return err != nil && err.Error() == "ordinal 0 is not one of the ordinals 5 to 5 of StatefulSet "+f.namespace+"/web: this process works on nothing"
	}, "the ordinals begin at 5")

	five := f.start(5)
	f.touch(all, "1")

	for _, cm := range all {
		f.eventually(func() bool { return len(f.record.by(cm.Name, "1")) > 0 }, "%s has no process", cm.Name)
		require.Equal(t, []string{pod(5)}, f.record.by(cm.Name, "1"))
	}

	require.NoError(t, five.stop())
}
