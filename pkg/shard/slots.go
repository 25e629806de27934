package shard

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
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
//	S5  A Lease that does not exist may have been deleted while its holder works. The holder creates it again at its next renewal, so a process that
//	    sees none waits that long, and one that has seen it vanish waits as if it were silent.

// observed is a Lease, and the time at which this process first saw it as its holder wrote it last.
type observed struct {
	lease *coordinationv1.Lease // nil if it does not exist
	since time.Time
	// gone is the Lease as it was before it was deleted, if this process has seen it.
	gone *coordinationv1.Lease
}

// then returns what is observed when the Lease is seen at the given time. The holder cannot renew a Lease without a change of its spec. Others, such
// as the lease monitor, which labels it, write only metadata.
func (o observed) then(lease *coordinationv1.Lease, at time.Time) observed {
	if o.lease != nil && o.lease.UID == lease.UID && equality.Semantic.DeepEqual(o.lease.Spec, lease.Spec) {
		at = o.since
	}

	return observed{lease: lease, since: at}
}

// without returns what is observed when the Lease is seen to be deleted.
func (o observed) without(at time.Time) observed { return observed{gone: o.lease, since: at} }

// pod identifies the Pod that a process runs in. The uid is empty if it is not known.
type pod struct {
	name string
	uid  types.UID
}

// wrote reports whether the Lease says that this Pod wrote it, as far as the uids are known.
func (p pod) wrote(lease *coordinationv1.Lease) bool {
	if lease.Annotations[contract.AnnotationPod] != p.name {
		return false
	}

	if p.uid == "" || lease.Spec.RenewTime == nil {
		return true
	}

	uid := contract.PodUID(lease.Annotations, lease.Spec.RenewTime.Time)

	return uid == "" || uid == p.uid
}

// isOffered reports whether the slot is held and offered, and nobody has renewed the Lease since.
func isOffered(lease *coordinationv1.Lease) bool {
	return isHeld(lease) && lease.Spec.RenewTime != nil && contract.IsOffered(lease.Annotations, lease.Spec.RenewTime.Time)
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

// silentAt returns when a Lease that was last written by its holder at the given time is silent.
func silentAt(lease *coordinationv1.Lease, since time.Time) time.Time {
	return since.Add(durationOf(lease) * 3 / 2) //nolint:mnd // one and a half times
}

func durationOf(lease *coordinationv1.Lease) time.Duration {
	return time.Duration(max(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0), 1)) * time.Second
}

// chooser is what a Pod decides by.
type chooser struct {
	me      pod
	without func(slot string) bool // slots that do not count for now
	now     time.Time
	// began is when the process had seen all Leases, and missing how long a Lease must not exist after that.
	began   time.Time
	missing time.Duration
}

// prefer returns what the slot is for the Pod, and when that is so: zero for at once. A slot that is not so yet is taken. If it is taken for good,
// unless its Lease changes, the result is taken, and zero.
func (c chooser) prefer(o observed) (preference, time.Time) {
	switch l := o.lease; {
	case l == nil && o.gone == nil:
		return free, o.since.Add(c.missing)
	case l == nil && isHeld(o.gone):
		return free, silentAt(o.gone, o.since)
	case l == nil, ptr.Deref(l.Spec.HolderIdentity, "") == "":
		return free, time.Time{}
	case isHeld(l) && c.me.wrote(l):
		return ours, time.Time{}
	case isOffered(l):
		return offered, time.Time{}
	case isHeld(l) && l.Annotations[contract.AnnotationPod] == "":
		return taken, time.Time{} // not a slot, but a shard that has this name for good
	case isHeld(l):
		return silent, silentAt(l, o.since)
	default:
		return free, o.since.Add(durationOf(l)) // as leader election does
	}
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

		o, seen := leases[name]
		if !seen {
			o.since = c.began
		}

		why, at := c.prefer(o)
		switch {
		case c.now.Before(at):
			if next.IsZero() || at.Before(next) {
				next = at
			}
		case why != taken && (best == nil || why < best.why):
			best = &choice{name: name, lease: o.lease, why: why}
		}
	}

	return best, next
}
