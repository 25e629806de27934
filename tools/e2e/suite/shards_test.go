package suite_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/e2e/podlog"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// stirring is the time between two changes of Websites.
const stirring = 50 * time.Millisecond

func (s *suite) scaleShards(t *testing.T) {
	s.withShards(t, cluster.NewRing("e2e-scale"), func(ring cluster.Ring) []event {
		return []event{
			{"3 to 5 shards", func(ctx context.Context) error { return s.Scale(ctx, ring.Shards, 5) }, 5, false},
			{"5 to 2 shards", func(ctx context.Context) error { return s.Scale(ctx, ring.Shards, 2) }, 2, false},
		}
	})
}

func (s *suite) deletePod(t *testing.T) {
	s.withShards(t, cluster.NewRing("e2e-delete"), func(ring cluster.Ring) []event {
		return []event{
			{"a pod deleted", func(ctx context.Context) error { return s.removePod(ctx, ring) }, 3, false},
			{"every pod evicted, as by a node drain", func(ctx context.Context) error { return s.evict(ctx, ring) }, 3, false},
		}
	})
}

func (s *suite) killPod(t *testing.T) {
	s.withShards(t, cluster.NewRing("e2e-kill"), func(ring cluster.Ring) []event {
		killer := s.killer(t, "shard")

		return []event{
			{"a pod deleted without grace", func(ctx context.Context) error {
				return s.removePod(ctx, ring, client.GracePeriodSeconds(0))
			}, 3, false},
			{"a process killed from its node", func(ctx context.Context) error { return s.killShard(ctx, killer, ring) },
				3, false},
			{"a pod that is not restarted joins", func(ctx context.Context) error {
				_, err := s.AddPod(ctx, ring, "ends")

				return err
			}, 4, false},
			{"its process killed from its node", func(context.Context) error {
				return s.endShard(t, killer, client.ObjectKey{Namespace: ring.Namespace(), Name: "ends"})
			}, 3, false},
		}
	})
}

func (s *suite) restartShards(t *testing.T) {
	s.withShards(t, cluster.NewRing("e2e-restart"), func(ring cluster.Ring) []event {
		return []event{{"a rolling restart", func(ctx context.Context) error { return s.Restart(ctx, ring.Shards) },
			3, false}}
	})
}

// slots has the pods of a ring with slots come and go. Each takes over the slot of the one before it.
func (s *suite) slots(t *testing.T) {
	ring := cluster.NewRing("e2e-slots")
	ring.Slots = true
	s.withShards(t, ring, func(ring cluster.Ring) []event {
		killer := s.killer(t, "slots")

		var events []event
		for i := range s.size.updates {
			events = append(events, event{
				fmt.Sprintf("rolling restart %d", i+1), func(ctx context.Context) error {
					return s.Restart(ctx,
						ring.Shards)
				}, 3, true,
			})
		}

		return append(events,
			event{"a process killed from its node", func(ctx context.Context) error { return s.killOne(ctx, killer, ring) },
				3, true},
			event{"3 to 5 shards", func(ctx context.Context) error { return s.Scale(ctx, ring.Shards, 5) }, 5, false},
			event{"5 to 2 shards", func(ctx context.Context) error { return s.Scale(ctx, ring.Shards, 2) }, 2, false},
			event{"a rolling restart after that", func(ctx context.Context) error { return s.Restart(ctx, ring.Shards) },
				2, false},
		)
	})
}

// killOne ends the process of one of the ring's pods from its node.
func (s *suite) killOne(ctx context.Context, killer *cluster.Killer, ring cluster.Ring) error {
	pod, err := s.aPod(ctx, ring)
	if err != nil {
		return err
	}

	return killer.Kill(ctx, *pod, patience)
}

// aPod returns one of the ring's pods.
func (s *suite) aPod(ctx context.Context, ring cluster.Ring) (*corev1.Pod, error) {
	pods, err := s.Pods(ctx, ring.Shards)
	if err != nil {
		return nil, err
	}

	if len(pods) == 0 {
		return nil, fmt.Errorf("ring %s has no pods", ring.Name)
	}

	return &pods[0], nil
}

// removePod deletes one of the ring's pods.
func (s *suite) removePod(ctx context.Context, ring cluster.Ring, options ...client.DeleteOption) error {
	pod, err := s.aPod(ctx, ring)
	if err != nil {
		return err
	}

	return s.Client.Delete(ctx, pod, options...)
}

// evict evicts the ring's pods one after the other, as kubectl drain does: each as soon as the disruption budget
// allows.
func (s *suite) evict(ctx context.Context, ring cluster.Ring) error {
	pods, err := s.Pods(ctx, ring.Shards)
	if err != nil {
		return err
	}

	for i := range pods {
		if err := s.Until(ctx, patience, func(ctx context.Context) error {
			return client.IgnoreNotFound(s.Client.SubResource("eviction").Create(ctx, &pods[i], &policyv1.Eviction{}))
		}); err != nil {
			return fmt.Errorf("evict pod %s: %w", pods[i].Name, err)
		}
	}

	return nil
}

// withShards makes a ring with three shards, Websites that change all the time, and Fleets; has the events happen one
// after the other; and demands that the ownership is complete after each, that no two shards ever worked on one Website
// or its ConfigMap at once, and that no Ship was ever made twice.
func (s *suite) withShards(t *testing.T, ring cluster.Ring, events func(cluster.Ring) []event) {
	t.Helper()
	t.Parallel()
	oneAtATime := s.follow(t, ring)
	ctx, cancel := context.WithCancel(t.Context())
	watched, err := s.Watch(ctx, ring)
	require.NoError(t, err)
	t.Cleanup(func() { cancel(); watched.Wait() })
	s.add(t, ring, 3)
	require.NoError(t, s.AddWebsites(t.Context(), ring, s.size.websites))
	require.NoError(t, s.AddFleets(t.Context(), ring, s.size.fleets))
	s.complete(t, ring, 3)

	changes := s.stir(t, ring)

	for _, e := range events(ring) {
		began := record.Now()
		s.after(t, ring, e)

		versions, err := watched.Versions()
		require.NoError(t, err)

		cost := continuity.Of(versions, began, record.Now())
		t.Logf("%s: cost: %v", e.name, cost)
		assert.False(t, e.still && cost.Labels > 0, "%s: an object has moved", e.name)
	}
	t.Logf("%d changes meanwhile", changes())
	require.NoError(t, s.Until(t.Context(), patience, func(context.Context) error {
		versions, err := watched.Versions()
		if excess, missing := check.Excess(versions); err == nil && excess+missing > 0 {
			return fmt.Errorf("%d Ships were made twice, and %d are missing", excess, missing)
		}

		return err
	}))
	oneAtATime(t)
}

// follow begins to follow the logs of a ring that will be added. What it returns demands that no two shards have worked
// on one Website or its ConfigMap at once, and stops.
func (s *suite) follow(t *testing.T, ring cluster.Ring) (oneAtATime func(*testing.T)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	collector := podlog.Follow(ctx, s.Clients, ring.Namespace(), s.Clock)
	stop := func() { cancel(); collector.Wait() }
	t.Cleanup(stop)

	return func(t *testing.T) {
		t.Helper()

		spans, err := collector.Spans()
		require.NoError(t, err)
		stop()
		require.GreaterOrEqual(t, len(spans), 2*s.size.websites, "the history has what the shards have done")
		overlaps := history.Overlaps(spans, func(span history.Span) string { return span.Namespace + "/" + span.Name })
		assert.Empty(t, overlaps, "two shards at once, in %d reconciles", len(spans))
	}
}

// stir changes the ring's Websites, one after the other, so that there is work while they move. What it returns stops
// that, checks that no write failed, and says how many there were.
func (s *suite) stir(t *testing.T, ring cluster.Ring) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())

	var (
		group   sync.WaitGroup
		changes int
		failed  []string
	)
	group.Go(func() {
		wait.NonSlidingUntilWithContext(ctx, func(ctx context.Context) {
			site := &v1alpha1.Website{}
			site.Namespace, site.Name = ring.Namespace(), fmt.Sprintf("site-%d", changes%s.size.websites)

			patch := fmt.Appendf(nil, `{"spec":{"body":"%d"}}`, changes)
			if err := s.Client.Patch(ctx, site, client.RawPatch("application/merge-patch+json", patch)); err != nil &&
				ctx.Err() == nil {
				failed = append(failed, err.Error())
			}
			changes++
		}, stirring)
	})
	t.Cleanup(cancel)

	return func() int {
		cancel()
		group.Wait()
		assert.Empty(t, failed, "changes that failed")

		return changes
	}
}

// killer makes what ends processes from the side of their node, for this test.
func (s *suite) killer(t *testing.T, name string) *cluster.Killer {
	t.Helper()

	namespace := &corev1.Namespace{}
	namespace.Name = "e2e-nodekill-" + name
	t.Cleanup(func() {
		assert.NoError(t, client.IgnoreNotFound(s.Client.Delete(context.WithoutCancel(t.Context()), namespace)))
	})
	killer, err := s.AddKiller(t.Context(), namespace.Name, os.Getenv("E2E_NODEKILL_IMAGE"))
	require.NoError(t, err)

	return killer
}

// killShard ends the process of one of the ring's shards by SIGKILL, and waits until another one, in the same pod,
// renews the Lease of that name.
func (s *suite) killShard(ctx context.Context, killer *cluster.Killer, ring cluster.Ring) error {
	pod, err := s.aPod(ctx, ring)
	if err != nil {
		return err
	}

	shard := client.ObjectKeyFromObject(pod)
	if err := killer.Kill(ctx, *pod, patience); err != nil {
		return err
	}

	last, err := s.lastRenewal(ctx, shard)
	if err != nil {
		return err
	}

	return s.Until(ctx, patience, func(ctx context.Context) error {
		now, err := s.lastRenewal(ctx, shard)
		if err == nil && !now.After(last) {
			return fmt.Errorf("Lease %s was renewed last at %s, before the process was killed", shard, now)
		}

		return err
	})
}

// endShard ends the process of a shard whose pod is not restarted, and waits until its Lease was taken, because the
// kubelet has reported that.
func (s *suite) endShard(t *testing.T, killer *cluster.Killer, shard client.ObjectKey) error {
	t.Helper()

	ctx := t.Context()

	pod := &corev1.Pod{}
	if err := s.Client.Get(ctx, shard, pod); err != nil {
		return fmt.Errorf("read pod %s: %w", shard, err)
	}

	ended, err := killer.End(ctx, *pod, patience)
	if err != nil {
		return err
	}

	lease := &coordinationv1.Lease{}

	err = s.Until(ctx, patience, func(ctx context.Context) error {
		if err := s.Client.Get(ctx, shard, lease); err != nil {
			return fmt.Errorf("read Lease %s: %w", shard, err)
		}

		if holder := *lease.Spec.HolderIdentity; holder != contract.LeaseControllerIdentity {
			return fmt.Errorf("Lease %s is held by %s", shard, holder)
		}

		return nil
	})
	if err != nil {
		return err
	}

	// A Lease that was taken has twice its duration. It would have been taken that long after its last renewal.
	expires := time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
	took := lease.Spec.AcquireTime.Sub(ended)
	assert.Less(t, took, expires/2, "the Lease of a pod that has ended is taken")

	return nil
}

// lastRenewal returns when the Lease was last renewed by its holder, which must be the shard that it is called after.
func (s *suite) lastRenewal(ctx context.Context, shard client.ObjectKey) (time.Time, error) {
	lease := &coordinationv1.Lease{}
	if err := s.Client.Get(ctx, shard, lease); err != nil {
		return time.Time{}, fmt.Errorf("read Lease %s: %w", shard, err)
	}

	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != shard.Name || lease.Spec.RenewTime == nil {
		return time.Time{}, fmt.Errorf("Lease %s is not held by the shard of that name", shard)
	}

	return lease.Spec.RenewTime.Time, nil
}

// killReplica ends the process of one of the Deployment's pods by SIGKILL while the others go on.
func (s *suite) killReplica(t *testing.T, killer *cluster.Killer, d cluster.Deployment) {
	t.Helper()
	pods, err := s.Pods(t.Context(), d)
	require.NoError(t, err)
	require.Greater(t, len(pods), 1, "replicas of %s", d)

	require.NoError(t, killer.Kill(t.Context(), pods[0], patience))
	require.NoError(t, s.Rolled(t.Context(), d, patience))
}
