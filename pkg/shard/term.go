package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

var (
	// ErrNotHeld means that this process does not hold the shard's Lease yet, or waits for the end of Options.HoldOff.
	ErrNotHeld = errors.New("this shard does not hold its Lease (yet)")
	// ErrLost means that the shard's term in this process is over: its Lease was lost or released. The process must end.
	ErrLost = errors.New("this shard has released or lost its Lease and no longer works: the process must end")

	errSick  = errors.New("the Lease was not renewed, because Options.Healthy failed until the renew deadline")
	errLate  = errors.New("the Lease was not renewed before the renew deadline")
	errStuck = errors.New("the shard has lost its Lease, and workers have not stopped")
	errGiven = errors.New("the Lease is being released")
)

// term is the time in which this process may work as the shard. It is measured on the monotonic clock, which goes on
// while the process is frozen.
//
//	T1  A worker begins only after the hold-off and before the deadline, by the clock: when a frozen process wakes up,
//	    its timers are late.
//	T2  At the deadline, RenewDeadline after the last successful renewal was sent, the term ends permanently and the
//	    contexts of all workers are cancelled, whatever leader election waits for. The same happens when the Lease is
//	    lost.
//	T3  If a worker has not stopped LeaseDuration after that renewal was sent, the process ends. The Lease is taken from
//	    the shard after twice that time at the earliest. If it was taken earlier all the same, workers have no longer
//	    than they would have after the deadline.
//	T4  The Lease is released only after every worker has ended, and no worker begins afterwards. What the shard does
//	    itself counts as a worker: it acknowledges drains, and releases what the process holds for objects at the end.
//	T5  Each time that the Lease may have been free, a new stretch of the term begins: no worker begins before another
//	    hold-off has passed, and what was read of the shard's objects before that no longer counts.
//
// A term that has passed its deadline could be extended as long as nobody has taken the Lease. It is not, because its
// workers were told to stop, and the restart of a process is the tested path.
type term struct {
	clock         clock.WithDelayedExecution
	renewDeadline time.Duration
	leaseDuration time.Duration
	exit          func(error)
	// own is what the shard itself does from the beginning of the term to its end. It counts as a worker, and as one that
	// does not stop if it returns false. Nil: nothing.
	own func(ctx context.Context) bool

	mu       sync.Mutex
	phase    phase
	cause    error // why the term is over
	workers  map[*worker]struct{}
	ended    chan struct{} // closed when own has returned; nil: it does not run
	begins   time.Time     // end of the hold-off
	stretch  int           // counts how often the Lease was taken; 0: there is no Lease to take
	deadline time.Time     // zero: none
	end      time.Time     // when the process must not have workers any more; zero: never
	timer    clock.Timer
	sick     error // why the program does not let the Lease be renewed
}

// phase is where the process is in its term as a shard. It only moves forward.
type phase int

const (
	waiting phase = iota // the Lease was not acquired yet
	holding
	over
)

type worker struct{ cancel context.CancelCauseFunc }

// waitError is why workers must still wait, and for how long.
type waitError struct {
	error
	left time.Duration
}

func (e waitError) Unwrap() error { return e.error }

func newTerm(o Options, clk clock.WithDelayedExecution) *term {
	exit := o.Exit
	if exit == nil {
		exit = exitProcess
	}

	return &term{
		clock: clk, renewDeadline: o.RenewDeadline, leaseDuration: o.LeaseDuration, exit: exit,
		workers: map[*worker]struct{}{},
	}
}

// exitProcess ends the process because of workers that have not stopped. klog writes to standard error by default.
func exitProcess(err error) {
	klog.Background().Error(err, "Ending the process")
	klog.Flush()
	os.Exit(1) //nolint:revive // nothing less stops a worker that ignores its context
}

// taken begins the term, or a new stretch of it: a write that was sent at the given time has just taken the Lease, or
// created it again. Running workers continue: they are not lost before twice the duration of a Lease has passed.
func (t *term) taken(sent time.Time, holdOff time.Duration) {
	t.check()
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.phase == over {
		return
	}

	first := t.phase == waiting
	t.phase = holding
	t.stretch++
	t.begins = t.clock.Now().Add(holdOff)
	t.extend(sent)

	if !first || t.own == nil {
		return
	}

	ctx, w := t.enter(context.Background())
	ended := make(chan struct{})
	t.ended = ended

	go func() {
		defer close(ended)

		if t.own(ctx) {
			t.leave(w)
		}
	}()
}

// renewed extends the term: a renewal that was sent at the given time has succeeded.
func (t *term) renewed(sent time.Time) {
	t.check()
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.phase == holding {
		t.extend(sent)
	}
}

func (t *term) extend(sent time.Time) {
	t.deadline, t.end, t.sick = sent.Add(t.renewDeadline), sent.Add(t.leaseDuration), nil
	t.arm()
}

// asked records the answer of the program to whether it is healthy. If that is an error, it is why the term is over.
func (t *term) asked(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.sick = nil; err != nil {
		t.sick = fmt.Errorf("%w: %w", errSick, err)
	}
}

// lease returns whether the Lease is held, and when the last renewal was sent, if one was.
func (t *term) lease() (held bool, age time.Duration, known bool) {
	t.check()
	t.mu.Lock()
	defer t.mu.Unlock()

	return t.phase == holding, t.clock.Since(t.deadline.Add(-t.renewDeadline)), !t.deadline.IsZero()
}

// unlimited begins a term without a Lease, for tests of reconcilers.
func (t *term) unlimited() {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.phase = holding
}

// lose ends the term because another holder has the Lease. Workers get as long to stop as after the deadline.
func (t *term) lose(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.phase == over {
		return
	}

	t.end = t.clock.Now().Add(t.leaseDuration - t.renewDeadline)
	t.finish(cause)
}

// close ends the term because the Lease is to be released. It waits for the shard, and reports whether all workers have
// ended.
func (t *term) close() (idle bool) {
	t.mu.Lock()
	if t.phase != over {
		t.finish(errGiven)
	}

	ended := t.ended
	t.mu.Unlock()

	if ended != nil {
		select {
		case <-ended:
		case <-t.clock.After(t.leaseDuration):
		}
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	return len(t.workers) == 0
}

// held returns nil while the Lease is held by the clock and the hold-off is over, or why nothing may be written.
func (t *term) held() error {
	_, err := t.current()
	return err
}

// current returns the stretch of the term, or 0 for a term without a Lease, or the error that prevents work.
func (t *term) current() (stretch int, err error) {
	t.check()
	t.mu.Lock()
	defer t.mu.Unlock()

	return t.stretch, t.mayWork()
}

func (t *term) lost() error {
	t.check()
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.phase != over {
		return nil
	}

	return t.mayWork()
}

// begin registers a worker and returns its context and the function that unregisters it. Otherwise, it returns why the
// worker must not work: a waitError if it only has to wait a little.
func (t *term) begin(ctx context.Context) (context.Context, func(), error) {
	t.check()
	t.mu.Lock()
	defer t.mu.Unlock()

	if err := t.mayWork(); err != nil {
		return nil, nil, err
	}

	ctx, w := t.enter(ctx)

	return ctx, func() { t.leave(w) }, nil
}

func (t *term) enter(ctx context.Context) (context.Context, *worker) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &worker{cancel: cancel}
	t.workers[w] = struct{}{}

	return ctx, w
}

func (t *term) leave(w *worker) {
	w.cancel(nil)
	t.mu.Lock()
	defer t.mu.Unlock()

	delete(t.workers, w)

	if t.phase == over {
		t.arm()
	}
}

func (t *term) mayWork() error {
	switch t.phase {
	case waiting:
		return ErrNotHeld
	case over:
		return fmt.Errorf("%w: %w", ErrLost, t.cause)
	case holding:
	}

	if wait := t.begins.Sub(t.clock.Now()); wait > 0 {
		return waitError{fmt.Errorf("%w: it begins to work in %s, when moves of its objects that were under way have ended",
			ErrNotHeld, wait), wait}
	}

	return nil
}

// check does what is due. Timers call it, and so do readers of the term, because timers may be late.
func (t *term) check() {
	t.mu.Lock()
	err := t.update()
	t.mu.Unlock()

	if err != nil {
		t.exit(err)
	}
}

// update ends the term if its deadline has passed. If the process must end, it returns why.
func (t *term) update() error {
	now := t.clock.Now()
	if t.phase == holding && !t.deadline.IsZero() && !now.Before(t.deadline) {
		t.finish(cmp.Or(t.sick, errLate))
	}

	if t.phase == over && len(t.workers) > 0 && !t.end.IsZero() && !now.Before(t.end) {
		t.end = time.Time{}

		return fmt.Errorf("%w (%d of them): %w", errStuck, len(t.workers), t.cause)
	}

	return nil
}

func (t *term) finish(cause error) {
	t.phase, t.cause = over, cause
	for w := range t.workers {
		w.cancel(fmt.Errorf("%w: %w", ErrLost, cause))
	}
	t.arm()
}

// arm sets the timer for what comes next, if anything.
func (t *term) arm() {
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}

	next := t.deadline
	if t.phase == over {
		next = t.end
	}

	if next.IsZero() || t.phase == over && len(t.workers) == 0 {
		return
	}

	t.timer = t.clock.AfterFunc(next.Sub(t.clock.Now()), t.check)
}
