package shard

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// announce sets the annotations of a Lease that is about to be written. It replaces a longer hold-off of a predecessor only when the
// shard works: by then, nobody has seen the Lease free for that long.
func (l *lock) announce(lease *coordinationv1.Lease) {
	holdOff := l.holdOff
	if longer := announcement(lease); longer > holdOff && l.term.held() != nil && !l.settled {
		holdOff = longer
	}

	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}

	set := func(key, value string) {
		if lease.Annotations[key] = value; value == "" {
			delete(lease.Annotations, key) // of a predecessor
		}
	}
	renewed := lease.Spec.RenewTime.Time

	set(contract.AnnotationHoldOff, holdOff.String())
	set(contract.AnnotationPod, l.pod.name)
	set(contract.AnnotationShardLabel, l.label)
	set(contract.AnnotationNamespaces, contract.NamespacesValue(l.namespaces, renewed))
	set(contract.AnnotationOffered, valueIf(l.offering, contract.OfferValue(renewed)))
	set(contract.AnnotationStopping, valueIf(l.stopping.Load() && !l.offering && isHeld(lease), contract.OfferValue(renewed)))
	set(contract.AnnotationPodUID, valueIf(l.pod.uid != "", contract.PodUIDValue(l.pod.uid, renewed)))
}

// valueIf returns the value on the condition, and an empty one otherwise.
func valueIf(condition bool, value string) string {
	if condition {
		return value
	}

	return ""
}

// announcement returns the hold-off that a Lease announces, or 0 if it announces none that can be relied on.
func announcement(lease *coordinationv1.Lease) time.Duration {
	if lease == nil {
		return 0
	}

	holdOff, err := time.ParseDuration(lease.Annotations[contract.AnnotationHoldOff])
	if err != nil {
		return 0
	}

	return holdOff
}
