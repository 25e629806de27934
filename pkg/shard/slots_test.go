package shard

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// at is when the Leases of these tests were renewed, on another machine's clock.
var at = metav1.NewMicroTime(time.Unix(1_000_000, 123_456_000))

// slotLease returns the Lease of a slot with a duration of ten seconds.
func slotLease(name string, edit ...func(*coordinationv1.Lease)) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			contract.AnnotationPod: "other", contract.AnnotationPodUID: contract.PodUIDValue("uid-other", at.Time),
		}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: new(int32(10)), AcquireTime: &at,
			RenewTime: &at},
	}
	for _, e := range edit {
		e(lease)
	}

	return lease
}

func heldBy(holder string) func(*coordinationv1.Lease) {
	return func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = &holder }
}

func ofPod(name, uid string) func(*coordinationv1.Lease) {
	return func(lease *coordinationv1.Lease) {
		lease.Annotations = map[string]string{contract.AnnotationPod: name, contract.AnnotationPodUID: uid}
	}
}

func offeredAt(value string) func(*coordinationv1.Lease) {
	return func(lease *coordinationv1.Lease) { lease.Annotations[contract.AnnotationOffered] = value }
}

func TestWhatASlotIsForAPod(t *testing.T) {
	me := pod{"me", "uid-me"}
	seen := time.Unix(5_000_000, 0)
	after := seen.Add

	for name, tc := range map[string]struct {
		lease *coordinationv1.Lease
		now   time.Duration
		want  preference
		until time.Duration // zero: never
	}{
		"released":         {slotLease("s", heldBy("")), 0, free, 0},
		"no holder":        {slotLease("s", func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil }), 0, free, 0},
		"held":             {slotLease("s"), 15*time.Second - 1, taken, 15 * time.Second},
		"held, and silent": {slotLease("s"), 15 * time.Second, silent, 0},
		"taken by monitor": {slotLease("s", heldBy(contract.LeaseControllerIdentity)), 10*time.Second - 1, taken,
			10 * time.Second},
		"monitor is done": {slotLease("s", heldBy(contract.LeaseControllerIdentity)), 10 * time.Second, free, 0},
		"offered":         {slotLease("s", offeredAt(contract.OfferValue(at.Time))), 0, offered, 0},
		"offered, but taken": {slotLease("s", heldBy(contract.LeaseControllerIdentity),
			offeredAt(contract.OfferValue(at.Time))), 0, taken, 10 * time.Second},
		"offered, renewed": {slotLease("s", offeredAt(contract.OfferValue(at.Add(-time.Second)))), 0, taken,
			15 * time.Second},
		"ours":              {slotLease("s", ofPod("me", contract.PodUIDValue("uid-me", at.Time))), 0, ours, 0},
		"ours, uid unknown": {slotLease("s", ofPod("me", "")), 0, ours, 0},
		"ours, uid void": {slotLease("s", ofPod("me", contract.PodUIDValue("uid-other", at.Add(time.Second)))), 0,
			ours, 0},
		"of a Pod of my name": {slotLease("s", ofPod("me", contract.PodUIDValue("uid-other", at.Time))), 0, taken,
			15 * time.Second},
		"ours, but released": {slotLease("s", ofPod("me", ""), heldBy("")), 0, free, 0},
		"ours, but taken":    {slotLease("s", ofPod("me", ""), heldBy("else")), 0, taken, 10 * time.Second},
		"a shard, no slot":   {slotLease("s", ofPod("", "")), time.Hour, taken, 0},
		"a shard that ended": {slotLease("s", ofPod("", ""), heldBy("")), 0, free, 0},
		"without a duration": {slotLease("s", func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = nil }), 0, taken,
			1500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			c := chooser{me: me, without: func(string) bool { return false }, now: after(tc.now)}

			got, next := c.choose([]string{"s"}, map[string]observed{"s": {lease: tc.lease, since: seen}})
			if tc.want == taken {
				require.Nil(t, got)
			} else {
				require.Equal(t, tc.want, got.why, "%s", got.why)
			}

			if tc.until == 0 {
				require.Zero(t, next)
			} else {
				require.Equal(t, after(tc.until), next)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	now := time.Unix(5_000_000, 0)
	seen := func(ago time.Duration, leases ...*coordinationv1.Lease) map[string]observed {
		out := map[string]observed{}
		for _, l := range leases {
			out[l.Name] = observed{lease: l, since: now.Add(-ago)}
		}

		return out
	}
	offer := offeredAt(contract.OfferValue(at.Time))

	choose := func(count int, without string, leases map[string]observed) (*choice, time.Time) {
		c := chooser{me: pod{"me", ""}, without: func(slot string) bool { return slot == without }, now: now}

		return c.choose([]string{"s-0", "s-1", "s-2", "s-3"}[:count], leases)
	}

	best, _ := choose(4, "", nil)
	require.Equal(t, &choice{"s-0", nil, free}, best, "the first")

	leases := seen(time.Hour, slotLease("s-0"), slotLease("s-1", heldBy("")), slotLease("s-2", offer),
		slotLease("s-3", ofPod("me", "")))
	for count, want := range map[int]choice{4: {"s-3", nil, ours}, 3: {"s-2", nil, offered}, 2: {"s-1", nil, free},
		1: {"s-0", nil, silent}} {
		want.lease = leases[want.name].lease
		best, _ = choose(count, "", leases)
		require.Equal(t, &want, best)
	}

	best, _ = choose(2, "s-1", leases)
	require.Equal(t, "s-0", best.name)

	leases = seen(0, slotLease("s-0"), slotLease("s-1", heldBy(contract.LeaseControllerIdentity)))
	best, next := choose(2, "", leases)
	require.Nil(t, best)
	require.Equal(t, now.Add(10*time.Second), next, "the monitor's Lease ends first")
}

// TestOnlyItsHolderRenewsALease shows that a Lease is as old as what its holder wrote, whatever labels others write:
// the lease monitor labels a Lease that has expired.
func TestOnlyItsHolderRenewsALease(t *testing.T) {
	first, second, third := time.Unix(1, 0), time.Unix(2, 0), time.Unix(3, 0)
	lease := slotLease("s")
	o := observed{}.then(lease, first)
	require.Equal(t, observed{lease: lease, since: first}, o)

	labelled := slotLease("s", func(l *coordinationv1.Lease) {
		l.Labels, l.ResourceVersion = map[string]string{"state": "expired"}, "2"
	})
	o = o.then(labelled, second)
	require.Equal(t, observed{lease: labelled, since: first}, o)

	renewed := slotLease("s",
		func(l *coordinationv1.Lease) { l.Spec.RenewTime = new(metav1.NewMicroTime(at.Add(time.Second))) })
	require.Equal(t, observed{lease: renewed, since: third}, o.then(renewed, third))

	anew := slotLease("s", func(l *coordinationv1.Lease) { l.UID = "another" })
	require.Equal(t, observed{lease: anew, since: third}, o.then(anew, third))
}

// TestALeaseThatDoesNotExist shows how long a process waits for a holder that still works to create its Lease again.
func TestALeaseThatDoesNotExist(t *testing.T) {
	began := time.Unix(5_000_000, 0)
	c := chooser{without: func(string) bool { return false }, began: began, missing: 3 * time.Second}
	found := func(o map[string]observed, after time.Duration) (bool, time.Time) {
		c.now = began.Add(after)
		best, next := c.choose([]string{"s"}, o)

		return best != nil, next
	}

	never := map[string]observed{}
	may, next := found(never, 3*time.Second-1)
	require.False(t, may, "it may have been deleted just now")
	require.Equal(t, began.Add(3*time.Second), next)
	may, _ = found(never, 3*time.Second)
	require.True(t, may)

	held := map[string]observed{"s": observed{}.then(slotLease("s"), began).without(began.Add(time.Second))}
	may, next = found(held, 16*time.Second-1)
	require.False(t, may, "its holder may still work")
	require.Equal(t, began.Add(16*time.Second), next)
	may, _ = found(held, 16*time.Second)
	require.True(t, may)

	unheld := map[string]observed{"s": observed{}.then(slotLease("s", heldBy("")), began).without(began.Add(time.Second))}
	may, _ = found(unheld, time.Second)
	require.True(t, may)

	again := map[string]observed{"s": held["s"].then(slotLease("s"), began.Add(2*time.Second))}
	may, _ = found(again, 17*time.Second-1)
	require.False(t, may, "its holder has created it again")
}

const ownLabel = "cloudapi.team-orca.dev/shard"

// namedOptions are the options of a Pod in a ring with a label of its own that takes one of the names.
func (f *fixture) namedOptions(pod string, names ...string) Options {
	o := f.slotOptions(pod, 0)
	o.Slots, o.ShardLabel = Named(names...), ownLabel

	return o
}

// TestNamedShards: of two processes with one name, the second one waits until the first one stops, and works on the
// same objects.
func TestNamedShards(t *testing.T) {
	f := newFixture(t)

	first := f.claim(f.namedOptions("pod-a", "blue", "green")).got()
	require.Equal(t, "blue", first.Name())

	other := f.claim(f.namedOptions("pod-b", "blue", "green")).got()
	require.Equal(t, "green", other.Name())

	process, worked := f.reports(first)
	f.reports(other)

	cm := &corev1.ConfigMap{ObjectMeta: f.meta(nil, "object")}
	cm.Labels = map[string]string{ownLabel: "blue"}
	require.NoError(t, f.admin.Create(t.Context(), cm))
	receive(f, worked, "it works on its object")

	lease := f.lease(first)
	require.Equal(t, "pod-a", lease.Annotations[contract.AnnotationPod])
	require.Equal(t, ownLabel, lease.Annotations[contract.AnnotationShardLabel])

	// The same name once more: a slot of one.
	second := f.claim(f.namedOptions("pod-c", "blue"))
	second.waits("pod-c")
	require.NoError(t, process.stop())

	successor := second.got()
	require.Equal(t, "blue", successor.Name())
	require.Equal(t, lease.Spec.AcquireTime, f.lease(successor).Spec.AcquireTime, "it was offered, and never free")

	_, next := f.reports(successor)
	receive(f, next, "its successor works on it")
	f.refresh(cm)
	require.Equal(t, map[string]string{ownLabel: "blue"}, cm.Labels, "nothing has moved")
	require.Equal(t, "pod-c", f.lease(successor).Annotations[contract.AnnotationPod])

	// A drain is acknowledged by the keys of the ring.
	f.label(cm, ownLabel+"-drain", "green")
	f.eventually("the object is handed to the shard that the drain names", func() bool {
		f.refresh(cm)
		return cm.Labels[ownLabel] == "green" && len(cm.Labels) == 1
	})
}

// A rolling update would otherwise replace all Pods by some that cannot work, for example because of a wrong shard
// label or a missing permission.
func TestAPodThatMayNotTakeASlotIsNotReady(t *testing.T) {
	f := newFixture(t)
	held := f.claim(f.slotOptions("pod-a", 1)).got()
	f.overwrite(held, func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("") })

	allow := f.grant()
	allow("coordination.k8s.io", "leases", "get", "list", "watch", "create", "delete")

	f.config.Impersonate.UserName = f.namespace

	w := f.wire()
	c := f.claim(f.slotOptions("pod-b", 1))
	f.eventually("it has tried again", func() bool { return w.count("403 put object "+held.Name()) > 1 })
	require.False(t, c.standsBy())

	allow("coordination.k8s.io", "leases", "update")
	require.Equal(t, held.Name(), c.got().Name())
}

// TestAStandbyRenewsItsLease has a clock that is ahead.
func TestAStandbyRenewsItsLease(t *testing.T) {
	f := newFixture(t)
	options, err := f.slotOptions("pod-b", 1).complete(nil, "")
	require.NoError(t, err)
	client, err := options.leases(f.config, options.RenewDeadline)
	require.NoError(t, err)

	clk := clocktesting.NewFakeClock(time.Unix(1_000_000, 0))
	begin := func() *standby {
		return &standby{options: options, client: client, clock: clk, log: logr.Discard()}
	}
	awaited := func(slot int) bool {
		l := &lock{leases: client, options: options, name: contract.SlotName(f.ring, slot), term: &term{clock: clk}}

		return l.awaited(t.Context(), logr.Discard())
	}
	s := begin()
	require.False(t, awaited(0))
	s.renew(t.Context(), []string{contract.SlotName(f.ring, 0)})
	require.True(t, awaited(0))

	require.False(t, awaited(1), "it would not take that slot")

	first := f.standby("pod-b").ResourceVersion

	s.renew(t.Context(), []string{contract.SlotName(f.ring, 0)})
	require.Equal(t, first, f.standby("pod-b").ResourceVersion, "it is not due")
	s.renew(t.Context(), []string{contract.SlotName(f.ring, 0), contract.SlotName(f.ring, 1)})
	require.True(t, awaited(1), "it takes more slots now")
	clk.SetTime(clk.Now().Add(contract.StandbyDuration))
	require.False(t, awaited(0), "it may be gone")
	s.renew(t.Context(), []string{contract.SlotName(f.ring, 0)})
	require.True(t, awaited(0))

	// Somebody deletes it, and a predecessor in the same Pod has left one.
	for _, disturb := range []func(){
		func() { require.NoError(t, f.admin.Delete(t.Context(), f.standby("pod-b"))) },
		func() { s = begin() },
	} {
		disturb()
		clk.SetTime(clk.Now().Add(contract.StandbyDuration))
		s.renew(t.Context(), []string{contract.SlotName(f.ring, 0)})
		require.True(t, awaited(0))
	}

	s.leave()
	require.False(t, awaited(0))
}
