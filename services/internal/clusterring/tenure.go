package clusterring

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
)

// CatchUp is how long a cache gets to receive concurrent writes.
const CatchUp = 50 * time.Millisecond

// absentFor is how long there must have been no election Lease at all before a ring is taken from the embedded sharder
// that holds it: longer than such a sharder works without its Lease.
const absentFor = 2 * time.Minute

// Tenure takes rings for one sharder, and gives them up, as [Identity.Next] decides. All fields but Sharder are
// required. It is safe for concurrent use with different rings.
type Tenure struct {
	// Sharder is who holds the rings. The zero value is the services.
	Sharder Identity
	// Client writes, and reads from a cache.
	Client client.Client
	// Live reads from the API server.
	Live     client.Reader
	Clock    clock.PassiveClock
	Recorder events.EventRecorder
	// Works reports whether this process works on the ring.
	Works func(ring *v1alpha1.ClusterRing) bool
	// Stop ends all work on the ring of this name, and returns when it has ended.
	Stop func(ring string)
	// Release changes the status of a ring for the next holder, before this one gives the ring up.
	Release func(ctx context.Context, ring *v1alpha1.ClusterRing, next Identity) error

	awaits sync.Map // Identity, of who holds a ring that it waits for, by the name of the ring
	// ages measures how long the election Leases of these holders have not been renewed.
	ages lease.Observer
}

// Hold brings the sharder and the ring together, or apart. holds is true if the sharder holds the ring and works on it;
// then the ring is the latest copy. Otherwise, the ring is to be looked at again after the given time, or when it
// changes if that is zero. It returns errors of the API server, a conflict if the ring has changed meanwhile.
func (t *Tenure) Hold(ctx context.Context, ring *v1alpha1.ClusterRing) (holds bool, again time.Duration, err error) {
	next := t.Sharder.Next(ring)
	if next != Work && next != Claim {
		t.Stop(ring.Name)
	}

	if next != Wait {
		t.unwait(ring.Name)
	}

	switch next {
	case Work:
		return t.holdsLive(ctx, ring)
	case Claim:
		return true, 0, t.claim(ctx, ring)
	case Release:
		return false, 0, t.release(ctx, ring)
	case Wait:
		again, err = t.await(ctx, ring)
	case Leave:
	}

	return false, again, err
}

// Gone ends all work on a ring that does not exist.
func (t *Tenure) Gone(ring string) {
	t.Stop(ring)
	t.unwait(ring)
}

// Finish ends all work on a ring that is being deleted and no longer needs its holder: it removes the finalizer.
func (t *Tenure) Finish(ctx context.Context, ring *v1alpha1.ClusterRing) error {
	if err := t.patch(ctx, ring, func(ring *v1alpha1.ClusterRing) {
		controllerutil.RemoveFinalizer(ring, contract.FinalizerRebalancer)
	}); err != nil {
		return err
	}

	t.Stop(ring.Name)
	log.FromContext(ctx).Info("Ring deleted: no label of its own is left", "ring", ring.Name)

	return nil
}

// holdsLive reports whether the ring, as it is in the API server, is still this sharder's, before it works on it: an
// old copy may say so although this sharder has given the ring up. While it works, nobody else takes the ring.
func (t *Tenure) holdsLive(ctx context.Context, ring *v1alpha1.ClusterRing) (bool, time.Duration, error) {
	if t.Works(ring) {
		return true, 0, nil
	}

	latest, err := Latest(ctx, t.Live, ring)
	if err != nil {
		return false, 0, err
	}

	if latest.UID != ring.UID || t.Sharder.Next(latest) != Work {
		return false, CatchUp, nil // the cache will soon show it
	}

	return true, 0, nil
}

// claim makes this sharder the holder of the ring. That also ensures that the ring cannot disappear before its labels.
func (t *Tenure) claim(ctx context.Context, ring *v1alpha1.ClusterRing) error {
	_, released := ring.Annotations[contract.AnnotationSharder]

	if err := t.patch(ctx, ring, t.Sharder.Take); err != nil {
		return err
	}

	if released || t.Sharder != Services {
		log.FromContext(ctx).Info("Took the ring", "ring", ring.Name, "sharder", t.Sharder.String())
		t.Recorder.Eventf(ring, nil, "Normal", "SharderTook", "Shard", "the ring is now sharded by %s", t.Sharder)
	}

	return nil
}

// release gives the ring up. The work on it has stopped.
func (t *Tenure) release(ctx context.Context, ring *v1alpha1.ClusterRing) error {
	next := WantedOf(ring)
	if err := t.Release(ctx, ring, next); err != nil {
		return err
	}

	latest, err := Latest(ctx, t.Live, ring)
	if err != nil || t.Sharder.Next(latest) != Release {
		return err // a ring that has just changed is looked at again
	}

	if err := t.patch(ctx, latest, GiveUp); err != nil {
		return err
	}

	log.FromContext(ctx).Info("Gave the ring up", "ring", ring.Name, "next", next.String())
	t.Recorder.Eventf(ring, nil, "Normal", v1alpha1.ReasonHandedOver, "Release",
		"%s have given the ring up for %s", t.Sharder, next)

	return nil
}

// await waits for another holder to give the ring up. The services take the ring from an embedded sharder whose
// election Lease has run out: it has stopped to write by then. An embedded sharder cannot see the services' Lease; for
// it, only they or an administrator end the wait.
func (t *Tenure) await(ctx context.Context, ring *v1alpha1.ClusterRing) (again time.Duration, err error) {
	logger := log.FromContext(ctx)

	holder, _ := HolderOf(ring)
	if before, waited := t.awaits.Swap(ring.Name, holder); !waited || before != holder {
		logger.Info("The ring waits for its present sharder to give it up", "ring", ring.Name, "sharder", holder.String())
		t.Recorder.Eventf(ring, nil, "Normal", "SharderWaits", "Shard",
			"the ring waits for %s to give it up; %s", holder, t.advice(ring))
	}

	if t.Sharder != Services {
		return 0, nil
	}

	elected, record := &coordinationv1.Lease{}, lease.Record{Duration: absentFor}

	switch err := t.Live.Get(ctx, holder.Lease, elected); {
	case client.IgnoreNotFound(err) != nil:
		return 0, fmt.Errorf("read the election Lease %s of the sharder that holds ring %s: %w", holder.Lease, ring.Name, err)
	case err == nil:
		record = lease.RecordOf(elected)

		if elected.Spec.LeaseDurationSeconds == nil {
			record.Duration = absentFor
		}
	}

	released := elected.Name != "" && record.Holder == "" // after the last write of the holder

	if left := record.Duration - t.ages.Observe(holder.Lease, record, t.Clock.Now()); left > 0 && !released {
		return left, nil
	}

	logger.Info("The sharder of the ring is gone: taking the ring", "ring", ring.Name, "sharder", holder.String())

	return 0, t.claim(ctx, ring) // the ring changes by that
}

// unwait ends the wait for the holder of a ring.
func (t *Tenure) unwait(ring string) {
	if holder, waited := t.awaits.LoadAndDelete(ring); waited {
		t.ages.Forget(holder.(Identity).Lease) //nolint:forcetypeassert // it contains nothing else
	}
}

// advice says what to do if the present holder of a ring never gives it up.
func (t *Tenure) advice(ring *v1alpha1.ClusterRing) string {
	if t.Sharder == Services {
		return "if it no longer runs, this takes until its election Lease has run out"
	}

	return fmt.Sprintf("if the rebalancer no longer runs: kubectl annotate clusterring %s %s=%s",
		ring.Name, contract.AnnotationSharder, contract.SharderNobody)
}

// Latest returns the ring as it is in the API server, which live reads. It is empty if there is none of this name.
func Latest(ctx context.Context, live client.Reader, ring *v1alpha1.ClusterRing) (*v1alpha1.ClusterRing, error) {
	latest := &v1alpha1.ClusterRing{}

	err := live.Get(ctx, client.ObjectKeyFromObject(ring), latest)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read the latest copy of ring %s: %w", ring.Name, err)
	}

	return latest, nil
}

// patch changes the ring, here and in the API server, on the condition that it has not changed since it was read.
func (t *Tenure) patch(ctx context.Context, ring *v1alpha1.ClusterRing, change func(*v1alpha1.ClusterRing)) error {
	base := ring.DeepCopy()
	change(ring)

	err := t.Client.Patch(ctx, ring, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write who shards ring %s: %w", ring.Name, err)
	}

	return nil
}
