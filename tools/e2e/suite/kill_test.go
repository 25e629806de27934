package suite_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/e2e/report"
)

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

// killShard ends the process of one of the ring's shards by SIGKILL, and waits until another one, in the same pod, renews the Lease of
// that name.
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

// endShard ends the process of a shard whose pod is not restarted, and waits until its Lease was taken, because the kubelet has reported that.
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
	s.demand(t, report.Figure{
		Name: "Lease of a pod that has ended: taken after", Value: took.Round(100 * time.Millisecond),
		Limit: fmt.Sprintf("less than %s", expires/2), Kept: took < expires/2,
	})

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

	began := s.Clock.Now()
	require.NoError(t, killer.Kill(t.Context(), pods[0], patience))
	require.NoError(t, s.Rolled(t.Context(), d, patience))
	s.note(t, fmt.Sprintf("one of %d replicas killed from its node: ready again after", len(pods)), s.Clock.Since(began).Round(100*time.Millisecond))
}
