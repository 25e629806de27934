// Package shardlease keeps the Lease of every shard in line with the state of the shard.
//
// It reads the Leases that carry a ring's label, measures how long each has not changed, and asks [lease.Next] for a
// decision. It writes the state label, takes over the Lease of a failed shard, and deletes a Lease that nobody holds
// any more. While the ring's status reports that objects of a dead shard still have to move, it keeps the Lease from
// the shard.
//
// # Invariants
//
//  1. A Lease is taken or deleted only if, at that moment and on the API server, it is the Lease that was judged: a
//     late cache delays, but never decides.
//  2. The age of a Lease is what this replica has measured itself. Every replica measures, even while it does not lead.
//     Therefore, after a change of leader, nothing is taken too early, and no wait starts again.
//     A shard whose Pod has ended, as the kubelet says, needs no age.
//  3. Only time counts in which this replica could see that Leases can be written; see [Heartbeat].
//  4. If most shards of a ring fall silent at the same time, a Lease is taken only after it has been read live twice, D
//     apart, and found silent both times.
//  5. A write that comes too late (conflict, not found) is not an error: somebody else was first, and the watch shows
//     the new state.
//  6. No shard waits for Leases of rings that do not exist; see [Strays].
package shardlease

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/leases"
)

// lookAgainAfter is when a Lease that was written to is looked at again, should the watch not have brought it by then.
const lookAgainAfter = time.Second

// Pods knows which Pods have ended.
type Pods interface {
	// Ended reports whether the kubelet has reported that no process of the Pod with this uid can run any more. It is
	// false for the empty uid.
	Ended(uid types.UID) bool
	// Leases returns a channel of Leases whose Pods have ended.
	Leases() <-chan event.TypedGenericEvent[*coordinationv1.Lease]
}

// Reconciler reads one Lease, decides about it, and acts. All exported fields but Pods are required. It may work on
// different Leases concurrently.
type Reconciler struct {
	// Client writes, and reads from a cache.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Clock measures ages, and provides the time that is written into a Lease that is taken over. The controller waits by
	// it.
	Clock clock.WithTicker
	// Ages records since when each Lease has not changed; see [Observe]. [Heartbeat] updates its Sight.
	Ages *lease.Observer
	// Events reports shards that are declared dead.
	Events events.EventRecorder
	// NotTaken records Leases that cannot be taken over.
	NotTaken *NotTaken
	// Pods knows which Pods have ended; nil if nobody watches Pods.
	Pods Pods
	// Sharder is whose rings' Leases are kept; see [Strays] for those of rings that do not exist. Two monitors may work on
	// one Lease, while a ring passes from one sharder to another: each takes only what it has itself seen silent for long
	// enough, and only the first one succeeds.
	Sharder clusterring.Identity

	doubts sync.Map // doubt, by the name of the Lease
	offers sync.Map // offered, by the name of the Lease
}

// Reconcile implements [reconcile.Reconciler]. It returns errors of the API server except NotFound and Conflict.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	judged, err := r.decide(ctx, req.NamespacedName)
	gone := apierrors.IsNotFound(err)

	if gone || err == nil && !judged.counts {
		r.doubts.Delete(req.NamespacedName)
		r.offers.Delete(req.NamespacedName)
		r.NotTaken.forget(req.NamespacedName)
	}

	switch {
	case gone:
		r.Ages.Forget(req.NamespacedName)
		return reconcile.Result{}, nil
	case judged == nil || !judged.counts:
		return reconcile.Result{}, err
	}

	var result reconcile.Result
	if err == nil {
		result, err = r.carryOut(ctx, judged)
	}

	r.note(judged, err)

	return result, err
}

// decide decides about a Lease, and looks at the shard's companions before it is given up. With an error it returns
// what the cache gave reason to do, nil if that is not known.
func (r *Reconciler) decide(ctx context.Context, id types.NamespacedName) (*judgement, error) {
	judged, err := r.judge(ctx, r.Client, id)
	if err != nil || judged.Action == lease.None {
		return judged, err
	}

	// The cache may be late, and what follows cannot be undone.
	live, err := r.judge(ctx, r.Live, id)
	if err != nil {
		return judged, err
	}

	if live.State == lease.Uncertain && !live.snapshot.Ended {
		if live.snapshot.Together, err = r.together(ctx, live); err != nil {
			return judged, err
		}

		live.Decision = lease.Next(live.snapshot, live.seen.Age)
	}

	return live, nil
}

// carryOut writes what was decided.
func (r *Reconciler) carryOut(ctx context.Context, judged *judgement) (reconcile.Result, error) {
	unchanged, err := r.label(ctx, judged)

	switch {
	case err != nil:
		return reconcile.Result{}, err
	case !unchanged:
		return reconcile.Result{RequeueAfter: lookAgainAfter}, nil
	}

	switch judged.Action {
	case lease.Acquire:
		wait, err := r.offer(ctx, judged)
		if err == nil && wait == 0 {
			wait, err = lookAgainAfter, r.acquire(ctx, judged)
		}

		return reconcile.Result{RequeueAfter: wait}, err
	case lease.Renew:
		return reconcile.Result{RequeueAfter: lookAgainAfter}, r.keep(ctx, judged)
	case lease.Delete:
		return reconcile.Result{RequeueAfter: lookAgainAfter}, r.collect(ctx, judged)
	case lease.None:
	}

	return reconcile.Result{RequeueAfter: judged.CheckAfter}, nil
}

// judgement is a Lease and what follows from it.
type judgement struct {
	lease.Decision

	// snapshot and seen are what the decision was made from.
	snapshot lease.Snapshot
	seen     lease.Seen
	// silent is since when the shard has not renewed the Lease.
	silent time.Time
	lease  *coordinationv1.Lease
	// counts is true if the Lease carries the label of a ring that exists and for which its namespace counts.
	counts bool
}

// judge reads a Lease and decides about it.
func (r *Reconciler) judge(ctx context.Context, reader client.Reader, id types.NamespacedName) (*judgement, error) {
	l := &coordinationv1.Lease{}
	if err := reader.Get(ctx, id, l); err != nil {
		return nil, fmt.Errorf("read Lease %s: %w", id, err)
	}

	now := r.Clock.Now()
	judged := &judgement{lease: l}
	judged.snapshot, judged.seen = look(r.Ages, l, now)
	judged.snapshot.Ended = r.Pods != nil && r.Pods.Ended(lease.PodUID(l))
	judged.silent = now.Add(-judged.seen.Age)

	if judged.ring() == "" {
		return judged, nil
	}

	ring, err := r.ringOf(ctx, judged.ring())
	if err != nil {
		return nil, err
	}

	if judged.counts = ring.Name != "" && ring.Spec.CountsShardsIn(l.Namespace) && r.Sharder.Wanted(ring); !judged.counts {
		return judged, nil
	}

	s := &judged.snapshot
	s.Moving = !s.HeldBy(s.Shard) && slices.Contains(lostShards(ring), s.Shard)
	judged.Decision = lease.Next(*s, judged.seen.Age)

	return judged, nil
}

// ringOf returns a ring from the cache, an empty one if it does not exist.
func (r *Reconciler) ringOf(ctx context.Context, name string) (*v1alpha1.ClusterRing, error) {
	ring := &v1alpha1.ClusterRing{}

	err := r.Client.Get(ctx, types.NamespacedName{Name: name}, ring, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read ring %s: %w", name, err)
	}

	return ring, nil
}

func (j *judgement) ring() string { return j.lease.Labels[contract.LabelClusterRing] }

func (j *judgement) id() types.NamespacedName { return client.ObjectKeyFromObject(j.lease) }

// lostShards are the shards from which objects are still to be taken without asking them.
func lostShards(ring *v1alpha1.ClusterRing) []string {
	if ring.Status.Assignment == nil {
		return nil
	}

	return ring.Status.Assignment.LostShards
}

// workers is the number of Leases that are worked on at once: one slow write must not keep other failed shards waiting.
const workers = 5

// SetupWithManager adds a controller to the manager that calls the reconciler for every Lease of a ring in the
// manager's cache, for those of shards that a ring's status begins to name as lost or whose Pods have ended, and for
// those of a ring that is created or deleted or whose shard namespaces change, while this replica leads.
func (r *Reconciler) SetupWithManager(mgr manager.Manager) error {
	b := builder.ControllerManagedBy(mgr)
	if r.Pods != nil {
		b.WatchesRawSource(source.TypedChannel(r.Pods.Leases(),
			&handler.TypedEnqueueRequestForObject[*coordinationv1.Lease]{}))
	}

	ofRings := predicate.NewPredicateFuncs(r.ringExists)
	ofRings.UpdateFunc = func(e event.UpdateEvent) bool { return r.ringExists(e.ObjectOld) || r.ringExists(e.ObjectNew) }

	err := b.Named("shardlease").
		For(&coordinationv1.Lease{}, builder.WithPredicates(ofRings)).
		Watches(&v1alpha1.ClusterRing{}, handler.EnqueueRequestsFromMapFunc(r.leasesOf), builder.WithPredicates(counting)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter:             kit.RateLimiter[reconcile.Request](),
			NewQueue: func(
				name string, limiter workqueue.TypedRateLimiter[reconcile.Request],
			) workqueue.TypedRateLimitingInterface[reconcile.Request] {
				return workqueue.NewTypedRateLimitingQueueWithConfig(limiter,
					workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name, Clock: r.Clock})
			},
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add the controller of Leases: %w", err)
	}

	return nil
}

// ringExists reports whether the ring of a Lease exists. If it does not, its Leases are queued when it is created.
func (r *Reconciler) ringExists(l client.Object) bool {
	ring, err := r.ringOf(context.Background(), l.GetLabels()[contract.LabelClusterRing])
	return err != nil || ring.Name != ""
}

// counting leaves out changes of rings that make no Lease due: of anything but the shards that are lost, the namespaces
// that count, and the sharder. What is known of the Leases of a ring that is gone is forgotten, and those of a new one
// may have no event any more, because they did not count before.
var counting = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*v1alpha1.ClusterRing)
	after, also := e.ObjectNew.(*v1alpha1.ClusterRing)

	return !ok || !also || before.Spec.Sharder != after.Spec.Sharder ||
		!slices.Equal(before.Spec.ShardNamespaces, after.Spec.ShardNamespaces) ||
		!slices.Equal(lostShards(before), lostShards(after))
}}

// leasesOf returns requests for all Leases of a ring.
func (r *Reconciler) leasesOf(ctx context.Context, ring client.Object) (requests []reconcile.Request) {
	all, err := leases.Cached(ctx, r.Client, ring.GetName())
	if err != nil {
		ctrllog.FromContext(ctx).Error(err, "Cannot list the Leases of a ring")
	}

	for _, l := range all {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(l)})
	}

	return requests
}
