package shard

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// announce sets the annotations of a Lease that is about to be written. It replaces a longer hold-off of a predecessor only when the
// shard works: by then, nobody has seen the Lease free for that long.
func (l *lock) announce(lease *coordinationv1.Lease) {
	holdOff := l.options.HoldOff
	if longer := announcement(lease); longer > holdOff && l.term.held() != nil && !l.settled {
		holdOff = longer
	}

	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}

	set := func(key, value string, is bool) {
		if lease.Annotations[key] = value; value == "" || !is {
			delete(lease.Annotations, key) // of a predecessor
		}
	}
	renewed := lease.Spec.RenewTime.Time

	set(contract.AnnotationHoldOff, holdOff.String(), true)
	set(contract.AnnotationPod, l.pod.name, true)
	set(contract.AnnotationShardLabel, l.options.ShardLabel, true)
	set(contract.AnnotationNamespaces, contract.NamespacesValue(l.namespaces, renewed), true)
	set(contract.AnnotationOffered, contract.OfferValue(renewed), l.offering)
	set(contract.AnnotationStopping, contract.OfferValue(renewed), l.stopping.Load() && !l.offering && isHeld(lease))
	set(contract.AnnotationPodUID, contract.PodUIDValue(l.pod.uid, renewed), l.pod.uid != "")
}

// announcement returns the hold-off that a Lease announces, or 0 if it announces none that can be relied on.
func announcement(lease *coordinationv1.Lease) time.Duration {
	if lease == nil {
		return 0
	}

	holdOff, _ := time.ParseDuration(lease.Annotations[contract.AnnotationHoldOff])

	return holdOff
}
