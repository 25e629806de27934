package shard

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// announcing is a client of Leases that writes the hold-off, the Pod if it has another name, the uid of the Pod, and the shard label to the shard's Lease, in the
// same write as everything else. It remembers what the lock must know about a Lease beyond the record of leader election.
type announcing struct {
	coordinationv1client.LeasesGetter
	lock *lock
}

// Leases implements coordinationv1client.LeasesGetter.
func (a announcing) Leases(namespace string) coordinationv1client.LeaseInterface {
	return announcingLeases{LeaseInterface: a.LeasesGetter.Leases(namespace), lock: a.lock}
}

type announcingLeases struct {
	coordinationv1client.LeaseInterface
	lock *lock
}

// Get implements coordinationv1client.LeaseInterface.
func (a announcingLeases) Get(ctx context.Context, name string, options metav1.GetOptions) (*coordinationv1.Lease, error) {
	lease, err := a.LeaseInterface.Get(ctx, name, options)
	if err == nil {
		a.lock.saw(lease)
	}

	return lease, err //nolint:wrapcheck // leader election looks for NotFound
}

// Create implements coordinationv1client.LeaseInterface.
func (a announcingLeases) Create(ctx context.Context, lease *coordinationv1.Lease, options metav1.CreateOptions) (*coordinationv1.Lease, error) {
	a.lock.announce(lease)

	written, err := a.LeaseInterface.Create(ctx, lease, options)
	if err == nil {
		a.lock.wrote(written)
	}

	return written, err //nolint:wrapcheck // leader election logs the Lease's name
}

// Update implements coordinationv1client.LeaseInterface.
func (a announcingLeases) Update(ctx context.Context, lease *coordinationv1.Lease, options metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	a.lock.announce(lease)

	written, err := a.LeaseInterface.Update(ctx, lease, options)
	if err == nil {
		a.lock.wrote(written)
	}

	return written, err //nolint:wrapcheck // leader election looks for Conflict
}

// saw records the state of the Lease. If the Lease has another uid than the one that was last written, somebody has recreated it.
func (l *lock) saw(lease *coordinationv1.Lease) {
	l.announced = announcement(lease)
	l.watched = watchedBy(lease)
	l.free = l.free || l.uid != "" && lease.UID != l.uid

	l.other = ""
	if by := (pod{l.pod, l.podUID}); l.slot && lease.Annotations[contract.AnnotationPod] != "" && !by.wrote(lease) {
		l.other = lease.Annotations[contract.AnnotationPod]
	}
}

func (l *lock) wrote(lease *coordinationv1.Lease) {
	l.uid = lease.UID
	l.announced = announcement(lease)
}

// announce sets the hold-off, the Pod, and the shard label on a Lease that is about to be written. It replaces a longer hold-off of a predecessor only when the
// shard works: by then, nobody has seen the Lease free for that long.
func (l *lock) announce(lease *coordinationv1.Lease) {
	holdOff := l.holdOff
	if longer := announcement(lease); longer > holdOff && l.term.held() != nil && !l.settled {
		klog.Background().V(1).Info("Waiting for the longer hold-off that a predecessor has announced", "holdOff", longer)
		holdOff = longer
	}

	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}

	lease.Annotations[contract.AnnotationHoldOff] = holdOff.String()

	if l.pod == "" {
		delete(lease.Annotations, contract.AnnotationPod) // of a predecessor
	} else {
		lease.Annotations[contract.AnnotationPod] = l.pod
	}

	if l.label == "" {
		delete(lease.Annotations, contract.AnnotationShardLabel)
	} else {
		lease.Annotations[contract.AnnotationShardLabel] = l.label
	}

	delete(lease.Annotations, contract.AnnotationNamespaces)

	if len(l.namespaces) > 0 && lease.Spec.RenewTime != nil {
		if value := contract.NamespacesValue(l.namespaces, lease.Spec.RenewTime.Time); value != "" {
			lease.Annotations[contract.AnnotationNamespaces] = value
		}
	}

	if l.offering {
		lease.Annotations[contract.AnnotationOffered] = contract.OfferValue(lease.Spec.RenewTime.Time)
	} else {
		delete(lease.Annotations, contract.AnnotationOffered)
	}

	if l.stopping.Load() && !l.offering && lease.Spec.RenewTime != nil && isHeld(lease) {
		lease.Annotations[contract.AnnotationStopping] = contract.OfferValue(lease.Spec.RenewTime.Time)
	} else {
		delete(lease.Annotations, contract.AnnotationStopping)
	}

	if l.podUID == "" || lease.Spec.RenewTime == nil {
		delete(lease.Annotations, contract.AnnotationPodUID)
	} else {
		lease.Annotations[contract.AnnotationPodUID] = contract.PodUIDValue(l.podUID, lease.Spec.RenewTime.Time)
	}
}

// announcement returns the hold-off that a Lease announces, or 0 if it announces none that can be relied on.
func announcement(lease *coordinationv1.Lease) time.Duration {
	holdOff, err := time.ParseDuration(lease.Annotations[contract.AnnotationHoldOff])
	if err != nil {
		return 0
	}

	return holdOff
}

var (
	_ coordinationv1client.LeasesGetter   = announcing{}
	_ coordinationv1client.LeaseInterface = announcingLeases{}
)
