// Package shardlease keeps the Lease of every shard in the state that its shard is in.
//
// It reads Leases that carry a ring's label and measures how long each has not changed, asks [lease.Next] what follows, and
// writes: the state label; the Lease of a failed shard, which it takes over; and the deletion of one that nobody holds
// any more.
//
// # Invariants
//
//  1. Nothing is taken or deleted that is not, at that moment and on the API server, what was judged: a late cache delays, and
//     never decides.
//  2. The age of a Lease is what this replica has measured itself. Every replica measures, also while it does not lead, so
//     that after a change of leader nothing is taken too early, and nobody waits again.
//  3. A write that comes too late (conflict, not found) is no error: somebody else was first, and the watch says what is next.
package shardlease

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
)

// lookAgainAfter is when a Lease that was written to is looked at again, should the watch not have brought it by then.
const lookAgainAfter = time.Second

// Reconciler reads one Lease, decides about it and acts. All fields are required. It may work on different Leases at once.
type Reconciler struct {
	// Client reads from a cache and writes.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Clock measures ages, and gives the time that is written into a Lease that is taken over.
	Clock clock.PassiveClock
	// Ages remembers since when each Lease has not changed; see [Observe].
	Ages *lease.Observer
	// Events tells people about shards that are given up.
	Events events.EventRecorder
}

// Reconcile implements [reconcile.Reconciler]. It returns errors of the API server other than NotFound and Conflict.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	judged, err := r.judge(ctx, r.Client, req.NamespacedName)
	if err == nil && judged.Action != lease.None {
		// The cache may be late, and what follows cannot be undone.
		judged, err = r.judge(ctx, r.Live, req.NamespacedName)
	}

	if apierrors.IsNotFound(err) {
		r.Ages.Forget(req.NamespacedName)
		return reconcile.Result{}, nil
	}

	if err != nil || !judged.ours() {
		return reconcile.Result{}, err
	}

	unchanged, err := r.label(ctx, judged)
	if err != nil {
		return reconcile.Result{}, err
	}

	if !unchanged {
		return reconcile.Result{RequeueAfter: lookAgainAfter}, nil
	}

	switch judged.Action {
	case lease.Acquire:
		return reconcile.Result{RequeueAfter: lookAgainAfter}, r.acquire(ctx, judged)
	case lease.Delete:
		return reconcile.Result{RequeueAfter: lookAgainAfter}, r.collect(ctx, judged)
	case lease.None:
	}

	return reconcile.Result{RequeueAfter: judged.CheckAfter}, nil
}

// judgement is a Lease and what follows from it.
type judgement struct {
	lease.Decision

	// record is what the decision was made from.
	record lease.Record
	age    time.Duration
	lease  *coordinationv1.Lease
}

// judge reads a Lease and decides about it.
func (r *Reconciler) judge(ctx context.Context, reader client.Reader, id types.NamespacedName) (*judgement, error) {
	l := &coordinationv1.Lease{}
	if err := reader.Get(ctx, id, l); err != nil {
		return nil, fmt.Errorf("read Lease %s: %w", id, err)
	}

	record := lease.RecordOf(l)
	age := r.Ages.Observe(id, record, r.Clock.Now())

	return &judgement{
		Decision: lease.Next(lease.Snapshot{Shard: l.Name, Record: record}, age),
		record:   record,
		age:      age,
		lease:    l,
	}, nil
}

// ours says whether the Lease is that of a shard, and stays.
func (j *judgement) ours() bool {
	return j.lease.Labels[v1alpha1.LabelClusterRing] != "" && j.lease.DeletionTimestamp.IsZero()
}

func (j *judgement) ring() string { return j.lease.Labels[v1alpha1.LabelClusterRing] }

// tooLate says whether a write failed because the Lease is no longer what it was.
func tooLate(err error) bool { return apierrors.IsConflict(err) || apierrors.IsNotFound(err) }
