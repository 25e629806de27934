// Package leasetest simulates shards in tests: it acquires, renews, and releases their Leases exactly as a shard that
// uses client-go's leader election with the label of its ring.
package leasetest

import (
	"context"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// What shards write is spelled out here, as a shard in another language would do it: a change of the contract fails the
// tests that use this package.
const (
	prefix    = "alpha.sharding.timebertt.dev/"
	ringLabel = prefix + "clusterring"
)

// renewal returns the renewTime that makes an annotation valid.
func renewal(renewed metav1.MicroTime) string { return renewed.UTC().Format(metav1.RFC3339Micro) }

// Shard is the Lease of a shard. Client, Ring, Namespace, and Name are required. Nothing happens automatically: a shard
// that is not renewed looks like a crashed shard. It is not safe for concurrent use.
type Shard struct {
	Client          client.Client
	Ring            string
	Namespace, Name string
	// Duration is the lease duration; zero means 15 s. It is written in whole seconds.
	Duration time.Duration
	// PodUID is announced as the uid of the shard's Pod; empty for none.
	PodUID types.UID
	// ShardLabel is announced as the label by which the shard selects its objects; empty for none.
	ShardLabel string
	// Namespaces are announced as those that the shard watches, with a hold-off of 2 s; none for all. They are sorted.
	Namespaces []string
	// Clock returns the times for timestamps; nil means the real clock.
	Clock clock.PassiveClock
}

// Acquire takes the Lease from any holder, and creates it if necessary. This is how a shard joins and comes back.
func (s *Shard) Acquire(ctx context.Context) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, s.Client, lease, func() error {
		s.hold(lease)
		metav1.SetMetaDataLabel(&lease.ObjectMeta, ringLabel, s.Ring)

		return nil
	})

	return s.wrap("acquire", err)
}

// Renew renews the Lease. It returns an error if the shard no longer holds the Lease.
func (s *Shard) Renew(ctx context.Context) error {
	lease, err := s.Lease(ctx)
	if err != nil {
		return err
	}

	if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); holder != s.Name {
		return s.wrap("renew", fmt.Errorf("%q holds it", holder))
	}
	s.hold(lease)

	return s.wrap("renew", s.Client.Update(ctx, lease))
}

// Stop says in the Lease that the shard was told to stop, until it is renewed.
func (s *Shard) Stop(ctx context.Context) error {
	lease, err := s.Lease(ctx)
	if err != nil {
		return err
	}

	s.hold(lease)
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, prefix+"stopping", renewal(*lease.Spec.RenewTime))

	return s.wrap("stop", s.Client.Update(ctx, lease))
}

// Release releases the Lease, as in a graceful stop.
func (s *Shard) Release(ctx context.Context) error {
	lease, err := s.Lease(ctx)
	if err != nil {
		return err
	}

	now := s.now()
	lease.Spec.HolderIdentity = new("")
	lease.Spec.LeaseDurationSeconds = ptr.To[int32](1)
	lease.Spec.AcquireTime, lease.Spec.RenewTime = &now, &now

	return s.wrap("release", s.Client.Update(ctx, lease))
}

// Delete deletes the Lease, as a user could.
func (s *Shard) Delete(ctx context.Context) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name}}
	return s.wrap("delete", s.Client.Delete(ctx, lease))
}

// Run renews the Lease three times per duration until ctx ends. Then it returns nil and leaves the Lease held, as a
// crash does. It returns an error if a renewal fails. It retries conflicts with writers of labels.
func (s *Shard) Run(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, s.duration()/3, true, func(ctx context.Context) (bool, error) {
		if err := s.Renew(ctx); err != nil && !apierrors.IsConflict(err) {
			return false, err
		}

		return false, nil
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the end of ctx caused the error
	}

	return err //nolint:wrapcheck // Renew has said what failed
}

// Lease reads the Lease from the API server.
func (s *Shard) Lease(ctx context.Context) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	if err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.Name}, lease); err != nil {
		return nil, s.wrap("get", err)
	}

	return lease, nil
}

// hold sets the fields of a holder.
func (s *Shard) hold(lease *coordinationv1.Lease) {
	now := s.now()
	held := resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)

	if held.HolderIdentity != s.Name {
		held.HolderIdentity, held.AcquireTime = s.Name, metav1.NewTime(now.Time)

		if lease.ResourceVersion != "" {
			held.LeaderTransitions++
		}
	}

	held.LeaseDurationSeconds, held.RenewTime = int(s.duration()/time.Second), metav1.NewTime(now.Time)
	lease.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(held)

	if s.PodUID != "" {
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, prefix+"pod-uid", string(s.PodUID)+"/"+renewal(now))
	}

	if s.ShardLabel != "" {
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, prefix+"shard-label", s.ShardLabel)
	}

	if len(s.Namespaces) > 0 {
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, prefix+"namespaces", strings.Join(s.Namespaces, ",")+"/"+renewal(now))
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, prefix+"hold-off", "2s")
	}
}

func (s *Shard) duration() time.Duration {
	if s.Duration <= 0 {
		return 15 * time.Second
	}

	return s.Duration
}

func (s *Shard) now() metav1.MicroTime {
	if s.Clock == nil {
		return metav1.NewMicroTime(clock.RealClock{}.Now())
	}

	return metav1.NewMicroTime(s.Clock.Now())
}

func (s *Shard) wrap(what string, err error) error {
	if err == nil {
		return nil
	}

	return fmt.Errorf("%s Lease %s/%s of ring %s: %w", what, s.Namespace, s.Name, s.Ring, err)
}
