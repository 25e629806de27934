package shard

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// said returns the hold-off on the shard's Lease.
func (f *fixture) said(s *Shard) string {
	f.Helper()

	return f.lease(s).Annotations[contract.AnnotationHoldOff]
}

// What a shard finds when it starts determines whether moves of its objects may be in progress. It announces how long
// it waits for their end. Everyone who has read the hold-off of a predecessor may rely on that.
func TestHoldOff(t *testing.T) {
	at := metav1.NewMicroTime(time.Unix(1_700_000_000, 0))
	lease := func(holder string, held time.Duration) *coordinationv1.LeaseSpec {
		return &coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32(3)), AcquireTime: &at,
			RenewTime: new(metav1.NewMicroTime(at.Add(held))),
		}
	}
	untimed := lease("shard-0", time.Hour)
	untimed.AcquireTime = nil

	const long = 10 * time.Second

	for name, tc := range map[string]struct {
		found *coordinationv1.LeaseSpec
		says  string
		want  time.Duration
	}{
		"no Lease: new, or deleted long ago": {nil, "", minHoldOff},
		"taken":                              {lease(contract.LeaseControllerIdentity, 0), "", minHoldOff},
		"given back":                         {lease("", time.Hour), "", minHoldOff},
		"another's":                          {lease("someone", time.Hour), "", minHoldOff},
		"still this shard's":                 {lease("shard-0", minHoldOff), "", 0},
		"this shard's for a moment":          {lease("shard-0", minHoldOff-time.Millisecond), "", minHoldOff},
		"this shard's, since nobody knows how long": {untimed, "", minHoldOff},
		"free, and says more":                       {lease("", time.Hour), "10s", long},
		"taken, and says more":                      {lease(contract.LeaseControllerIdentity, time.Hour), "10s", long},
		"held for less than it says":                {lease("shard-0", long-time.Second), "10s", long},
		"held for as long as it says":               {lease("shard-0", long), "10s", 0},
		"free, and says less":                       {lease("", time.Hour), "1ns", minHoldOff},
		"free, and says nothing to rely on":         {lease("", time.Hour), "for ever", minHoldOff},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			s := f.shard("shard-0")
			clk := &lateClock{}
			s.term.clock = clk
			s.term.renewDeadline, s.term.leaseDuration = time.Hour, 2*time.Hour // this test is not about renewals
			l := f.lock(s)

			if tc.found != nil {
				require.NoError(t, f.admin.Create(t.Context(), &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: f.namespace, Name: "shard-0", Labels: map[string]string{contract.LabelState: "dead"},
						Annotations: map[string]string{contract.AnnotationHoldOff: tc.says, "example.org/other": "kept"},
					},
					Spec: *tc.found,
				}))
			}

			_, _, err := l.Get(t.Context())
			require.Equal(t, tc.found == nil, err != nil)
			require.NoError(t, l.Update(t.Context(), record("shard-0", 1)))
			require.Equal(t, "shard-0", holder(f.lease(s)))
			require.Equal(t, tc.found != nil, f.lease(s).Annotations["example.org/other"] == "kept")
			require.Equal(t, f.ring, f.lease(s).Labels[contract.LabelClusterRing])
			require.Equal(t, tc.found != nil, f.lease(s).Labels[contract.LabelState] == "dead", "not ours to write")

			if tc.want > 0 {
				require.Equal(t, tc.want.String(), f.said(s))
				clk.ahead.Store(int64(tc.want - time.Second))
				require.NoError(t, l.Update(t.Context(), record("shard-0", 2)))
				require.Equal(t, tc.want.String(), f.said(s), "until it has passed")
				require.ErrorIs(t, s.term.held(), ErrNotHeld)
			}

			clk.ahead.Store(int64(tc.want))
			require.NoError(t, s.term.held())
			f.overwrite(s, func(lease *coordinationv1.Lease) { lease.Annotations = nil })

			_, _, err = l.Get(t.Context())
			require.NoError(t, err)
			require.NoError(t, l.Update(t.Context(), record("shard-0", 3)))
			require.Equal(t, "1.5s", f.said(s), "from now on its own, and it comes back")
			require.NoError(t, l.Update(t.Context(), record("", 4)))
			require.Equal(t, "1.5s", f.said(s), "it stays when the Lease is given back")
		})
	}
}

// The Lease of a shard that has the name of its Pod names none, no matter who had it before, and each renewal says anew
// which uid the Pod has.
func TestTheLeaseNamesThePodThatHasRenewedIt(t *testing.T) {
	f := newFixture(t)

	for n, step := range []struct {
		pod  string
		uid  types.UID
		says string
	}{{"pod-a", "uid-a", "pod-a"}, {"pod-b", "uid-a", "pod-b"}, {"shard-0", "uid-b", ""}, {"pod-a", "", "pod-a"},
		{"", "", ""}} {
		s := f.shard("shard-0")
		s.options.Pod, s.options.PodUID = step.pod, step.uid
		l, renewal := f.lock(s), record("shard-0", int64(n))
		_, _, _ = l.Get(t.Context()) // it may not exist yet
		require.NoError(t, l.Update(t.Context(), renewal))

		uid := ""
		if step.uid != "" {
			uid = contract.PodUIDValue(step.uid, renewal.RenewTime.Time)
		}

		require.Equal(t, step.says, f.lease(s).Annotations[contract.AnnotationPod], n)
		require.Equal(t, uid, f.lease(s).Annotations[contract.AnnotationPodUID], n)
	}
}

// A Lease that was deleted is free until somebody recreates it.
func TestTheHoldOffIsKeptWhenTheLeaseIsMadeAnew(t *testing.T) {
	for name, remake := range map[string]func(f *fixture, s *Shard, l *lock, w *wire){
		"by the shard": func(f *fixture, _ *Shard, l *lock, _ *wire) {
			require.NoError(f, l.Create(f.Context(), record("shard-0", 3)))
		},
		"by the shard, which does not get the answer": func(f *fixture, _ *Shard, l *lock, w *wire) {
			w.via(lost)
			require.ErrorIs(f, l.Create(f.Context(), record("shard-0", 3)), errDown)
			w.via(nil)

			_, _, err := l.Get(f.Context())
			require.NoError(f, err)
			require.NoError(f, l.Update(f.Context(), record("shard-0", 4)))
		},
		"by somebody else": func(f *fixture, s *Shard, l *lock, _ *wire) {
			require.NoError(f, f.admin.Create(f.Context(), &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: s.Name()},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: new(s.Name())},
			}))
			_, _, err := l.Get(f.Context())
			require.NoError(f, err)
			require.NoError(f, l.Update(f.Context(), record("shard-0", 3)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			s := f.shard("shard-0")
			clk := &lateClock{}
			s.term.clock = clk
			s.term.renewDeadline, s.term.leaseDuration = time.Hour, 2*time.Hour
			w := f.wire()
			l := f.lock(s)
			require.NoError(t, l.Create(t.Context(), record("shard-0", 1)))
			clk.ahead.Store(int64(minHoldOff))
			require.NoError(t, s.term.held())
			_, running, err := s.term.begin(t.Context())
			require.NoError(t, err)

			defer running()

			require.NoError(t, f.admin.Delete(t.Context(), f.lease(s)))
			require.Error(t, l.Update(t.Context(), record("shard-0", 2)))

			if name != "by somebody else" {
				_, _, err = l.Get(t.Context())
				require.Error(t, err)
			}
			remake(f, s, l, w)
			require.Equal(t, "1.5s", f.said(s))
			require.ErrorIs(t, s.term.held(), ErrNotHeld)
			clk.ahead.Store(int64(2*minHoldOff + time.Minute))
			require.NoError(t, s.term.held())
			require.NoError(t, l.Update(t.Context(), record("shard-0", 5)))
			require.NoError(t, s.term.held(), "once")
		})
	}
}

// Everyone who has read that the shard does not watch a namespace relies on the hold-off of a process that does.
func TestProcessThatWatchesMoreThanItsPredecessorHoldsOff(t *testing.T) {
	for name, tc := range map[string]struct {
		before, now []string
		settled     bool
	}{
		"the same":        {[]string{"a", "b"}, []string{"a", "b"}, true},
		"all, as before":  {nil, nil, true},
		"fewer than all":  {nil, []string{"a"}, true},
		"others":          {[]string{"a"}, []string{"b"}, false},
		"all, unlike one": {[]string{"a"}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			first, second := f.shard("shard-0"), f.shard("shard-0")
			first.namespaces, second.namespaces = tc.before, tc.now
			require.NoError(t, f.lock(first).Create(t.Context(), record("shard-0", 1)))
			f.overwrite(first, func(lease *coordinationv1.Lease) {
				lease.Spec.AcquireTime = &metav1.MicroTime{Time: lease.Spec.RenewTime.Add(-time.Hour)}
			})

			l := f.lock(second)
			_, _, err := l.Get(t.Context())
			require.NoError(t, err)
			require.Equal(t, tc.settled, l.settled)
			require.NoError(t, l.Update(t.Context(), record("shard-0", 2)))

			lease := f.lease(second)
			require.Equal(t, watchedBy(lease) != "", len(tc.now) > 0)
		})
	}
}

// stopping reports whether the shard's Lease announces its stop.
func (f *fixture) stopping(s *Shard) bool {
	f.Helper()

	lease := f.lease(s)

	return lease.Spec.RenewTime != nil && contract.IsStopping(lease.Annotations, lease.Spec.RenewTime.Time)
}

func TestAShardThatStopsWorksUntilItsObjectsAreDrained(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	p, told := f.reports(s)
	a, b := f.configMap(s, "a"), f.configMap(s, "b")
	receive(f, told, "it works")
	receive(f, told, "it works")

	p.cancel()
	f.eventually("the Lease reports that it stops", func() bool { return f.stopping(s) })
	renewed := f.lease(s).Spec.RenewTime
	f.eventually("each renewal says it", func() bool {
		lease := f.lease(s)

		return lease.Spec.RenewTime.After(renewed.Time) && contract.IsStopping(lease.Annotations, lease.Spec.RenewTime.Time)
	})

	c := f.configMap(s, "c")
	require.Equal(t, "c", receive(f, told, "it still works"))

	f.label(a, s.drainKey, "shard-1")
	f.eventually("it hands objects over", func() bool {
		f.refresh(a)

		return a.Labels[s.shardKey] == "shard-1"
	})
	require.Equal(t, "shard-0", holder(f.lease(s)), "it has another object")
	f.label(b, s.drainKey, "shard-1")
	f.label(c, s.drainKey, "shard-1")
	p.wait()
	require.NoError(t, p.err)
	require.Empty(t, holder(f.lease(s)))
	require.False(t, f.stopping(s))
}

func TestAShardThatNobodyDrainsStops(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"because nobody drains it": 0,
		"because the time is over": time.Second, "at once": -1} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			s := f.shard("shard-0")

			if timeout != 0 {
				s.options.DrainTimeout = timeout
			}

			p, told := f.reports(s)
			f.configMap(s, "a")
			receive(f, told, "it works")
			require.NoError(t, p.stop())
			require.Empty(t, holder(f.lease(s)))
		})
	}
}

// A reconcile under a drain can take longer than a pause between drains.
func TestAShardThatStopsWaitsForItsWorkers(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	clk := &lateClock{}
	s.term.clock = clk
	entered, proceed, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	p := f.start(s, func(mgr ctrl.Manager) {
		f.controls(mgr, s, &corev1.ConfigMap{}, func(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
			close(entered)

			select {
			case <-ctx.Done():
				close(stopped)
			case <-proceed:
			}

			return ctrl.Result{}, nil
		})
	}, &corev1.ConfigMap{})
	cm := f.configMap(s, "a")
	receive(f, entered, "a worker is in a long reconcile")

	f.label(cm, s.drainKey, "shard-1")
	f.eventually("the drain was seen", s.guard.draining)
	p.cancel()
	f.eventually("the Lease reports that it stops", func() bool { return f.stopping(s) })
	clk.ahead.Store(int64(drainStalled + time.Second))

	for range 5 {
		before := f.lease(s).Spec.RenewTime
		f.eventually("it goes on", func() bool { return f.lease(s).Spec.RenewTime.After(before.Time) })
	}

	select {
	case <-stopped:
		require.Fail(t, "the worker was told to stop")
	default:
	}

	close(proceed)
	p.wait()
	require.NoError(t, p.err)
	f.refresh(cm)
	require.Equal(t, "shard-1", cm.Labels[s.shardKey])
}
