package shard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/shard/internal/elect"
)

// lock is the shard's Lease as leader election sees it. Leader election does the timing. The lock adds what a shard needs in
// addition:
//
//	L1  Workers begin only while the Lease is held, and none begins after it was lost. Every success extends the term from
//	    when the request was sent, which is before anybody could see the renewal.
//	L2  Only the holder releases the Lease, and only if renewals worked to the end and every worker has stopped. Leader
//	    election alone would also release the Lease if it could not be renewed, while all workers still run.
//	L3  This process does not take back a Lease that it has lost: its objects may have moved, and its workers do not know.
//	L4  If two processes have the same name, the later one keeps the Lease. Leader election alone takes them for one process,
//	    because the contract requires the shard's name as the holder.
//	L5  A Lease that this shard did not hold continuously is used only after the hold-off, even if it was deleted and recreated.
//	L6  The Lease announces the hold-off from the write that takes it. A longer hold-off that a predecessor has announced is
//	    kept, and announced, until it has passed once: whoever has read it may rely on it.
//	L7  The Lease of a slot is lost when it names another Pod, even if its holder, the slot, is the same.
//	L8  A process waits for the hold-off if its predecessor has announced other namespaces than it does, even if the Lease was held all the time: whoever
//	    has read there that the shard does not watch a namespace may rely on it for that long.
//
// Leader election calls the methods that read and write from one goroutine.
type lock struct {
	term    *term
	options Options
	name    string // of the shard, and of its Lease
	pod     pod    // what the Lease announces: no name if that is the shard's
	// namespaces are those in which the shard watches its kinds; empty for all.
	namespaces []string

	slot   bool // the name of the shard is that of a slot, which may pass to another Pod
	leases coordinationv1client.LeaseInterface
	events resourcelock.EventRecorder // nil: events are not recorded

	// lease is the Lease as it was last read or written; nil if there was none.
	lease *coordinationv1.Lease
	// free is true if the Lease may have been free since this process last wrote it.
	free bool
	// settled is true if the Lease, as it was last read, names this shard and has done so for longer than the hold-off.
	settled bool
	// leave ends the worker that the program itself is, before the Lease is released; nil if the program is none.
	leave func()
	// offering is true while the slot is being offered to another Pod.
	offering bool
	// stopping is true when the shard was told to stop.
	stopping atomic.Bool
	// renewed is the last renewTime that this process is known to have written; zero before it held the Lease.
	renewed metav1.MicroTime
	// failure is the result of the last write.
	failure error
	lost    error
}

var _ resourcelock.Interface = (*lock)(nil)

// leases returns a client for the Leases in the shard's namespace; see [elect.Client].
func (o Options) leases(config *rest.Config, deadline time.Duration) (coordinationv1client.LeaseInterface, error) {
	client, err := elect.Client(config, "shard-lease", deadline)
	if err != nil {
		return nil, err
	}

	return client.Leases(o.Namespace), nil
}

// lockFor returns the lock of the Lease with the name of this shard, or of a slot that it is about to take.
func (s *Shard) lockFor(leases coordinationv1client.LeaseInterface, name string) *lock {
	o := s.options

	l := &lock{term: s.term, options: o, name: name, pod: pod{o.Pod, o.PodUID}, namespaces: s.namespaces, slot: o.Slots.any(), leases: leases}
	if !l.slot && o.Pod == name {
		l.pod.name = ""
	}

	return l
}

// Identity implements [resourcelock.Interface].
func (l *lock) Identity() string { return l.name }

// Describe implements [resourcelock.Interface].
func (l *lock) Describe() string { return l.options.Namespace + "/" + l.name }

// RecordEvent implements [resourcelock.Interface].
func (l *lock) RecordEvent(event string) {
	if l.events != nil && l.lease != nil {
		subject := &coordinationv1.Lease{
			TypeMeta: metav1.TypeMeta{Kind: "Lease", APIVersion: coordinationv1.SchemeGroupVersion.String()}, ObjectMeta: l.lease.ObjectMeta,
		}
		l.events.Eventf(subject, corev1.EventTypeNormal, "LeaderElection", "%s %s", l.name, event)
	}
}

// Get reads the Lease, and detects whether it was lost.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if l.lost != nil {
		return nil, nil, l.lost
	}

	l.settled = false

	record, err := l.read(ctx)
	if err != nil {
		return nil, nil, err
	}

	l.settled = l.isSettled(record)

	if err := l.theft(record); err != nil {
		return nil, nil, l.lose(err)
	}

	raw, err := json.Marshal(record)

	return record, raw, err //nolint:wrapcheck // a record can be encoded
}

// read reads the Lease. If it has another uid than before, somebody has recreated it.
func (l *lock) read(ctx context.Context) (*resourcelock.LeaderElectionRecord, error) {
	lease, err := l.leases.Get(ctx, l.name, metav1.GetOptions{})
	if err != nil {
		if apierrors.IsNotFound(err) {
			l.free, l.lease = true, nil
		}

		return nil, err //nolint:wrapcheck // leader election looks for NotFound and logs the Lease's name
	}

	l.free = l.free || l.lease != nil && lease.UID != l.lease.UID
	l.lease = lease

	return resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec), nil
}

// write writes the record to the Lease, or creates it if there was none. It fails if the Lease has changed since it was last read or written.
func (l *lock) write(ctx context.Context, record resourcelock.LeaderElectionRecord) (err error) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: l.name}}
	if l.lease != nil {
		lease = l.lease.DeepCopy()
	}

	lease.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
	metav1.SetMetaDataLabel(&lease.ObjectMeta, contract.LabelClusterRing, l.options.Ring)
	l.announce(lease)

	if l.lease == nil {
		lease, err = l.leases.Create(ctx, lease, metav1.CreateOptions{})
	} else {
		lease, err = l.leases.Update(ctx, lease, metav1.UpdateOptions{})
	}

	if err == nil {
		l.lease = lease
	}

	return err //nolint:wrapcheck // leader election looks for Conflict and logs the Lease's name
}

// isSettled reports whether the shard can use a Lease that it takes over from this record without a hold-off. This is the case if
// this shard's name has held the Lease for longer than a hold-off. It still does when the Lease is written, because the write
// fails if the Lease has changed. Nobody has then seen it free lately. This happens when the process was restarted before its
// Lease was taken. Both times come from the clock of the previous process. In all other cases, moves may be in progress: a Lease
// that was taken or released is free; a Lease that does not exist may have been deleted long ago; a Lease that was acquired only
// recently may have been free before; and L8 holds. A new shard, which has no objects, also waits for the hold-off: it looks the same.
func (l *lock) isSettled(record *resourcelock.LeaderElectionRecord) bool {
	watched := watchedBy(l.lease)

	return record.HolderIdentity == l.name && !record.AcquireTime.IsZero() &&
		record.RenewTime.Sub(record.AcquireTime.Time) >= l.holds() && (watched == "" || watched == strings.Join(l.namespaces, ","))
}

// holds returns how long the shard holds off after it has taken the Lease as it was last read or written.
func (l *lock) holds() time.Duration { return max(l.options.HoldOff, announcement(l.lease)) }

// other returns the Pod that the Lease of a slot names, if that is another one than this.
func (l *lock) other() string {
	if !l.slot || l.pod.wrote(l.lease) {
		return ""
	}

	return l.lease.Annotations[contract.AnnotationPod]
}

// theft describes how the Lease, once held by this process, was taken by another one.
func (l *lock) theft(record *resourcelock.LeaderElectionRecord) error {
	switch other := l.other(); {
	case other != "" && record.HolderIdentity == l.name:
		return fmt.Errorf("lease %s of this slot was taken by Pod %q", l.Describe(), other)
	case l.renewed.IsZero():
		return nil
	case record.HolderIdentity != l.name:
		return fmt.Errorf("lease %s was taken from this shard: its holder is now %q", l.Describe(), record.HolderIdentity)
	case record.RenewTime.After(l.renewed.Time):
		return fmt.Errorf("lease %s is renewed by another process with the same name: give every shard its own name", l.Describe())
	}

	return nil
}

// Create creates the Lease with this shard as the holder.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, record)
}

// Update takes, renews, or releases the Lease.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		return l.release(ctx, record)
	}

	if l.lost != nil {
		return l.lost
	}

	if err := l.term.lost(); errors.Is(err, errSick) {
		return err // nobody else has the Lease: if all workers stop, it is released
	} else if err != nil {
		// Renewing the Lease would keep the objects of a process that does not work.
		return l.lose(err)
	}

	if l.options.Healthy != nil && !l.renewed.IsZero() {
		err := l.ask(ctx)
		l.term.asked(err)

		if err != nil {
			return err
		}
	}

	sent := l.term.clock.Now()

	l.failure = l.write(ctx, record)
	switch {
	case l.failure == nil:
		l.prolong(sent)
	case l.renewed.IsZero() || apierrors.IsConflict(l.failure):
		// The Lease was not held before, or was certainly not written.
		return l.failure
	}
	// A write whose answer was lost may still have succeeded. Times on the wire have microseconds.
	l.renewed = metav1.NewMicroTime(record.RenewTime.Truncate(time.Microsecond))

	return l.failure
}

// ask asks the program whether it is healthy. No answer in time is an error, too.
func (l *lock) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.options.RetryPeriod)
	defer cancel()

	answer := make(chan error, 1)
	go func() { answer <- l.options.Healthy(ctx) }()

	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("no answer within %s: %w", l.options.RetryPeriod, context.Cause(ctx))
	}
}

// prolong begins or extends the term, based on a write that was sent at the given time.
func (l *lock) prolong(sent time.Time) {
	switch {
	case l.renewed.IsZero() && l.settled:
		l.term.taken(sent, 0)
	case l.renewed.IsZero() || l.free:
		l.term.taken(sent, l.holds())
	default:
		l.term.renewed(sent)
	}

	l.free = false
}

func (l *lock) release(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	idle := l.term.close()

	switch {
	case l.lost != nil:
		return l.lost
	case l.lease == nil || !isHeld(l.lease):
		return fmt.Errorf("lease %s is not released: this shard does not hold it", l.Describe())
	case l.failure != nil && !errors.Is(l.failure, context.Canceled):
		return fmt.Errorf("lease %s is not released, because it could not be renewed and workers may still run: %w", l.Describe(), l.failure)
	case !idle && l.leave == nil:
		return fmt.Errorf("lease %s is not released, because workers still run: it expires after the process has ended", l.Describe())
	}

	if l.leave != nil {
		l.leave()
	}

	if l.slot && l.offer(ctx, record) {
		return nil
	}

	return l.write(ctx, record)
}

// lose permanently ends the shard's term in this process.
func (l *lock) lose(err error) error {
	l.term.lose(err)
	l.lost = err

	if l.slot && l.renewed.IsZero() {
		l.term.exit(err) // leader election would wait for the Lease for ever
	}

	return err
}
