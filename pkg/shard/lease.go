package shard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	*resourcelock.LeaseLock
	term    *term
	holdOff time.Duration // the shard's own
	pod     string        // the Pod that the Lease announces; empty for none
	podUID  types.UID     // the uid of the Pod that the Lease announces; empty for none
	ring    string
	label   string // the key of the shard label that the Lease announces; empty for none
	// namespaces are those in which the shard watches its kinds, and watched is what the Lease said when it was last read, as contract.Namespaces; empty for all.
	namespaces []string
	watched    string
	slot       bool // the name of the shard is that of a slot, which may pass to another Pod
	leases     coordinationv1client.LeaseInterface

	// announced is the hold-off that the Lease announced when it was last read or written; 0 if it announced none.
	announced time.Duration
	// uid is the uid of the Lease that was last written.
	uid types.UID
	// free is true if the Lease may have been free since this process last wrote it.
	free bool
	// settled is true if the Lease, as it was last read, names this shard and has done so for longer than the hold-off.
	settled bool
	// holder is who held the Lease when it was last read or written.
	holder string
	// other is the Pod that the Lease names, if that is another one than this.
	other string
	// acquired is the acquireTime of the Lease when it was last read.
	acquired metav1.Time
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
	// healthy is Options.Healthy, or nil, and patience is how long it may take.
	healthy  func(context.Context) error
	patience time.Duration
}

var _ resourcelock.Interface = (*lock)(nil)

// leaseClients returns the client for the shard's Lease, and one whose watches may last.
func leaseClients(config *rest.Config, o Options) (renewing, watching *coordinationv1client.CoordinationV1Client, err error) {
	if renewing, err = elect.Client(config, "shard-lease", o.RenewDeadline); err == nil {
		watching, err = elect.Client(config, "shard-lease", 0)
	}

	if err != nil {
		return nil, nil, fmt.Errorf("create the clients for the shard's Lease: %w", err)
	}

	return renewing, watching, nil
}

// lockFor returns the lock of the Lease with the name of this shard, or of a slot that it is about to take.
func (s *Shard) lockFor(client coordinationv1client.LeasesGetter, name string) *lock {
	l := &lock{
		term: s.term, holdOff: s.options.HoldOff, podUID: s.options.PodUID,
		ring: s.options.Ring, slot: s.options.Slots.any(), label: s.options.ShardLabel, leases: client.Leases(s.options.Namespace),
		namespaces: s.namespaces,
		healthy:    s.options.Healthy, patience: s.options.RetryPeriod,
	}
	if l.slot || s.options.Pod != name {
		l.pod = s.options.Pod
	}

	l.LeaseLock = &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: s.options.Namespace, Name: name},
		Client:     announcing{LeasesGetter: client, lock: l},
		LockConfig: resourcelock.ResourceLockConfig{Identity: name},
		Labels:     map[string]string{contract.LabelClusterRing: s.options.Ring},
	}

	return l
}

// Get reads the Lease, and detects whether it was lost.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if l.lost != nil {
		return nil, nil, l.lost
	}

	l.settled = false

	record, raw, err := l.LeaseLock.Get(ctx)
	if err != nil {
		l.free = l.free || apierrors.IsNotFound(err)

		return nil, nil, err //nolint:wrapcheck // leader election looks for NotFound and logs the Lease's name
	}

	l.holder, l.acquired = record.HolderIdentity, record.AcquireTime
	l.settled = l.isSettled(record)

	if err := l.theft(record); err != nil {
		return nil, nil, l.lose(err)
	}

	return record, raw, nil
}

// isSettled reports whether the shard can use a Lease that it takes over from this record without a hold-off. This is the case if
// this shard's name has held the Lease for longer than a hold-off. It still does when the Lease is written, because the write
// fails if the Lease has changed. Nobody has then seen it free lately. This happens when the process was restarted before its
// Lease was taken. Both times come from the clock of the previous process. In all other cases, moves may be in progress: a Lease
// that was taken or released is free; a Lease that does not exist may have been deleted long ago; a Lease that was acquired only
// recently may have been free before; and L8 holds. A new shard, which has no objects, also waits for the hold-off: it looks the same.
func (l *lock) isSettled(record *resourcelock.LeaderElectionRecord) bool {
	return record.HolderIdentity == l.Identity() && !record.AcquireTime.IsZero() &&
		record.RenewTime.Sub(record.AcquireTime.Time) >= l.holds() && (l.watched == "" || l.watched == strings.Join(l.namespaces, ","))
}

// holds returns how long the shard holds off after it has taken the Lease as it was last read or written.
func (l *lock) holds() time.Duration { return max(l.holdOff, l.announced) }

// theft describes how the Lease, once held by this process, was taken by another one.
func (l *lock) theft(record *resourcelock.LeaderElectionRecord) error {
	if l.slot && l.holder == l.Identity() && l.other != "" {
		return fmt.Errorf("lease %s of this slot was taken by Pod %q", l.Describe(), l.other)
	}

	if l.renewed.IsZero() {
		return nil
	}

	if l.holder != l.Identity() {
		return fmt.Errorf("lease %s was taken from this shard: its holder is now %q", l.Describe(), l.holder)
	}

	if record.RenewTime.After(l.renewed.Time) {
		return fmt.Errorf("lease %s is renewed by another process with the same name %q: give every shard its own name", l.Describe(), l.Identity())
	}

	return nil
}

// Create creates the Lease with this shard as the holder.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.hold(ctx, record, func() error { return l.LeaseLock.Create(ctx, record) })
}

// Update takes, renews, or releases the Lease.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		return l.release(ctx, record)
	}

	return l.hold(ctx, record, func() error { return l.LeaseLock.Update(ctx, record) })
}

func (l *lock) hold(ctx context.Context, record resourcelock.LeaderElectionRecord, write func() error) error {
	if l.lost != nil {
		return l.lost
	}

	if err := l.term.lost(); errors.Is(err, errSick) {
		return err // nobody else has the Lease: if all workers stop, it is released
	} else if err != nil {
		// Renewing the Lease would keep the objects of a process that does not work.
		return l.lose(err)
	}

	if l.healthy != nil && !l.renewed.IsZero() {
		err := l.ask(ctx)
		l.term.asked(err)

		if err != nil {
			return err
		}
	}

	sent := l.term.clock.Now()

	l.failure = write()
	switch {
	case l.failure == nil:
		l.holder = record.HolderIdentity
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
	ctx, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()

	answer := make(chan error, 1)
	go func() { answer <- l.healthy(ctx) }()

	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("no answer within %s: %w", l.patience, context.Cause(ctx))
	}
}

// prolong begins or extends the term, based on a write that was sent at the given time.
func (l *lock) prolong(sent time.Time) {
	switch {
	case l.renewed.IsZero() && l.settled:
		l.term.acquired(sent, 0)
	case l.renewed.IsZero():
		l.term.acquired(sent, l.holds())
	case l.free:
		l.term.regained(sent, l.holds())
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
	case l.holder != l.Identity():
		return fmt.Errorf("lease %s is not released: it is held by %q", l.Describe(), l.holder)
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

	return l.LeaseLock.Update(ctx, record) //nolint:wrapcheck // leader election looks for Conflict and logs the Lease's name
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
