package rings

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/sharder"
	"github.com/clusterring/clusterring/services/internal/status"
)

// goneFor is how long there must have been no election Lease at all before the services take a ring from the embedded sharder that holds it: longer
// than such a sharder works without its Lease.
const goneFor = 2 * time.Minute

// hold brings this sharder and the ring together, or apart. It returns true if this sharder is the ring's holder, in this copy, and works on it.
// Otherwise, the ring is to be looked at again after the given time, or when it changes if that is zero.
func (r *Reconciler) hold(ctx context.Context, ring *v1alpha1.ClusterRing) (bool, time.Duration, error) {
	switch r.self.Next(ring) {
	case sharder.Work:
		return r.holdsLive(ctx, ring)
	case sharder.Claim:
		return r.claim(ctx, ring)
	case sharder.Release:
		return false, 0, r.release(ctx, ring)
	case sharder.Wait:
		wait, err := r.await(ctx, ring)

		return false, wait, err
	case sharder.Leave:
	}

	r.fleet.stop(ring.Name)
	r.others.forget(ring.Name)

	return false, 0, nil
}

// holdsLive reports whether the ring, as it is in the API server, is still this sharder's, before an engine starts: an old copy may say so
// although this sharder has given the ring up. While an engine runs, nobody else takes the ring.
func (r *Reconciler) holdsLive(ctx context.Context, ring *v1alpha1.ClusterRing) (bool, time.Duration, error) {
	r.others.forget(ring.Name)

	if r.fleet.runs(ring.Name, ring.LabelKeys()) {
		return true, 0, nil
	}

	latest := &v1alpha1.ClusterRing{}

	err := r.live.Get(ctx, client.ObjectKeyFromObject(ring), latest)
	if client.IgnoreNotFound(err) != nil {
		return false, 0, fmt.Errorf("find out whether ring %s is held: %w", ring.Name, err)
	}

	if latest.UID != ring.UID || r.self.Next(latest) != sharder.Work {
		return false, catchUp, nil // the cache will soon show it
	}

	return true, 0, nil
}

// claim makes this sharder the holder of the ring. That also ensures that the ring cannot disappear before its labels.
func (r *Reconciler) claim(ctx context.Context, ring *v1alpha1.ClusterRing) (bool, time.Duration, error) {
	base := ring.DeepCopy()
	_, released := base.Annotations[contract.AnnotationSharder]

	r.self.Take(ring)

	if err := r.patchHolder(ctx, ring, base); err != nil {
		return false, 0, err
	}

	r.others.forget(ring.Name)

	if released || r.self != sharder.Services {
		log.FromContext(ctx).Info("Took the ring", "ring", ring.Name, "sharder", r.self.String())
		r.recorder.Eventf(ring, nil, "Normal", "SharderTook", "Shard", "the ring is now sharded by %s", r.self)
	}

	return true, 0, nil
}

// release stops all work on the ring, and then gives it up. Until the next holder has looked at all objects, the status does not say that they
// are in their places, and the Leases of lost shards are kept from them.
func (r *Reconciler) release(ctx context.Context, ring *v1alpha1.ClusterRing) error {
	r.fleet.stop(ring.Name)

	next := sharder.WantedOf(ring)
	part := status.Part{Conditions: []metav1.Condition{{
		Type: v1alpha1.ConditionAssigned, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonHandedOver,
		Message: fmt.Sprintf("spec.sharder is %s: %s have stopped, and the ring waits for %s; objects keep the shard they have",
			ring.Spec.Sharder, r.self, next),
	}}}

	if a := ring.Status.Assignment; a != nil {
		part.Assignment = a.DeepCopy()
		part.Assignment.Fingerprint = ""

		for i := range part.Assignment.Resources {
			part.Assignment.Resources[i].Fingerprint = ""
		}
	}

	if err := client.IgnoreNotFound(r.status.Write(ctx, ring, part)); err != nil {
		return fmt.Errorf("report that the ring is given up: %w", err)
	}

	latest := &v1alpha1.ClusterRing{}

	err := r.live.Get(ctx, client.ObjectKeyFromObject(ring), latest)
	if apierrors.IsNotFound(err) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("read the latest copy of ring %s: %w", ring.Name, err)
	}

	if r.self.Next(latest) != sharder.Release {
		return nil // it has just changed, and is looked at again
	}

	base := latest.DeepCopy()
	sharder.GiveUp(latest)

	if err := r.patchHolder(ctx, latest, base); err != nil {
		return err
	}

	log.FromContext(ctx).Info("Gave the ring up", "ring", ring.Name, "next", next.String())
	r.recorder.Eventf(ring, nil, "Normal", v1alpha1.ReasonHandedOver, "Release", "%s have given the ring up for %s", r.self, next)

	return nil
}

// await waits for another holder to give the ring up. The services take the ring from an embedded sharder whose election Lease has run out: it has
// stopped to write by then. An embedded sharder cannot see the services' Lease; for it, only they or an administrator end the wait.
func (r *Reconciler) await(ctx context.Context, ring *v1alpha1.ClusterRing) (time.Duration, error) {
	r.fleet.stop(ring.Name)

	holder, _ := sharder.HolderOf(ring)
	now := r.status.Clock.Now()

	if r.others.meets(ring.Name, holder) {
		log.FromContext(ctx).Info("The ring waits for its present sharder to give it up", "ring", ring.Name, "sharder", holder.String())
		r.recorder.Eventf(ring, nil, "Normal", "SharderWaits", "Shard", "the ring waits for %s to give it up; %s", holder, r.advice(ring))
	}

	if r.self != sharder.Services {
		return 0, nil
	}

	elected := &coordinationv1.Lease{}

	err := r.live.Get(ctx, holder.Lease, elected)
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("read the election Lease %s of the sharder that holds ring %s: %w", holder.Lease, ring.Name, err)
	}

	wait := r.others.left(ring.Name, sighting(elected, apierrors.IsNotFound(err)), now)
	if wait > 0 {
		return wait, nil
	}

	log.FromContext(ctx).Info("The sharder of the ring is gone: taking the ring", "ring", ring.Name, "sharder", holder.String())

	_, wait, err = r.claim(ctx, ring)

	return wait, err
}

// advice says what to do if the present holder of a ring never gives it up.
func (r *Reconciler) advice(ring *v1alpha1.ClusterRing) string {
	if r.self == sharder.Services {
		return "if it no longer runs, this takes until its election Lease has run out"
	}

	return fmt.Sprintf("if the rebalancer no longer runs: kubectl annotate clusterring %s %s=%s", ring.Name, contract.AnnotationSharder, contract.SharderNobody)
}

// patchHolder writes who holds the ring, on the condition that it has not changed since base was read.
func (r *Reconciler) patchHolder(ctx context.Context, ring, base *v1alpha1.ClusterRing) error {
	err := r.client.Patch(ctx, ring, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write who shards ring %s: %w", ring.Name, err)
	}

	return nil
}

// others are the sharders that hold rings which this one waits for. The zero value has none.
type others struct {
	mu sync.Mutex
	of map[string]other
}

type other struct {
	holder sharder.Identity
	seen   seen
	since  time.Time
}

// seen is an election Lease as it was last read.
type seen struct {
	// version changes with every renewal; it is empty if there is no Lease.
	version string
	// free is true if nobody holds the Lease: the sharder has released it after its last write.
	free bool
	// lasts is how long the sharder may work after a renewal.
	lasts time.Duration
}

// sighting returns what to remember of an election Lease.
func sighting(l *coordinationv1.Lease, absent bool) seen {
	if absent {
		return seen{lasts: goneFor}
	}

	s := seen{version: string(l.UID) + "/" + l.ResourceVersion, lasts: goneFor}
	s.free = l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == ""

	if d := l.Spec.LeaseDurationSeconds; d != nil {
		s.lasts = time.Duration(*d) * time.Second
	}

	return s
}

// meets reports whether it is news that the ring is held by this holder.
func (o *others) meets(ring string, holder sharder.Identity) bool {
	o.mu.Lock()
	defer o.mu.Unlock()

	if known, ok := o.of[ring]; ok && known.holder == holder {
		return false
	}

	if o.of == nil {
		o.of = map[string]other{}
	}

	o.of[ring] = other{holder: holder}

	return true
}

// left returns how long the ring's holder may still work, according to its election Lease; at most zero if it does not.
func (o *others) left(ring string, s seen, now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()

	known := o.of[ring]
	if known.since.IsZero() || known.seen != s {
		known.seen, known.since = s, now
		o.of[ring] = known
	}

	if s.free {
		return 0
	}

	return known.since.Add(s.lasts).Sub(now)
}

func (o *others) forget(ring string) {
	o.mu.Lock()
	defer o.mu.Unlock()

	delete(o.of, ring)
}
