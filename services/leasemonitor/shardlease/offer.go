package shardlease

import (
	"context"
	"fmt"
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

const (
	// offerFor is how long a slot whose Pod has ended is offered to the Pods that wait for one, before its Lease is taken and its objects move.
	offerFor = 2 * time.Second
	// standbyDuration is how long a standby counts after its last renewal, by this machine's clock. All that depends on it is whether a slot is
	// offered.
	standbyDuration = time.Minute
)

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

	for i := range standbys.Items {
		if renewed := standbys.Items[i].Spec.RenewTime; renewed != nil && now.Sub(renewed.Time) < standbyDuration {
			return true, nil
		}
	}

	return false, nil
}
