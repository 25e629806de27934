package shardlease

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/leases"
)

// offerFor is how long a slot whose Pod has ended is offered to the Pods that wait for one, before its Lease is taken and its objects move.
const offerFor = 2 * time.Second

// offers are the slots that are being offered, and since when. The zero value has none.
type offers struct {
	mu sync.Mutex
	of map[types.NamespacedName]offer
}

type offer struct {
	value string
	since time.Time
}

// since returns when the offer was first seen: now, if it is new.
func (o *offers) since(id types.NamespacedName, value string, now time.Time) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()

	if known, ok := o.of[id]; ok && known.value == value {
		return known.since
	}

	if o.of == nil {
		o.of = map[types.NamespacedName]offer{}
	}

	o.of[id] = offer{value, now}

	return now
}

func (o *offers) forget(id types.NamespacedName) {
	o.mu.Lock()
	defer o.mu.Unlock()

	delete(o.of, id)
}

// offer offers the slot of a Pod that has ended to the Pods that wait for one: whoever takes it continues, and no object moves. It returns how long
// to wait for that; zero if the Lease is to be taken.
func (r *Reconciler) offer(ctx context.Context, judged *judgement) (time.Duration, error) {
	l := judged.lease
	if !judged.snapshot.Ended || !judged.State.Available() || lease.Pod(l) == "" || l.Spec.RenewTime == nil {
		return 0, nil
	}

	id, now, value := client.ObjectKeyFromObject(l), r.Clock.Now(), contract.OfferValue(l.Spec.RenewTime.Time)
	if contract.IsOffered(l.Annotations, l.Spec.RenewTime.Time) {
		return offerFor - now.Sub(r.offers.since(id, value, now)), nil
	}

	if !r.somebodyWaits(ctx, judged, now) {
		return 0, nil
	}

	offered := l.DeepCopy()
	metav1.SetMetaDataAnnotation(&offered.ObjectMeta, contract.AnnotationOffered, value)

	if err := r.Client.Update(ctx, offered); err != nil {
		if tooLate(err) {
			return lookAgainAfter, nil
		}

		return 0, fmt.Errorf("offer Lease %s: %w", id, err)
	}

	ctrllog.FromContext(ctx).Info("Offered the slot of a Pod that has ended to the Pods that wait for one", "pod", lease.Pod(l))
	r.offers.since(id, value, now)

	return offerFor, nil
}

// somebodyWaits reports whether a Pod waits for this slot. It reads from the API server: this happens only when a Pod has ended. If that
// fails, nobody waits, because an offer only saves moves.
func (r *Reconciler) somebodyWaits(ctx context.Context, judged *judgement, now time.Time) bool {
	standbys, err := leases.Read(ctx, r.Live, client.InNamespace(judged.lease.Namespace), client.MatchingLabels{contract.LabelStandby: judged.ring()})
	if err != nil {
		ctrllog.FromContext(ctx).Error(err, "Cannot look for Pods that wait for a slot: the Lease is taken at once", "ring", judged.ring())
		return false
	}

	return slices.ContainsFunc(standbys, func(l coordinationv1.Lease) bool {
		return contract.IsWaiting(l.Spec.RenewTime, now) && contract.WaitsFor(l.Annotations, judged.ring(), judged.lease.Name)
	})
}
