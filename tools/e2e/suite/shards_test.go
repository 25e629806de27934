package suite_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/e2e/podlog"
	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/lab/must"
	lab "github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// stirring is the time between two changes of Websites.
const stirring = 50 * time.Millisecond

// event is something that happens to the shards of a ring.
type event struct {
	name string
	do   func(context.Context, cluster.Ring)
	// shards is how many there are afterwards.
	shards int
	// still demands that no object moves.
	still bool
}

// scaleTo is the event that the ring has another number of shards.
func (s *scene) scaleTo(name string, shards int) event {
	return event{name, func(ctx context.Context, ring cluster.Ring) { s.Scale(ctx, ring.Shards(), shards) }, shards, false}
}

// restart is the event that the shards are replaced one after the other.
func (s *scene) restart(name string, shards int, still bool) event {
	return event{name, func(ctx context.Context, ring cluster.Ring) { s.Restart(ctx, ring.Shards()) }, shards, still}
}

func (s *scene) scaleShards() {
	s.withShards(cluster.Ring{Name: "e2e-scale"}, s.scaleTo("3 to 5 shards", 5), s.scaleTo("5 to 2 shards", 2))
}

func (s *scene) deletePod() {
	s.withShards(cluster.Ring{Name: "e2e-delete"},
		event{"a pod deleted", func(ctx context.Context, ring cluster.Ring) { s.removePod(ctx, ring) }, 3, false},
		event{"every pod evicted, as by a node drain", s.evict, 3, false},
	)
}

func (s *scene) killPod() {
	s.withShards(cluster.Ring{Name: "e2e-kill"},
		event{"a pod deleted without grace", func(ctx context.Context, ring cluster.Ring) {
			s.removePod(ctx, ring, client.GracePeriodSeconds(0))
		}, 3, false},
		event{"a process killed from its node", s.killShard, 3, false},
		event{"a pod that is not restarted joins", func(ctx context.Context, ring cluster.Ring) {
			s.AddPod(ctx, ring, "ends")
		}, 4, false},
		event{"its process killed from its node", func(ctx context.Context, ring cluster.Ring) {
			s.endShard(ctx, client.ObjectKey{Namespace: ring.Namespace(), Name: "ends"})
		}, 3, false},
	)
}

func (s *scene) restartShards() {
	s.withShards(cluster.Ring{Name: "e2e-restart"}, s.restart("a rolling restart", 3, false))
}

// slots has the pods of a ring with slots come and go. Each takes over the slot of the one before it.
func (s *scene) slots() {
	var events []event
	for i := range s.size.updates {
		events = append(events, s.restart(fmt.Sprintf("rolling restart %d", i+1), 3, true))
	}

	s.withShards(cluster.Ring{Name: "e2e-slots", Slots: true}, append(events,
		event{"a process killed from its node", func(ctx context.Context, ring cluster.Ring) {
			s.killer("slots").Kill(ctx, s.aPod(ctx, ring))
		}, 3, true},
		s.scaleTo("3 to 5 shards", 5), s.scaleTo("5 to 2 shards", 2), s.restart("a rolling restart after that", 2, false),
	)...)
}

// aPod returns one of the ring's pods.
func (s *scene) aPod(ctx context.Context, ring cluster.Ring) corev1.Pod {
	pods := s.Pods(ctx, ring.Shards())
	must.Hold(len(pods) > 0, "ring %s has no pods", ring.Name)

	return pods[0]
}

// removePod deletes one of the ring's pods.
func (s *scene) removePod(ctx context.Context, ring cluster.Ring, options ...client.DeleteOption) {
	pod := s.aPod(ctx, ring)
	must.Do(s.Client.Delete(ctx, &pod, options...))
}

// evict evicts the ring's pods one after the other, as kubectl drain does: each as soon as the disruption budget
// allows.
func (s *scene) evict(ctx context.Context, ring cluster.Ring) {
	for _, pod := range s.Pods(ctx, ring.Shards()) {
		must.Until(ctx, patience, func(ctx context.Context) {
			err := s.Client.SubResource("eviction").Create(ctx, &pod, &policyv1.Eviction{})
			must.Do(client.IgnoreNotFound(err))
		})
	}
}

// withShards makes a ring with three shards, Websites that change all the time, and Fleets; has the events happen one
// after the other; and demands that the ownership is complete after each, that no two shards ever worked on one Website
// or its ConfigMap at once, and that no Ship was ever made twice.
func (s *scene) withShards(ring cluster.Ring, events ...event) {
	s.Parallel()

	ctx, n := s.Context(), 0
	oneAtATime, watched := s.follow(ring), s.Watch(ctx, ring)
	s.add(ring, 3)
	s.websites(ring, s.size.websites)
	must.AtOnce(ctx, s.size.fleets, func(ctx context.Context, i int) {
		lab.Asked(s.Client.Create(ctx, lab.Fleet(ring.Namespace(), i)))
	})
	s.complete(ring, 3)
	must.Meanwhile(ctx, stirring, func(ctx context.Context) {
		for _, e := range events {
			s.happens(ctx, e, watched, ring)
		}
	}, func(ctx context.Context) {
		lab.Edit(ctx, s.Client, ring.Namespace(), lab.Site(n%s.size.websites))
		n++
	})
	s.Logf("%d changes meanwhile", n)
	must.Until(ctx, patience, func(context.Context) {
		excess, missing := check.Excess(watched.All())
		must.Hold(excess+missing == 0, "%d Ships were made twice, and %d are missing", excess, missing)
	})
	oneAtATime(s)
}

// websites creates Websites of a ring.
func (s *scene) websites(ring cluster.Ring, count int) {
	must.AtOnce(s.Context(), count, func(ctx context.Context, i int) {
		lab.Asked(s.Client.Create(ctx, lab.Website(ring.Namespace(), lab.Site(i))))
	})
}

// happens has an event happen, waits until the ring is complete, and notes how long that took, and what it cost.
func (s *scene) happens(ctx context.Context, e event, watched *lab.Ring, ring cluster.Ring) {
	from := record.Now()

	e.do(ctx, ring)
	s.Rolled(ctx, ring.Shards())
	s.complete(ring, e.shards)

	until := record.Now()
	cost := continuity.Of(watched.All(), from, until)
	s.Logf("%s: complete after %s; cost: %v", e.name, (until - from).Round(100*time.Millisecond), cost)
	assert.False(s, e.still && cost.Labels > 0, "%s: an object has moved", e.name)
}

// follow begins to follow the logs of a ring that will be added. What it returns demands that no two shards have worked
// on one Website or its ConfigMap at once, and stops.
func (s *scene) follow(ring cluster.Ring) (oneAtATime func(*scene)) {
	ctx, cancel := context.WithCancel(s.Context())
	collector := podlog.Follow(ctx, s.Clients, ring.Namespace())
	stop := func() { cancel(); collector.Wait() }
	s.Cleanup(stop)

	return func(s *scene) {
		spans, err := collector.Spans()
		require.NoError(s, err)
		stop()
		require.GreaterOrEqual(s, len(spans), 2*s.size.websites, "the history has what the shards have done")
		overlaps := history.Overlaps(spans, func(span history.Span) string { return span.Namespace + "/" + span.Name })
		assert.Empty(s, overlaps, "two shards at once, in %d reconciles", len(spans))
	}
}

// killer makes what ends processes from the side of their node, for this test.
func (s *scene) killer(name string) *cluster.Killer {
	namespace := "e2e-nodekill-" + name
	s.finally(func(ctx context.Context) {
		s.Kubectl(ctx, "delete", "namespace", namespace, "--ignore-not-found", "--wait=false")
	})

	return s.AddKiller(s.Context(), namespace, os.Getenv("E2E_NODEKILL_IMAGE"))
}

// killShard ends the process of one of the ring's shards by SIGKILL, and waits until another one, in the same pod,
// renews the Lease of that name.
func (s *scene) killShard(ctx context.Context, ring cluster.Ring) {
	pod := s.aPod(ctx, ring)
	s.killer("shard").Kill(ctx, pod)

	last := s.lastRenewal(ctx, pod)
	must.Until(ctx, patience, func(ctx context.Context) {
		now := s.lastRenewal(ctx, pod)
		must.Hold(now.After(last), "Lease %s was renewed last at %s, before the process was killed", pod.Name, now)
	})
}

// endShard ends the process of a shard whose pod is not restarted, and waits until its Lease was taken, because the
// kubelet has reported that.
func (s *scene) endShard(ctx context.Context, shard client.ObjectKey) {
	pod, lease := &corev1.Pod{}, &coordinationv1.Lease{}
	must.Do(s.Client.Get(ctx, shard, pod))

	ended := s.killer("ended").End(ctx, *pod)
	must.Until(ctx, patience, func(ctx context.Context) {
		must.Do(s.Client.Get(ctx, shard, lease))
		must.Hold(*lease.Spec.HolderIdentity == contract.LeaseControllerIdentity, "Lease %s is held by %s", shard,
			*lease.Spec.HolderIdentity)
	})

	// A Lease that was taken has twice its duration. It would have been taken that long after its last renewal.
	expires := time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
	assert.Less(s, lease.Spec.AcquireTime.Sub(ended), expires/2, "the Lease of a pod that has ended is taken")
}

// lastRenewal returns when the Lease was last renewed by its holder, which must be the shard that it is called after.
func (s *scene) lastRenewal(ctx context.Context, pod corev1.Pod) time.Time {
	lease := &coordinationv1.Lease{}
	must.Do(s.Client.Get(ctx, client.ObjectKeyFromObject(&pod), lease))
	must.Hold(ptr.Deref(lease.Spec.HolderIdentity, "") == pod.Name && lease.Spec.RenewTime != nil,
		"Lease %s is not held by the shard of that name", pod.Name)

	return lease.Spec.RenewTime.Time
}
