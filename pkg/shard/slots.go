package shard

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// A slot is a shard's name that outlives Pods. Its Lease names the slot as the holder, and in an annotation the Pod
// that runs it. It passes from one Pod to the next in one write, on the condition that the Lease has not changed:
//
//	S1  The Pod that stops offers its slot after its last worker has ended. The Pod that takes it may work at once: the
//	    Lease was never free, so nobody has taken an object from the slot.
//	S2  A Lease that nobody has renewed for one and a half times its duration, as this process has measured, belongs to a
//	    process whose workers have ended: T3. The lease monitor takes it half a duration later.
//	S3  A process takes the slot that names its own Pod at once: its predecessor in the same Pod has ended.
//	S4  Any other slot must be free, and the one who takes it holds off, as for every other Lease.
//	S5  A Lease that does not exist may have been deleted while its holder works. The holder creates it again at its next
//	    renewal, so a process that sees none waits that long, and one that has seen it vanish waits as if it were silent.

// observed is a Lease, and the time at which this process first saw it as its holder wrote it last.
type observed struct {
	lease *coordinationv1.Lease // nil if it does not exist
	since time.Time
	// gone is the Lease as it was before it was deleted, if this process has seen it.
	gone *coordinationv1.Lease
}

// then returns what is observed when the Lease is seen at the given time. The holder cannot renew a Lease without a
// change of its spec. Others, such as the lease monitor, which labels it, write only metadata.
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

// wrote reports whether this Pod wrote the Lease, as far as the uids are known.
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

type choice struct {
	name string
	// lease is the Lease of the slot as it was observed; nil if it must be created.
	lease *coordinationv1.Lease
	why   preference
}

// silentAt returns when a Lease that was last written by its holder at the given time is silent.
func silentAt(lease *coordinationv1.Lease, since time.Time) time.Time {
	return since.Add(durationOf(lease) * 3 / 2) // one and a half times
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

// prefer returns what the slot is for the Pod, and when that is so: zero for at once. A slot that is not so yet is
// taken. If it is taken for good, unless its Lease changes, the result is taken, and zero.
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

// choose returns the best of the slots that the Pod may take, in the order of preference and then of their names: nil
// if there is none. Then the second result is when there will be one unless a Lease changes; zero for never.
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

// Slots say which names the shards of a ring take. [Scale], [Count], and [Named] return them. Zero stands for none.
type Slots struct {
	from  slotSource
	count int
	names []string
}

type slotSource int

const (
	noSlots slotSource = iota
	scaleSlots
	countSlots
	namedSlots
)

// Scale returns as many slots as the Deployment, or what else owns the Pod of this process, shall have replicas. A
// process that waits for a slot reads the scale every five seconds. The slots are called like those of [Count].
func Scale() Slots { return Slots{from: scaleSlots} }

// Count returns so many slots, from 1 to [contract.MaxSlots]. They are called contract.SlotName(ring, 0) and so on.
func Count(slots int) Slots { return Slots{from: countSlots, count: slots} }

// Named returns slots with the given names, of which a process takes the first that no other Pod holds. With one name,
// all Pods but one are standbys. The ring must list them in spec.shardNames, or a policy refuses their Leases.
func Named(names ...string) Slots { return Slots{from: namedSlots, names: slices.Clone(names)} }

func (s Slots) any() bool { return s.from != noSlots }

// of returns the names of all slots of the ring; none if their number follows a scale.
func (s Slots) of(ring string) []string {
	if s.from == namedSlots {
		return slices.Clone(s.names)
	}

	return slotsOf(ring, s.count)
}

func slotsOf(ring string, count int) []string {
	names := make([]string, count)
	for number := range names {
		names[number] = contract.SlotName(ring, number)
	}

	return names
}

const (
	// offerLimit is how long a process waits for another to take its slot. Meanwhile, nobody works on those of the slot.
	offerLimit = 5 * time.Second
	// offerPoll is how often it looks.
	offerPoll = 250 * time.Millisecond
)

// offer offers the slot to the processes that wait for one. It reports whether one of them has taken it. Otherwise, the
// Lease must be released. All workers have ended.
func (l *lock) offer(ctx context.Context, record resourcelock.LeaderElectionRecord) (taken bool) {
	log := klog.FromContext(ctx).WithName("slots").WithValues("slot", l.name, "pod", l.pod.name)
	if !l.awaited(ctx, log) {
		return false
	}

	record.HolderIdentity, record.AcquireTime = l.name, metav1.NewTime(l.lease.Spec.AcquireTime.Time)
	record.LeaseDurationSeconds = int(l.term.leaseDuration / time.Second)
	l.offering = true

	err := l.write(ctx, record)
	if l.offering = false; err != nil {
		log.Error(err, "Could not offer the slot; releasing it instead")
		return false
	}

	// Leader election ends the context after the renew deadline: the Lease must be released before that.
	limit := min(offerLimit, l.term.renewDeadline/2) // half

	_ = wait.PollUntilContextTimeout(ctx, offerPoll, limit, false, func(ctx context.Context) (bool, error) {
		waits := l.awaited(ctx, log) // a process leaves after it has taken the slot
		_, err := l.read(ctx)
		taken = apierrors.IsNotFound(err) || err == nil && (l.other() != "" || !isHeld(l.lease))

		return taken || !waits, nil
	})
	log.Info("Offered the slot", "taken", taken)

	return taken
}

func (l *lock) awaited(ctx context.Context, log klog.Logger) bool {
	list, err := l.leases.List(ctx, metav1.ListOptions{LabelSelector: contract.LabelStandby + "=" + l.options.Ring})
	if err != nil {
		log.Error(err, "Could not look for processes that wait for a slot; releasing it")
		return false
	}

	now := l.term.clock.Now()

	return slices.ContainsFunc(list.Items, func(s coordinationv1.Lease) bool {
		return contract.IsWaiting(s.Spec.RenewTime, now) && contract.WaitsFor(s.Annotations, l.options.Ring, l.name)
	})
}

const (
	// standbyPeriod is how often a standby renews its own Lease.
	standbyPeriod = 10 * time.Second
	// standbyPrefix begins the name of a standby's Lease; the names of its ring and its Pod follow.
	standbyPrefix = "standby-"
	// goodbye limits the deletion of a standby's Lease.
	goodbye = 2 * time.Second
)

// standby is the Lease of a process that waits for a slot. It is no shard's Lease: it lacks the ring's label.
type standby struct {
	options Options
	client  coordinationv1client.LeaseInterface
	clock   clock.PassiveClock
	log     klog.Logger

	renewed time.Time // zero: the Lease does not exist, for all this process knows
	slots   string    // what it says about the slots that the process would take
}

// renew creates the Lease, or renews it if that is due or the process would take other slots than before. It reports
// whether the Lease is there. Without it, a Pod that stops does not wait for this process to take its slot.
func (s *standby) renew(ctx context.Context, slots []string) bool {
	now, before := s.clock.Now(), s.slots

	s.slots = contract.SlotsValue(s.options.Ring, slots)
	if now.Sub(s.renewed) < standbyPeriod && s.slots == before {
		return true
	}

	lease := s.lease(now)
	found, err := s.client.Get(ctx, lease.Name, metav1.GetOptions{})

	switch {
	case apierrors.IsNotFound(err):
		_, err = s.client.Create(ctx, lease, metav1.CreateOptions{})
	case err == nil: // by this process, or left by a predecessor
		lease.ResourceVersion = found.ResourceVersion
		_, err = s.client.Update(ctx, lease, metav1.UpdateOptions{})
	}

	first := s.renewed.IsZero()
	if err != nil {
		s.renewed = time.Time{}
		s.log.Error(err, "Could not write the Lease of this standby; a shard with slots needs get, create, update, and "+
			"delete on leases in its namespace")

		return false
	}

	if s.renewed = now; first {
		s.log.Info("Waiting for a slot", "ring", s.options.Ring, "pod", s.options.Pod)
	}

	return true
}

func (s *standby) lease(now time.Time) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.options.Namespace, Name: standbyName(s.options.Ring, s.options.Pod),
			Labels:      map[string]string{contract.LabelStandby: s.options.Ring},
			Annotations: map[string]string{contract.AnnotationSlots: s.slots},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &s.options.Pod, LeaseDurationSeconds: new(int32(contract.StandbyDuration / time.Second)),
			RenewTime: new(metav1.NewMicroTime(now)),
		},
	}
	if s.options.PodUID != "" {
		// The garbage collector deletes what a standby that was killed has left.
		lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: s.options.Pod,
			UID: s.options.PodUID}}
	}

	return lease
}

func (s *standby) leave() {
	if s.renewed.IsZero() {
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()

	name := standbyName(s.options.Ring, s.options.Pod)
	if err := s.client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		s.log.Error(err, "Could not delete the Lease of this standby", "lease", name)
	}
}

// standbyName returns the name of a standby's Lease. A Pod may wait for slots of several rings.
func standbyName(ring, pod string) string {
	name := standbyPrefix + ring + "-" + pod
	if len(name) <= validation.DNS1123SubdomainMaxLength {
		return name
	}

	return fmt.Sprintf("%s%016x", standbyPrefix, xxhash.Sum64String(name))
}
