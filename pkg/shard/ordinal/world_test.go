package ordinal_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/shard/ordinal"
)

const term = 3 * time.Second

// stopping makes a process take part in an agreement, with a patience for which no reconcile of a test runs.
func stopping(o *ordinal.Options) {
	o.StopTheWorld, o.TermDuration, o.Patience = true, term, time.Minute
	o.Exit = func(error) {}
}

// startAll starts processes and waits until they work.
func (f *fixture) startAll(numbers ...int) map[int]*member {
	f.Helper()

	members := map[int]*member{}
	for _, n := range numbers {
		members[n] = f.start(n, stopping)
	}

	for n, m := range members {
		f.eventually(func() bool { return m.process.Working() == nil }, "process %d should work", n)
	}

	return members
}

// oneEach waits until each object in this state was reconciled by its process alone.
func (f *fixture) oneEach(all []*corev1.ConfigMap, touched string, replicas int) {
	f.Helper()

	for _, cm := range all {
		f.eventually(func() bool { return len(f.record.by(cm.Name, touched)) > 0 }, "%s has no process", cm.Name)
		require.Equal(f, []string{pod(index(cm, replicas))}, f.record.by(cm.Name, touched))
	}
}

// busy changes objects until the function is called.
func (f *fixture) busy(all []*corev1.ConfigMap) (end func()) {
	f.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})

	go func() {
		defer close(done)

		for i := 0; ctx.Err() == nil; i++ {
			patch := []byte(`{"data":{"touched":"busy-` + strconv.Itoa(i) + `"}}`)
			_ = f.admin.Patch(ctx, all[i%len(all)].DeepCopy(), client.RawPatch("application/merge-patch+json", patch))
		}
	}()

	end = func() {
		cancel()
		<-done
	}
	f.Cleanup(end)

	return end
}

// Through 3, 5, and 2 replicas, under load, with processes that learn the number late, no object has two processes at any time.
func TestNoObjectHasTwoProcessesWhenTheWorldStops(t *testing.T) {
	f := newFixture(t, 3)
	all := f.objects(40)
	members := f.startAll(0, 1, 2)

	end := f.busy(all)

	members[1].wire.holdNumbers()
	f.scale(5)

	for n := 3; n < 5; n++ {
		members[n] = f.start(n, stopping)
	}

	for n, m := range members { // process 1 learns the number from the others
		f.eventually(func() bool { return m.process.Working() == nil && works(m, all) == shareOf(all, n, 5) }, "process %d should work", n)
	}

	members[1].wire.release()

	members[4].wire.holdNumbers()
	f.scale(2)

	for n := range 2 {
		m := members[n]
		f.eventually(func() bool { return m.process.Working() == nil && works(m, all) == shareOf(all, n, 2) }, "process %d should work", n)
	}

	for n := 2; n < 5; n++ {
		require.ErrorContains(t, members[n].process.Working(), "works on nothing", "process %d", n)
	}

	end()
	f.touch(all, "last")
	f.oneEach(all, "last", 2)
	require.Empty(t, f.record.overlaps())

	for _, m := range members {
		require.NoError(t, m.stop())
	}

	var lease coordinationv1.Lease

	require.NoError(t, f.admin.Get(t.Context(), client.ObjectKey{Namespace: f.namespace, Name: ordinal.LeaseName(setName)}, &lease))
	require.Len(t, lease.Annotations, 1, "all processes have left; the plan stays")
	require.Contains(t, lease.Annotations, ordinal.AnnotationPlan)
}

// A reconcile that hangs stops the world: nobody works on anything until it has ended.
func TestTheWorldWaitsForAReconcile(t *testing.T) {
	f := newFixture(t, 2)
	all := f.objects(20)
	members := f.startAll(0, 1)
	f.oneEach(all, "0", 2)

	release := f.record.hold(pod(0))
	t.Cleanup(release)

	before := f.record.begun(pod(0))
	f.touch([]*corev1.ConfigMap{first(all, 0)}, "1")
	f.eventually(func() bool { return f.record.begun(pod(0)) > before }, "process 0 should hang")

	f.scale(1)
	f.eventually(func() bool { return members[0].process.Working() != nil && members[1].process.Working() != nil }, "all should stop")

	begun := f.record.begun(pod(0)) + f.record.begun(pod(1))

	f.touch(all, "2")
	// The process that hangs renews its acknowledgement of the old number, for longer than the others would wait for one that has vanished.
	beat := f.beat()
	f.eventually(func() bool { return f.beat() > beat+8 }, "process 0 should renew")
	require.Equal(t, begun, f.record.begun(pod(0))+f.record.begun(pod(1)), "nobody may work")

	release()
	f.oneEach(all, "2", 1)
	require.Empty(t, f.record.overlaps())
}

// beat returns how often process 0 has renewed its acknowledgement.
func (f *fixture) beat() int {
	f.Helper()

	return int(f.entryOf(0)["beat"].(float64))
}

// A process that was cut off never works again, even when it is connected again. The others work on its objects after it has stopped.
func TestAProcessThatVanishes(t *testing.T) {
	f := newFixture(t, 2)
	all := f.objects(20)
	members := f.startAll(0, 1)
	f.oneEach(all, "0", 2)

	members[1].wire.cutOff()
	f.scale(1)

	// The moment at which process 0 has the objects of process 1, process 1 has lost its term.
	f.eventually(func() bool {
		return members[0].process.Working() == nil && works(members[0], all) == len(all)
	}, "process 0 should get all objects")
	require.ErrorIs(t, members[1].process.Working(), ordinal.ErrLost)

	members[1].wire.release()
	members[1].wait()
	require.ErrorIs(t, members[1].err, ordinal.ErrLost)

	f.touch(all, "1")
	f.oneEach(all, "1", 1)
	require.Empty(t, f.record.overlaps())
}

// A process that restarts works at once if the last one has stopped, and otherwise only when that cannot work any more.
func TestAProcessThatRestarts(t *testing.T) {
	f := newFixture(t, 2)
	all := f.objects(20)
	members := f.startAll(0, 1)
	f.oneEach(all, "0", 2)

	require.NoError(t, members[1].stop())

	second := f.start(1, stopping)
	f.touch(all, "1")
	f.oneEach(all, "1", 2)

	second.wire.cutOff()

	third := f.start(1, stopping)
	require.Error(t, third.process.Working())
	f.eventually(func() bool { return third.process.Working() == nil }, "its successor should work in the end")
	require.ErrorIs(t, second.process.Working(), ordinal.ErrLost)
	second.wire.release()

	f.touch(all, "2")
	f.oneEach(all, "2", 2)
	require.Empty(t, f.record.overlaps())
}

// A new Lease proves nothing about processes that worked by one that was deleted.
func TestTheLeaseIsDeleted(t *testing.T) {
	f := newFixture(t, 2)
	all := f.objects(20)
	members := f.startAll(0, 1)
	f.oneEach(all, "0", 2)

	members[1].wire.cutOff() // it does not see this, and works until its term ends

	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: ordinal.LeaseName(setName)}}
	require.NoError(t, f.admin.Delete(t.Context(), lease))
	members[0].wait()
	require.ErrorIs(t, members[0].err, ordinal.ErrLost)

	f.scale(1)

	next := f.start(0, stopping)
	f.eventually(func() bool { return next.process.Working() == nil }, "the next process should work in the end")
	require.ErrorIs(t, members[1].process.Working(), ordinal.ErrLost)

	f.touch(all, "1")
	f.oneEach(all, "1", 1)
	require.Empty(t, f.record.overlaps())
}

// A process that is told to stop keeps its place until its last reconcile has ended.
func TestAProcessThatStopsWhileItWorks(t *testing.T) {
	f := newFixture(t, 1)
	all := f.objects(5)
	members := f.startAll(0)
	f.oneEach(all, "0", 1)

	release := f.record.hold(pod(0))
	t.Cleanup(release)

	before := f.record.begun(pod(0))
	f.touch(all[:1], "1")
	f.eventually(func() bool { return f.record.begun(pod(0)) > before }, "process 0 should hang")
	members[0].cancel()

	successor := f.start(0, stopping)
	id, beat := f.entryOf(0)["id"], f.beat()
	f.eventually(func() bool { return f.beat() > beat+8 }, "process 0 should renew")
	require.Equal(t, id, f.entryOf(0)["id"])
	require.Error(t, successor.process.Working())

	release()
	require.NoError(t, members[0].stop())
	f.eventually(func() bool { return successor.process.Working() == nil }, "the successor should work")
	f.touch(all, "2")
	f.oneEach(all, "2", 1)
	require.Empty(t, f.record.overlaps())
}
