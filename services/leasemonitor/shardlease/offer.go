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

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
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

	id, now, value := client.ObjectKeyFromObject(l), r.Clock.Now(), v1alpha1.OfferValue(l.Spec.RenewTime.Time)
	if v1alpha1.IsOffered(l.Annotations, l.Spec.RenewTime.Time) {
		return offerFor - now.Sub(r.offers.since(id, value, now)), nil
	}

	waits, err := r.somebodyWaits(ctx, judged, now)
	if err != nil || !waits {
		return 0, err
	}

	offered := l.DeepCopy()
	metav1.SetMetaDataAnnotation(&offered.ObjectMeta, v1alpha1.AnnotationOffered, value)

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

// somebodyWaits reports whether a Pod waits for a slot of the ring. It reads from the API server: this happens only when a Pod has ended.
func (r *Reconciler) somebodyWaits(ctx context.Context, judged *judgement, now time.Time) (bool, error) {
	standbys := &coordinationv1.LeaseList{}

	err := r.Live.List(ctx, standbys, client.InNamespace(judged.lease.Namespace), client.MatchingLabels{v1alpha1.LabelStandby: judged.ring()})
	if err != nil {
		return false, fmt.Errorf("look for Pods that wait for a slot of ring %s: %w", judged.ring(), err)
	}

	return slices.ContainsFunc(standbys.Items, func(l coordinationv1.Lease) bool { return v1alpha1.IsWaiting(l.Spec.RenewTime, now) }), nil
}
