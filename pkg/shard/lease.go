package shard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/shard/internal/elect"
)

// lock is the shard's Lease as leader election sees it, which does the timing, and what a shard needs in addition:
//
//	L1  Workers begin only while the Lease is held, and none begins after it was lost. Every success extends the term
//	    from when the request was sent, which is before anybody could see the renewal.
//	L2  Only the holder releases the Lease, and only if renewals worked to the end and every worker has stopped. Leader
//	    election alone would also release the Lease if it could not be renewed, while all workers still run.
//	L3  This process does not take back a Lease that it has lost: its objects may have moved, and its workers do not
//	    know.
//	L4  If two processes have the same name, the later one keeps the Lease. Leader election alone takes them for one
//	    process, because the contract requires the shard's name as the holder.
//	L5  A Lease that this shard did not hold continuously is used only after the hold-off, even if it was deleted and
//	    recreated.
//	L6  The Lease announces the hold-off from the write that takes it. A longer hold-off that a predecessor has announced
//	    is kept, and announced, until it has passed once: everyone who has read it may rely on it.
//	L7  The Lease of a slot is lost when it names another Pod, even if its holder, the slot, is the same.
//	L8  A process waits for the hold-off if its predecessor has announced other namespaces than it does, even if the
//	    Lease was held all the time: everyone who has read there that the shard does not watch a namespace may rely on
//	    it for that long.
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

	l := &lock{term: s.term, options: o, name: name, pod: pod{o.Pod, o.PodUID}, namespaces: s.namespaces,
		slot: o.Slots.any(), leases: leases}
	if !l.slot && o.Pod == name {
		l.pod.name = ""
	}

	return l
}

func (l *lock) Identity() string { return l.name }

func (l *lock) Describe() string { return l.options.Namespace + "/" + l.name }

func (l *lock) RecordEvent(event string) {
	if l.events != nil && l.lease != nil {
		subject := &coordinationv1.Lease{
			TypeMeta:   metav1.TypeMeta{Kind: "Lease", APIVersion: coordinationv1.SchemeGroupVersion.String()},
			ObjectMeta: l.lease.ObjectMeta,
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

// write writes the record to the Lease, or creates it. It fails if that has changed since it was last read or written.
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

// isSettled reports whether the shard can use a Lease that it takes over from this record without a hold-off: this
// shard's name has held it for longer than a hold-off, and still does when the Lease is written, because the write
// fails if the Lease has changed. This happens when the process was restarted before its Lease was taken. In all other
// cases, moves may be in progress: a Lease that was taken or released is free; one that does not exist may have been
// deleted long ago; one that was acquired only recently may have been free before; and L8 holds.
func (l *lock) isSettled(record *resourcelock.LeaderElectionRecord) bool {
	watched := watchedBy(l.lease)

	return record.HolderIdentity == l.name && !record.AcquireTime.IsZero() &&
		record.RenewTime.Sub(record.AcquireTime.Time) >= l.holds() &&
		(watched == "" || watched == strings.Join(l.namespaces, ","))
}

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
		return fmt.Errorf("lease %s is renewed by another process with the same name: give each its own", l.Describe())
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
		return fmt.Errorf("lease %s is not released, because it could not be renewed and workers may still run: %w",
			l.Describe(), l.failure)
	case !idle && l.leave == nil:
		return fmt.Errorf("lease %s is not released, because workers still run: it expires", l.Describe())
	}

	if l.leave != nil {
		l.leave()
	}

	if l.slot && l.offer(ctx, record) {
		return nil
	}

	return l.write(ctx, record)
}

func (l *lock) lose(err error) error {
	l.term.lose(err)
	l.lost = err

	if l.slot && l.renewed.IsZero() {
		l.term.exit(err) // leader election would wait for the Lease for ever
	}

	return err
}

// announce sets the annotations of a Lease that is about to be written. It replaces a longer hold-off of a predecessor
// only when the shard works: by then, nobody has seen the Lease free for that long.
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

// tenure is the time in which this process holds the shard's Lease, from its acquisition until it is lost or released.
type tenure struct {
	lost <-chan struct{} // closed when the Lease is not renewed any more
	end  func()          // releases the Lease if that may be, and waits for it
}

// connect lets the shard read what it must not take from a cache.
func (s *Shard) connect(config *rest.Config) error {
	// Drains must not queue behind the writes of the controllers.
	config = rest.CopyConfig(config)
	config.QPS, config.RateLimiter = -1, nil

	live, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create the client of a shard of ring %s for live reads: %w", s.options.Ring, err)
	}

	s.live.Store(&live)

	return nil
}

// hold takes the shard's Lease and returns when this process holds it; it is renewed from the first write on. With
// slots, the shard has a name then. The Lease outlives ctx: it is renewed until the tenure is ended, or lost. Without a
// tenure, the error is that of ctx, or of a slot.
func (s *Shard) hold(ctx context.Context, config *rest.Config) (*tenure, error) {
	if s.options.Slots.any() && s.Name() == "" {
		if err := s.claim(ctx, config); err != nil {
			return nil, err
		}
	}

	if err := s.poison.open(notesOf(config.Host, s.Namespace(), s.Ring(), cmp.Or(s.options.Pod, s.Name()))); err != nil {
		klog.FromContext(ctx).Info("Objects whose reconcile ends the process are not held back", "error", err.Error())
	}

	leases, err := s.options.leases(config, s.options.RenewDeadline)
	if err != nil {
		return nil, err
	}

	lock := s.lockFor(leases, s.Name())

	election, err := elect.New(leaderelection.LeaderElectionConfig{
		Lock: lock, ReleaseOnCancel: true,
		LeaseDuration: s.options.LeaseDuration, RenewDeadline: s.options.RenewDeadline, RetryPeriod: s.options.RetryPeriod,
	})
	if err != nil {
		return nil, err
	}

	s.lock.Store(lock)

	electing, stop := context.WithCancel(context.WithoutCancel(ctx))

	go election.Run(electing)

	t := &tenure{lost: election.Lost, end: func() {
		stop()
		<-election.Lost
		s.poison.close()
	}}

	select {
	case <-ctx.Done():
		t.end()

		return nil, context.Cause(ctx)
	case <-election.Lost:
		return nil, s.lostError()
	case <-election.Held:
		return t, nil
	}
}

func (s *Shard) lostError() error {
	return fmt.Errorf("shard %s: %w", s.Name(), cmp.Or(s.term.lost(), ErrLost))
}

const (
	// drainLook is how often a shard that stops looks whether it still has objects.
	drainLook = 500 * time.Millisecond
	// drainStalled is how long a shard that stops waits for the next drain while none is under way: nobody drains the only
	// shard.
	drainStalled = 3 * time.Second
)

// untilDrained returns a context that outlives ctx: when ctx ends, the shard says in its Lease that it stops, and
// continues to work on its objects, which the rebalancer drains one by one. The returned context ends when the shard
// has no objects any more, when nobody drains them, or when [Options].DrainTimeout has passed. If the shard holds a
// slot and another process waits for one, it ends at once, because that process takes over all objects.
func (s *Shard) untilDrained(ctx context.Context) context.Context {
	draining, cancel := context.WithCancelCause(context.WithoutCancel(ctx))

	context.AfterFunc(ctx, func() {
		defer cancel(context.Cause(ctx))

		if s.options.DrainTimeout > 0 && s.term.held() == nil {
			s.drain(draining)
		}
	})

	return draining
}

// drain works until the shard has no objects, or is not drained any more.
func (s *Shard) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.options.DrainTimeout)
	defer cancel()

	log := klog.FromContext(ctx).WithValues("shard", s.Name())

	l := s.lock.Load()
	if l == nil || l.slot && l.awaited(ctx, log) {
		return
	}

	if err := l.announceStop(ctx); err != nil {
		log.Error(err, "Could not say in the Lease that this shard stops; it stops now")
		return
	}

	log.Info("Stopping: waiting until the objects of this shard are drained", "timeout", s.options.DrainTimeout)

	released, since := s.released.Load(), s.term.clock.Now()

	err := wait.PollUntilContextCancel(ctx, drainLook, true, func(ctx context.Context) (bool, error) {
		if err := s.term.lost(); err != nil {
			return false, err
		}

		if l.slot && l.awaited(ctx, log) {
			return true, nil
		}

		now := s.term.clock.Now()
		if n := s.released.Load(); n != released || s.guard.draining() {
			released, since = n, now
			return false, nil // the API server is asked when there is a pause
		}

		has, err := s.hasObjects(ctx)
		if err == nil && has && now.Sub(since) >= drainStalled {
			err = errNoDrain
		}

		return err == nil && !has, err
	})
	if err != nil {
		log.Info("Stopping, perhaps with objects that were not drained", "reason", err.Error())
	}
}

// hasObjects reports whether an object carries the shard's label, as the API server has it.
func (s *Shard) hasObjects(ctx context.Context) (bool, error) {
	for _, k := range s.allKinds() {
		if k.err != nil {
			return false, k.err
		}

		namespaces, err := k.namespaces()
		if err != nil {
			return false, err
		}

		for _, namespace := range namespaces {
			page, err := k.page(ctx, namespace, metav1.ListOptions{LabelSelector: s.Selector().String(), Limit: 1})
			if err != nil || len(page.Items) > 0 {
				return err == nil, err
			}
		}
	}

	return false, nil
}

func (s *Shard) allKinds() []*kind {
	s.mu.RLock()
	defer s.mu.RUnlock()

	return slices.Concat(slices.Collect(maps.Values(s.kinds))...)
}

var (
	errNoDrain = errors.New("nobody drains the objects")
	errNotOurs = errors.New("this process does not hold the Lease")
)

// announceStop says in the Lease that the shard stops. Each later renewal says it again. It may be called while leader
// election renews the Lease, which then reads the Lease again.
func (l *lock) announceStop(ctx context.Context) error {
	l.stopping.Store(true)

	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		lease, err := l.leases.Get(ctx, l.name, metav1.GetOptions{})
		if err != nil {
			return err //nolint:wrapcheck // retry looks for Conflict
		}

		if !isHeld(lease) || lease.Spec.RenewTime == nil || l.slot && !l.pod.wrote(lease) {
			return errNotOurs
		}

		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, contract.AnnotationStopping,
			contract.OfferValue(lease.Spec.RenewTime.Time))
		_, err = l.leases.Update(ctx, lease, metav1.UpdateOptions{})

		return err //nolint:wrapcheck // retry looks for Conflict
	})
	if err != nil {
		l.stopping.Store(false)
	}

	return err //nolint:wrapcheck // the caller says what for
}
