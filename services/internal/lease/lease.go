// Package lease decides, from a shard's Lease and the time since it changed, whether the shard is alive, what it may
// own, and what to do with the Lease.
//
// A shard holds the Lease of its own name and renews it as in leader election. D is the duration of the Lease, and age
// is the time that this process has measured since it last saw the Lease change:
//
//	state      holder         age            available  action
//	ready      the shard      below D        yes        none
//	expired    the shard      D to 2D        yes        none
//	uncertain  the shard      over 2D        yes        take the Lease, so that it is dead
//	dead       anybody else   below D + 1m   no         none
//	orphaned   anybody else   D + 1m or more no         delete the Lease
//
// A shard whose Lease reports that it stops gets no objects, and is otherwise judged like any other: see package
// membership.
//
// There are three exceptions. If the kubelet has reported that the process which last renewed the Lease cannot run any
// more, the shard is uncertain at any age, and its Lease is taken. If most shards of a ring fall silent at the same
// time, their Leases are taken after 3D. While objects of a dead shard still have to move, its Lease is kept from it: a
// Lease that was taken is renewed every D/2 until 20×D have passed, and a Lease that was released is taken.
//
// # Invariants
//
//  1. Whether a shard is available depends only on the holder, and on whether the Lease reports that the shard stops.
//     Everyone who reads the same Leases knows the same available shards, without a clock.
//
//  2. No clock of another machine matters. The times in a Lease are only compared with each other for changes, never
//     with a local time: a shard whose clock is years off stays alive while its Lease keeps changing.
//
//  3. A shard is declared dead only by taking its Lease. A shard that has lost its Lease cannot renew it. If the shard
//     renews first, it wins against the taker, because the API server accepts only one of two updates of the same
//     version.
//
//  4. Only time counts in which the observer could have seen a renewal, and in which shards could have written it.
//     After an outage of the API server or of its storage, or after the observer was frozen, every age restarts at
//     zero. See [Sight].
//
//  5. A Lease that is being deleted is judged like any other, except that its deletion is not repeated.
//
// The age is lost when the process restarts, and is zero when the process first sees a Lease. Therefore, a restart can
// make a shard look younger, and let a failed shard live up to 2D longer, but it never takes a Lease from a shard that
// renews it.
//
// The package receives Leases and returns decisions. It sends no requests and has no clock.
package lease

import (
	"cmp"
	"math"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

const (
	// DefaultDuration is the duration of a Lease that specifies none, or none above zero.
	DefaultDuration = 15 * time.Second

	// MaxDuration is the longest duration that counts; a longer one is treated as this one. A mistaken value then delays
	// the loss of a shard by two days, not by a lifetime. The limit is not lower, because the contract lets a shard live
	// for 2D for any D. Waiters for such a Lease limit their wait themselves.
	MaxDuration = 24 * time.Hour

	// OrphanedAfter is how long a Lease that its shard does not hold must have been expired before it is deleted.
	OrphanedAfter = time.Minute
)

// Record contains what a renewal of a Lease changes, and what decisions are based on. It does not contain labels and
// other metadata: a write that only labels a Lease is no sign of life. The zero value is the record of a Lease that
// nobody holds.
type Record struct {
	// Holder is the identity of the holder; empty if nobody holds the Lease.
	Holder string
	// Duration is the duration of the Lease, at most MaxDuration.
	Duration time.Duration
	// AcquireTime and RenewTime come from the holder's clock. They only serve to detect renewals.
	AcquireTime, RenewTime time.Time
	// Transitions counts the changes of holder.
	Transitions int32
}

// maxHolder is how many bytes of a holder's identity are used. The identity of a shard is its name, which is shorter.
const maxHolder = 256

// RecordOf returns the record of a Lease. Absent fields are zero, except the duration: it is between 1 s and
// MaxDuration, and DefaultDuration if it is absent or not positive. Of a holder, it contains at most 256 bytes.
func RecordOf(l *coordinationv1.Lease) Record {
	return Record{
		Holder:      holder(l.Spec.HolderIdentity),
		Duration:    duration(l.Spec.LeaseDurationSeconds),
		AcquireTime: timeOf(l.Spec.AcquireTime),
		RenewTime:   timeOf(l.Spec.RenewTime),
		Transitions: ptr.Deref(l.Spec.LeaseTransitions, 0),
	}
}

func holder(identity *string) string {
	name := ptr.Deref(identity, "")
	if len(name) <= maxHolder {
		return name
	}

	return strings.Clone(name[:maxHolder]) // the rest may be large
}

// Slim returns a copy of a Lease that contains only what the services use. Everyone who may write Leases could
// otherwise fill the memory of caches. The copy must not be written to the API server: this would remove the rest.
func Slim(l *coordinationv1.Lease) *coordinationv1.Lease {
	slim := &coordinationv1.Lease{
		TypeMeta: l.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Namespace: l.Namespace, Name: l.Name, UID: l.UID, ResourceVersion: l.ResourceVersion,
			CreationTimestamp: l.CreationTimestamp, DeletionTimestamp: l.DeletionTimestamp, Labels: map[string]string{},
		},
		Spec: coordinationv1.LeaseSpec{
			LeaseDurationSeconds: l.Spec.LeaseDurationSeconds, LeaseTransitions: l.Spec.LeaseTransitions,
			AcquireTime: l.Spec.AcquireTime, RenewTime: l.Spec.RenewTime,
		},
	}
	if l.Spec.HolderIdentity != nil {
		slim.Spec.HolderIdentity = new(holder(l.Spec.HolderIdentity))
	}

	for key, most := range longest {
		if value, has := l.Annotations[key]; has && len(value) <= most {
			metav1.SetMetaDataAnnotation(&slim.ObjectMeta, key, value)
		}
	}

	if label := ShardLabel(l); label != "" {
		metav1.SetMetaDataAnnotation(&slim.ObjectMeta, contract.AnnotationShardLabel, label)
	}

	for _, key := range []string{contract.LabelClusterRing, contract.LabelState} {
		if value, has := l.Labels[key]; has {
			slim.Labels[key] = value
		}
	}

	return slim
}

// longest are the annotations that are kept of a Lease, and how many bytes each may have. No value that counts is
// longer, except for slots: a standby that says more waits for any slot, as far as the services know.
var longest = map[string]int{
	contract.AnnotationPod:        validation.DNS1123SubdomainMaxLength,
	contract.AnnotationPodUID:     maxUID + maxTime,
	contract.AnnotationStopping:   maxTime,
	contract.AnnotationHoldOff:    64,
	contract.AnnotationSlots:      512,
	contract.AnnotationNamespaces: 4096 + maxTime,
}

const (
	// maxUID is how many bytes a uid may have, and maxTime is more than a slash and a time have.
	maxUID, maxTime = 64, 64
)

// Pod returns the name of the Pod that runs the shard, if the Lease reports that it differs from the name of the shard;
// otherwise "". A value that cannot be the name of a Pod counts as none.
func Pod(l *coordinationv1.Lease) string {
	pod := l.Annotations[contract.AnnotationPod]
	if pod == l.Name || len(validation.IsDNS1123Subdomain(pod)) > 0 {
		return ""
	}

	return pod
}

// maxShardLabel is the maximum length of the key of a label: a domain, a slash, and a name.
const maxShardLabel = validation.DNS1123SubdomainMaxLength + 1 + validation.LabelValueMaxLength

// ShardLabel returns the key of the label by which the shard selects its objects, as its Lease announces it; empty if
// it announces none. It is cut to the maximum length of a key.
func ShardLabel(l *coordinationv1.Lease) string {
	label := l.Annotations[contract.AnnotationShardLabel]

	return strings.Clone(label[:min(len(label), maxShardLabel)]) // the rest may be large
}

// Namespaces returns the namespaces in which the shard watches its objects, as its Lease announces them, separated by
// commas; empty for all. Names that were written with another renewTime are those of a predecessor, so they count as
// none.
func Namespaces(l *coordinationv1.Lease) string {
	return contract.Namespaces(l.Annotations, timeOf(l.Spec.RenewTime))
}

// Stopping reports whether the Lease reports that its shard was told to stop, and works until its objects are drained.
func Stopping(l *coordinationv1.Lease) bool {
	return contract.IsStopping(l.Annotations, timeOf(l.Spec.RenewTime))
}

// PodUID returns the uid of the Pod whose process has written the Lease's renewTime, if the Lease says it; otherwise
// "". A uid that was written with another renewTime is that of a predecessor, so it counts as none.
func PodUID(l *coordinationv1.Lease) types.UID {
	uid := contract.PodUID(l.Annotations, timeOf(l.Spec.RenewTime))
	if len(uid) > maxUID {
		return ""
	}

	return uid
}

func duration(seconds *int32) time.Duration {
	if ptr.Deref(seconds, 0) <= 0 {
		return DefaultDuration
	}

	return min(time.Duration(*seconds)*time.Second, MaxDuration)
}

func timeOf(t *metav1.MicroTime) time.Time {
	if t == nil {
		return time.Time{}
	}

	return t.Time
}

// Equal reports whether no renewal happened between the two records. Times are equal if they are the same instant, in
// any time zone.
func (r Record) Equal(other Record) bool {
	return r.Holder == other.Holder && r.Duration == other.Duration && r.Transitions == other.Transitions &&
		r.AcquireTime.Equal(other.AcquireTime) && r.RenewTime.Equal(other.RenewTime)
}

// HeldBy reports whether the shard with the given name holds the Lease. Its availability depends on nothing else. The
// identity that takes Leases belongs to no shard, even if a Lease has that name.
func (r Record) HeldBy(shard string) bool {
	return r.Holder != "" && r.Holder == shard && r.Holder != contract.LeaseControllerIdentity
}

// Acquired returns an update of the Lease that takes it from its shard: the lease controller holds it for twice the
// duration d, it is acquired and renewed now, and transitions grows by one. A number of transitions that cannot grow
// restarts, because the shard must see a change to know when it can come back. The argument is not changed. The result
// keeps its resourceVersion, so the update fails if the shard has renewed in the meantime. The time now is
// informational; no decision uses it.
func Acquired(l *coordinationv1.Lease, d time.Duration, now time.Time) *coordinationv1.Lease {
	taken := l.DeepCopy()
	at := metav1.NewMicroTime(now)

	transitions := RecordOf(l).Transitions
	if transitions == math.MaxInt32 {
		transitions = -1
	}

	taken.Spec.HolderIdentity = new(contract.LeaseControllerIdentity)
	taken.Spec.LeaseDurationSeconds = new(int32(2 * d / time.Second))
	taken.Spec.AcquireTime, taken.Spec.RenewTime = &at, at.DeepCopy()
	taken.Spec.LeaseTransitions = new(transitions + 1)

	return taken
}

// TakenFor returns the duration D to take a Lease with: its own duration if its shard holds it. A released Lease does
// not contain it (client-go writes 1 s). In this case, TakenFor returns the shard's own duration, as far as it is
// known, and at most DefaultDuration, because a shard that comes back waits for twice as long.
func TakenFor(s Snapshot, own time.Duration) time.Duration {
	if s.HeldBy(s.Shard) {
		return s.Duration
	}

	return min(cmp.Or(own, DefaultDuration), DefaultDuration)
}

// Renewed returns an update of a Lease that was taken from its shard, which keeps it from the shard for longer. The
// argument is not changed, and neither are fields other than renewTime.
func Renewed(l *coordinationv1.Lease, now time.Time) *coordinationv1.Lease {
	kept := l.DeepCopy()
	at := metav1.NewMicroTime(now)
	kept.Spec.RenewTime = &at

	return kept
}
