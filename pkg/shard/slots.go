package shard

import (
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// A slot is a shard's name that outlives Pods. Its Lease names the slot as the holder, and in an annotation the Pod that runs it. It passes from
// one Pod to the next in one write, on the condition that the Lease has not changed:
//
//	S1  The Pod that stops offers its slot after its last worker has ended. Whoever takes it may work at once: the Lease was never free, so
//	    nobody has taken an object from the slot.
//	S2  A Lease that nobody has renewed for one and a half times its duration, as this process has measured, belongs to a process whose workers
//	    have ended: T3. The lease monitor takes it half a duration later.
//	S3  A process takes the slot that names its own Pod at once: its predecessor in the same Pod has ended.
//	S4  Any other slot must be free, and the one who takes it holds off, as for every other Lease.

// silence is how many halves of a Lease's duration must pass without a renewal before another Pod takes its slot.
const silence = 3

// observed is a Lease, and the time at which this process first saw it as its holder wrote it last.
type observed struct {
	lease *coordinationv1.Lease
	since time.Time
}

// then returns what is observed when the Lease is seen at the given time. The holder cannot renew a Lease without a change of its spec. Others, such
// as the lease monitor, which labels it, write only metadata.
func (o observed) then(lease *coordinationv1.Lease, at time.Time) observed {
	if o.lease != nil && o.lease.UID == lease.UID && equality.Semantic.DeepEqual(o.lease.Spec, lease.Spec) {
		at = o.since
	}

	return observed{lease, at}
}

// pod identifies the Pod that a process runs in. The uid is empty if it is not known.
type pod struct {
	name string
	uid  types.UID
}

// wrote reports whether the Lease says that this Pod wrote it, as far as the uids are known.
func (p pod) wrote(lease *coordinationv1.Lease) bool {
	if lease.Annotations[v1alpha1.AnnotationPod] != p.name {
		return false
	}

	uid := writtenBy(lease)

	return uid == "" || p.uid == "" || uid == p.uid
}

// writtenBy returns the uid of the Pod that wrote the renewTime of the Lease, if the Lease says it.
func writtenBy(lease *coordinationv1.Lease) types.UID {
	value := lease.Annotations[v1alpha1.AnnotationPodUID]
	uid, _, _ := strings.Cut(value, "/")

	if lease.Spec.RenewTime == nil || value != v1alpha1.PodUIDValue(types.UID(uid), lease.Spec.RenewTime.Time) {
		return ""
	}

	return types.UID(uid)
}

// isOffered reports whether the slot is held and offered, and nobody has renewed the Lease since.
func isOffered(lease *coordinationv1.Lease) bool {
	return isHeld(lease) && lease.Spec.RenewTime != nil && v1alpha1.IsOffered(lease.Annotations, lease.Spec.RenewTime.Time)
}

// isHeld reports whether the Lease names its own shard as the holder.
func isHeld(lease *coordinationv1.Lease) bool {
	return ptr.Deref(lease.Spec.HolderIdentity, "") == lease.Name
}

// preference orders the slots that a process may take: the first is the best.
type preference int

const (
	ours preference = iota
	offered
	free
	silent
	taken // none that it may take
)

func (p preference) String() string {
	return [...]string{"held by this Pod", "offered", "free", "silent", "taken"}[p]
}

// choice is the slot that a process may take.
type choice struct {
	name string
	// lease is the Lease of the slot as it was observed; nil if it must be created.
	lease *coordinationv1.Lease
	why   preference
}

// prefer returns what the slot is for the Pod. If it is taken, the second result is when it will not be unless the Lease changes; zero
// for never.
func prefer(me pod, o observed, now time.Time) (preference, time.Time) {
	if o.lease == nil {
		return free, time.Time{}
	}

	duration := time.Duration(max(ptr.Deref(o.lease.Spec.LeaseDurationSeconds, 0), 1)) * time.Second
	until, then := o.since.Add(duration), free // as leader election does

	switch {
	case isHeld(o.lease) && me.wrote(o.lease):
		return ours, time.Time{}
	case isOffered(o.lease):
		return offered, time.Time{}
	case isHeld(o.lease) && o.lease.Annotations[v1alpha1.AnnotationPod] == "":
		return taken, time.Time{} // not a slot, but a shard that has this name for good
	case isHeld(o.lease):
		until, then = o.since.Add(duration*silence/2), silent //nolint:mnd // silence counts halves
	case ptr.Deref(o.lease.Spec.HolderIdentity, "") == "":
		return free, time.Time{}
	}

	if now.Before(until) {
		return taken, until
	}

	return then, time.Time{}
}

// chooser is what a Pod decides by.
type chooser struct {
	me      pod
	without func(slot string) bool // slots that do not count for now
	now     time.Time
}

// choose returns the best of the slots that the Pod may take, in the order of preference and then of their names: nil if there is none. Then
// the second result is when there will be one unless a Lease changes; zero for never.
func (c chooser) choose(slots []string, leases map[string]observed) (*choice, time.Time) {
	var (
		best *choice
		next time.Time
	)

	for _, name := range slots {
		if c.without(name) {
			continue
		}

		o := leases[name]

		why, until := prefer(c.me, o, c.now)
		if why == taken {
			next = earlier(next, until)
			continue
		}

		if best == nil || why < best.why {
			best = &choice{name: name, lease: o.lease, why: why}
		}
	}

	return best, next
}

// earlier returns the earlier of two times, of which zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}

	return a
}
