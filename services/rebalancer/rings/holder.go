package rings

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/sharder"
)

// hold brings this sharder and the ring together, or apart. It returns true if this sharder holds the ring and works
// on it. Otherwise, the ring is to be looked at again after the given time, or when it changes if that is zero.
func (r *Reconciler) hold(ctx context.Context, ring *v1alpha1.ClusterRing) (bool, time.Duration, error) {
	next := r.Sharder.Next(ring)
	if next != sharder.Work && next != sharder.Claim {
		r.fleet.stop(ring.Name)
	}

	if next != sharder.Wait {
		r.waiting.End(ring.Name)
	}

	switch next {
	case sharder.Work:
		return r.holdsLive(ctx, ring)
	case sharder.Claim:
		return true, 0, r.claim(ctx, ring)
	case sharder.Release:
		return false, 0, r.release(ctx, ring)
	case sharder.Wait:
		return r.await(ctx, ring)
	case sharder.Leave:
	}

	return false, 0, nil
}

// holdsLive reports whether the ring, as it is in the API server, is still this sharder's, before an engine starts: an
// old copy may say so although this sharder has given the ring up. While an engine runs, nobody else takes the ring.
func (r *Reconciler) holdsLive(ctx context.Context, ring *v1alpha1.ClusterRing) (bool, time.Duration, error) {
	if r.fleet.runs(ring.Name, ring.LabelKeys()) {
		return true, 0, nil
	}

	latest, err := r.latest(ctx, ring)
	if err != nil {
		return false, 0, err
	}

	if latest.UID != ring.UID || r.Sharder.Next(latest) != sharder.Work {
		return false, catchUp, nil // the cache will soon show it
	}

	return true, 0, nil
}

// claim makes this sharder the holder of the ring. That also ensures that the ring cannot disappear before its labels.
func (r *Reconciler) claim(ctx context.Context, ring *v1alpha1.ClusterRing) error {
	base := ring.DeepCopy()
	_, released := base.Annotations[contract.AnnotationSharder]

	r.Sharder.Take(ring)

	if err := r.patchHolder(ctx, ring, base); err != nil {
		return err
	}

	if released || r.Sharder != sharder.Services {
		log.FromContext(ctx).Info("Took the ring", "ring", ring.Name, "sharder", r.Sharder.String())
		r.Recorder.Eventf(ring, nil, "Normal", "SharderTook", "Shard", "the ring is now sharded by %s", r.Sharder)
	}

	return nil
}

// release gives the ring up, whose engine has stopped. Until the next holder has looked at all objects, the status
// does not say that they are in their places, and the Leases of lost shards are kept from them.
func (r *Reconciler) release(ctx context.Context, ring *v1alpha1.ClusterRing) error {
	next := sharder.WantedOf(ring)

	assignment := ring.Status.Assignment.DeepCopy()
	if assignment != nil {
		assignment.Fingerprint = ""

		for i := range assignment.Resources {
			assignment.Resources[i].Fingerprint = ""
		}
	}

	message := fmt.Sprintf("spec.sharder is %s: %s have stopped, and the ring waits for %s; "+
		"objects keep the shard they have", ring.Spec.Sharder, r.Sharder, next)
	if err := r.explain(ctx, ring, assignment, notAssigned(v1alpha1.ReasonHandedOver, message)); err != nil {
		return err
	}

	latest, err := r.latest(ctx, ring)
	if err != nil || r.Sharder.Next(latest) != sharder.Release {
		return err // a ring that has just changed is looked at again
	}

	base := latest.DeepCopy()
	sharder.GiveUp(latest)

	if err := r.patchHolder(ctx, latest, base); err != nil {
		return err
	}

	log.FromContext(ctx).Info("Gave the ring up", "ring", ring.Name, "next", next.String())
	r.Recorder.Eventf(ring, nil, "Normal", v1alpha1.ReasonHandedOver, "Release",
		"%s have given the ring up for %s", r.Sharder, next)

	return nil
}

// await waits for another holder to give the ring up. The services take the ring from an embedded sharder whose
// election Lease has run out: it has stopped to write by then. An embedded sharder cannot see the services' Lease; for
// it, only they or an administrator end the wait.
func (r *Reconciler) await(ctx context.Context, ring *v1alpha1.ClusterRing) (bool, time.Duration, error) {
	logger := log.FromContext(ctx)

	holder, news := r.waiting.Begin(ring)
	if news {
		logger.Info("The ring waits for its present sharder to give it up", "ring", ring.Name, "sharder", holder.String())
		r.Recorder.Eventf(ring, nil, "Normal", "SharderWaits", "Shard",
			"the ring waits for %s to give it up; %s", holder, r.advice(ring))
	}

	if r.Sharder != sharder.Services {
		return false, 0, nil
	}

	elected := &coordinationv1.Lease{}
	if err := r.Live.Get(ctx, holder.Lease, elected); apierrors.IsNotFound(err) {
		elected = nil
	} else if err != nil {
		return false, 0, fmt.Errorf("read the election Lease %s of the sharder that holds ring %s: %w",
			holder.Lease, ring.Name, err)
	}

	if left := r.waiting.Left(ring.Name, elected, r.status.Clock.Now()); left > 0 {
		return false, left, nil
	}

	logger.Info("The sharder of the ring is gone: taking the ring", "ring", ring.Name, "sharder", holder.String())

	return false, 0, r.claim(ctx, ring) // the ring changes by that
}

// advice says what to do if the present holder of a ring never gives it up.
func (r *Reconciler) advice(ring *v1alpha1.ClusterRing) string {
	if r.Sharder == sharder.Services {
		return "if it no longer runs, this takes until its election Lease has run out"
	}

	return fmt.Sprintf("if the rebalancer no longer runs: kubectl annotate clusterring %s %s=%s",
		ring.Name, contract.AnnotationSharder, contract.SharderNobody)
}

// latest returns the ring as it is in the API server. It is empty if there is none of this name.
func (r *Reconciler) latest(ctx context.Context, ring *v1alpha1.ClusterRing) (*v1alpha1.ClusterRing, error) {
	latest := &v1alpha1.ClusterRing{}

	err := r.Live.Get(ctx, client.ObjectKeyFromObject(ring), latest)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read the latest copy of ring %s: %w", ring.Name, err)
	}

	return latest, nil
}

// patchHolder writes who holds the ring, on the condition that it has not changed since base was read.
func (r *Reconciler) patchHolder(ctx context.Context, ring, base *v1alpha1.ClusterRing) error {
	err := r.Client.Patch(ctx, ring, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write who shards ring %s: %w", ring.Name, err)
	}

	return nil
}
