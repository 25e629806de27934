package shardlease

import (
	"context"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/leases"
)

// did reports whether a request was carried out. One that comes too late was not, which is no error: the Lease is no
// longer what it was, because somebody else was first, and the watch shows the new state.
func did(ctx context.Context, what string, id types.NamespacedName, err error) (bool, error) {
	switch {
	case err == nil:
		return true, nil
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		ctrllog.FromContext(ctx).V(1).Info("Lease has changed meanwhile", "request", what, "lease", id)
		return false, nil
	}

	return false, fmt.Errorf("%s Lease %s: %w", what, id, err)
}

// label writes the state on the Lease if it says something else. It returns false if the Lease is no longer what was
// judged; otherwise judged.lease is as the API server has it.
//
// The patch depends on no resourceVersion: a renewal in between is no reason to fail, and brings the next state along.
func (r *Reconciler) label(ctx context.Context, judged *judgement) (unchanged bool, err error) {
	before, uid := judged.lease.Labels[contract.LabelState], judged.lease.UID
	if before == string(judged.State) {
		return true, nil
	}

	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, contract.LabelState, judged.State)

	err = r.Client.Patch(ctx, judged.lease, client.RawPatch(types.MergePatchType, patch))
	if ok, err := did(ctx, "label", judged.id(), err); !ok {
		return false, err
	}

	ctrllog.FromContext(ctx).Info("Shard changed state",
		"ring", judged.ring(), "from", before, "to", judged.State, "unchangedFor", judged.seen.Age.String())

	return judged.lease.UID == uid && lease.RecordOf(judged.lease).Equal(judged.snapshot.Record), nil
}

// acquire takes the Lease from its shard, which is then dead to everybody, or keeps it from one that has released it.
// The update carries the resourceVersion of the Lease that was judged: a shard that renews first keeps it.
func (r *Reconciler) acquire(ctx context.Context, judged *judgement) error {
	d := lease.TakenFor(judged.snapshot, judged.seen.Own)

	err := r.Client.Update(ctx, lease.Acquired(judged.lease, d, r.Clock.Now()))
	if ok, err := did(ctx, "take over", judged.id(), err); !ok {
		return err
	}

	happened := failed

	switch {
	case !judged.State.Available():
		r.announce(ctx, judged, kept)
		return nil
	case judged.snapshot.Ended:
		happened = ended
	}

	takeovers.WithLabelValues(judged.ring()).Inc()
	r.announce(ctx, judged, happened)

	return nil
}

// keep renews a Lease that was taken, so that its shard stays without it while objects are moved, unless it has changed
// since it was judged.
func (r *Reconciler) keep(ctx context.Context, judged *judgement) error {
	_, err := did(ctx, "keep", judged.id(), r.Client.Update(ctx, lease.Renewed(judged.lease, r.Clock.Now())))

	return err
}

// collect deletes a Lease that nobody holds, unless it has changed since it was judged.
func (r *Reconciler) collect(ctx context.Context, judged *judgement) error {
	if ok, err := did(ctx, "delete", judged.id(), remove(ctx, r.Client, judged.lease)); !ok {
		return err
	}

	collections.WithLabelValues(judged.ring()).Inc()
	r.announce(ctx, judged, collected)

	return nil
}

// remove deletes the Lease unless it has changed.
func remove(ctx context.Context, writer client.Writer, l *coordinationv1.Lease) error {
	//nolint:wrapcheck // by did
	return writer.Delete(ctx, l, client.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion})
}

// offerFor is how long a slot whose Pod has ended is offered to the Pods that wait for one, before its Lease is taken
// and its objects move.
const offerFor = 2 * time.Second

// offered is what was offered, and since when.
type offered struct {
	value string
	since time.Time
}

// offer offers the slot of a Pod that has ended to the Pods that wait for one: the Pod that takes it continues, and no
// object moves. It returns how long to wait for that; zero if the Lease is to be taken.
func (r *Reconciler) offer(ctx context.Context, judged *judgement) (time.Duration, error) {
	l := judged.lease
	if !judged.snapshot.Ended || !judged.State.Available() || lease.Pod(l) == "" || l.Spec.RenewTime == nil {
		return 0, nil
	}

	id, now := judged.id(), r.Clock.Now()
	next := offered{contract.OfferValue(l.Spec.RenewTime.Time), now}

	if contract.IsOffered(l.Annotations, l.Spec.RenewTime.Time) {
		known, _ := r.offers.Load(id)
		if before, ok := known.(offered); ok && before.value == next.value {
			next = before
		}

		r.offers.Store(id, next)

		return offerFor - now.Sub(next.since), nil
	}

	if !r.somebodyWaits(ctx, judged, now) {
		return 0, nil
	}

	offer := l.DeepCopy()
	metav1.SetMetaDataAnnotation(&offer.ObjectMeta, contract.AnnotationOffered, next.value)

	if ok, err := did(ctx, "offer", id, r.Client.Update(ctx, offer)); !ok {
		return lookAgainAfter, err
	}

	ctrllog.FromContext(ctx).Info("Offered the slot of a Pod that has ended to the Pods that wait for one", "pod",
		lease.Pod(l))
	r.offers.Store(id, next)

	return offerFor, nil
}

// somebodyWaits reports whether a Pod waits for this slot. It reads from the API server: this happens only when a Pod
// has ended. If that fails, nobody waits, because an offer only saves moves.
func (r *Reconciler) somebodyWaits(ctx context.Context, judged *judgement, now time.Time) bool {
	standbys, err := leases.Read(ctx, r.Live,
		client.InNamespace(judged.lease.Namespace), client.MatchingLabels{contract.LabelStandby: judged.ring()})
	if err != nil {
		ctrllog.FromContext(ctx).Error(err, "Cannot look for Pods that wait for a slot: the Lease is taken at once",
			"ring", judged.ring())

		return false
	}

	return slices.ContainsFunc(standbys, func(l coordinationv1.Lease) bool {
		return contract.IsWaiting(l.Spec.RenewTime, now) &&
			contract.WaitsFor(l.Annotations, judged.ring(), judged.lease.Name)
	})
}

// news is something that happened to a shard and that a person should see.
type news struct{ kind, reason, action, log, note string }

// The news that there are. Notes take the shard and the age of its Lease, but for doubted, which takes two numbers.
var (
	failed = news{
		corev1.EventTypeWarning, "ShardFailed", "TakeOver", "Shard failed: took over its Lease",
		"Shard %s has not renewed its Lease for %s: took over the Lease, its objects go to other shards",
	}
	ended = news{
		corev1.EventTypeWarning, "ShardEnded", "TakeOver", "The Pod of a shard has ended: took over its Lease",
		"The kubelet has reported that the Pod of shard %s has ended, %s after its last renewal: " +
			"took over its Lease, its objects go to other shards",
	}
	kept = news{
		corev1.EventTypeNormal, "LeaseKept", "TakeOver", "Shard has not come back: took its Lease while its objects move",
		"Shard %s has released its Lease and not taken it back for %s: " +
			"took the Lease while its objects go to other shards",
	}
	doubted = news{
		corev1.EventTypeWarning, "ManyShardsSilent", "Wait",
		"Most shards of a ring fell silent at the same time: waiting before taking their Leases",
		"%d of %d shards have stopped renewing their Leases at the same time, which may have another cause: " +
			"taking the Leases of shards that stay silent for another lease duration",
	}
	collected = news{
		corev1.EventTypeNormal, "ShardCollected", "Delete", "Shard is gone: deleted its Lease",
		"Shard %s has not held its Lease for %s: deleted the Lease",
	}
)

// announce tells people, by the log and an event on the ring. The note gets the numbers, or else the shard and its age.
func (r *Reconciler) announce(ctx context.Context, judged *judgement, n news, numbers ...any) {
	ctrllog.FromContext(ctx).Info(n.log, "ring", judged.ring(), "unchangedFor", judged.seen.Age.String())

	if numbers == nil {
		numbers = []any{judged.id().String(), judged.seen.Age}
	}

	// A ring without a name has just been deleted.
	if ring, err := r.ringOf(ctx, judged.ring()); err == nil && ring.Name != "" {
		r.Events.Eventf(ring, judged.lease, n.kind, n.reason, n.action, n.note, numbers...)
	}
}
