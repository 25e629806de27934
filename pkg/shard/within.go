package shard

import (
	"cmp"
	"context"
	"errors"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/clusterring/clusterring/pkg/shard/internal/within"
)

func newWithin(w within.Shard) (*Shard, error) {
	return New(Options{Ring: w.Ring, Name: w.Name, Namespace: w.Namespace, ShardLabel: w.ShardLabel, Exit: w.Exit})
}

// Without returns a shard whose reconcilers work without a Lease. It is for packages compat/controller and shardtest, and nobody else can call it.
// With a config, its caches may be older than its term, which begins with the first reconcile.
func Without(w within.Shard) (*Shard, error) {
	w.Namespace = cmp.Or(w.Namespace, "default") // required, and not used

	s, err := newWithin(w)
	if err != nil {
		return nil, err
	}

	s.term.unlimited()

	if w.Config != nil {
		s.term.stretch = 1
		err = s.connect(w.Config)
	}

	return s, err
}

// Elect returns the lock of a shard whose leader election the program configures itself. It is for package compat/lease, and nobody else can
// call it.
func Elect(w within.Shard) (resourcelock.Interface, error) {
	s, err := newWithin(w)
	if err != nil {
		return nil, err
	}

	lock := s.lockFor(w.Leases.Leases(s.Namespace()), s.Name())
	lock.events = w.Events

	return &programLock{lock}, nil
}

// programLock is the lock of a program whose workers it does not know. In addition to the promises of lock:
//
//	P1  The election learns that the Lease was taken when the hold-off has ended, so that no worker begins before. If that takes long,
//	    the election fails for a while, but renews the Lease.
//	P2  The program counts as a worker until the election releases the Lease: a process that has lost it ends. This is all that stops a process
//	    that was frozen, or whose workers ignore their contexts.
//	P3  The deadline is the duration of the Lease, because that of the election, which is not known, is shorter. The program gets another
//	    third of the duration to end. The Lease is taken after twice the duration.
type programLock struct{ *lock }

// Create implements [resourcelock.Interface].
func (l *programLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.take(ctx, record, l.lock.Create)
}

// Update implements [resourcelock.Interface].
func (l *programLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		return l.lock.Update(ctx, record)
	}

	return l.take(ctx, record, l.lock.Update)
}

func (l *programLock) take(
	ctx context.Context, record resourcelock.LeaderElectionRecord, write func(context.Context, resourcelock.LeaderElectionRecord) error,
) error {
	duration := time.Duration(record.LeaseDurationSeconds) * time.Second
	l.term.lasting(duration)

	if err := write(ctx, record); err != nil || l.leave != nil {
		return err
	}

	begin := func() (err error) {
		_, l.leave, err = l.term.begin(context.WithoutCancel(ctx))
		return err
	}

	err := begin()
	if wait := holdOffError(0); errors.As(err, &wait) {
		timer := l.term.clock.NewTimer(min(time.Duration(wait), duration/2)) //nolint:mnd // the Lease must be renewed
		defer timer.Stop()

		select {
		case <-ctx.Done():
			return nil // the election releases the Lease, which it does not after an error
		case <-timer.C():
			err = begin()
		}
	}

	return err
}

// lasting sets the duration of the Lease that the term depends on, as P3 describes.
func (t *term) lasting(duration time.Duration) {
	const stopping = 3 // the part of the duration that the program gets to end

	t.mu.Lock()
	defer t.mu.Unlock()

	t.renewDeadline, t.leaseDuration = duration, duration+duration/stopping
}
