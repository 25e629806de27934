package ordinal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

var (
	// ErrLost means that this process did not renew its acknowledgement in time, or that another process has taken its place. The process must
	// end with a non-zero exit code. Only processes with [Options].StopTheWorld return it.
	ErrLost = errors.New("this process has lost its term and no longer works: the process must end")

	errLate     = errors.New("the acknowledgement was not renewed in time")
	errStuck    = errors.New("workers have not stopped")
	errStopping = errors.New("the process is stopping")
	errFresh    = errors.New("the process has not begun")
)

// gate decides whether this process may work on an object now. Without StopTheWorld, it has no term.
//
//	G1  A worker begins only while the gate is open, and only on an object of the process's share.
//	G2  The gate opens for another share, under StopTheWorld, only when no worker is left that began before.
//	G3  When the term has not been renewed for two thirds of its duration, measured from when the last renewal was sent, by the monotonic clock,
//	    the gate closes for ever and the contexts of all workers are cancelled. A worker that begins asks the clock: the timers of a process that was
//	    frozen are late.
//	G4  If a worker has not stopped when the whole duration has passed, the process ends. Nobody takes over what it worked on before a quarter
//	    more has passed.
//	G5  While the gate is shut because the number has changed, workers that began before may go on for the patience. Then their contexts are
//	    cancelled, and a third of a term later, the process ends.
type gate struct {
	clock    clock.WithDelayedExecution
	term     time.Duration // zero: there is none
	patience time.Duration
	exit     func(error)

	mu        sync.Mutex
	share     share
	closed    error // why the gate is closed; nil while it is open
	lost      error // why the term is over
	turn      int   // counts how often the gate was opened
	workers   map[*worker]struct{}
	deadline  time.Time // when the term is over; zero: never
	end       time.Time // when workers must have ended then
	cancelAt  time.Time // when workers of an earlier share are cancelled; zero: never
	killAt    time.Time // when the process ends if it still has workers; zero: never
	timer     clock.Timer
	listeners []chan struct{}
}

// worker is a worker that has begun and not ended.
type worker struct{ cancel context.CancelCauseFunc }

func newGate(o Options, clk clock.WithDelayedExecution) *gate {
	return &gate{
		clock: clk, term: o.TermDuration, patience: o.Patience, exit: o.Exit, closed: errFresh, workers: map[*worker]struct{}{},
	}
}

// listen returns a channel that gets a value after the gate was opened or shut, and after the last worker has ended.
func (g *gate) listen() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()

	c := make(chan struct{}, 1)
	g.listeners = append(g.listeners, c)

	return c
}

func (g *gate) notify() {
	for _, c := range g.listeners {
		select {
		case c <- struct{}{}:
		default: // it has yet to look at what happened before
		}
	}
}

// open lets workers begin on the share.
func (g *gate) open(s share) {
	g.mu.Lock()
	defer g.mu.Unlock()

	if g.lost != nil || g.closed == nil && g.share == s {
		return
	}

	g.share, g.closed = s, nil
	g.turn++
	g.cancelAt, g.killAt = time.Time{}, time.Time{}
	g.arm()
	g.notify()
}

// shut lets no worker begin. Workers that have begun may go on for the patience.
func (g *gate) shut(why error) {
	g.mu.Lock()
	defer g.mu.Unlock()

	if g.closed == nil && g.term > 0 && g.cancelAt.IsZero() {
		g.cancelAt = g.clock.Now().Add(g.patience)
	}

	if g.closed == nil || !errors.Is(g.closed, why) {
		g.closed = why
		g.notify()
	}

	g.arm()
}

// stop shuts the gate because the process is to end, and cancels all workers.
func (g *gate) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.closed = errStopping
	g.cancel(errStopping)
	g.arm()
	g.notify()
}

// renewed extends the term: a renewal that was sent at the given time has succeeded.
func (g *gate) renewed(sent time.Time) {
	g.check()
	g.mu.Lock()
	defer g.mu.Unlock()

	if g.lost == nil {
		g.deadline, g.end = sent.Add(g.term*2/3), sent.Add(g.term) //nolint:mnd // see G3
		g.arm()
	}
}

// lose ends the term because another process has this one's place. Workers get as long to stop as after the deadline.
func (g *gate) lose(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()

	if g.lost == nil {
		g.end = g.clock.Now().Add(g.grace())
		g.finish(cause)
	}
}

// grace is how long workers have to stop after they were told to.
func (g *gate) grace() time.Duration { return g.term - g.term*2/3 } //nolint:mnd // see G3

func (g *gate) finish(cause error) {
	g.lost = fmt.Errorf("%w: %w", ErrLost, cause)
	g.closed, g.killAt, g.cancelAt = g.lost, g.end, time.Time{}
	g.cancel(g.lost)
	g.arm()
	g.notify()
}

func (g *gate) cancel(cause error) {
	for w := range g.workers {
		w.cancel(cause)
	}
}

// over returns why the term is over, or nil.
func (g *gate) over() error {
	g.check()
	g.mu.Lock()
	defer g.mu.Unlock()

	return g.lost
}

// idle reports whether no worker runs.
func (g *gate) idle() bool {
	g.mu.Lock()
	defer g.mu.Unlock()

	return len(g.workers) == 0
}

// now returns the share that the gate was last opened for, how often it was opened, and why it is closed; nil while it is open.
func (g *gate) now() (share, int, error) {
	g.check()
	g.mu.Lock()
	defer g.mu.Unlock()

	return g.share, g.turn, g.closed
}

// begin registers a worker on an object with this hash. It returns the worker's context and the function that unregisters it; the function is nil
// if the object does not belong to this process. The error is why the gate is closed.
func (g *gate) begin(ctx context.Context, hash uint64) (context.Context, func(), error) {
	g.check()
	g.mu.Lock()
	defer g.mu.Unlock()

	if g.closed != nil {
		return ctx, nil, g.closed
	}

	if !g.share.owns(hash) {
		return ctx, nil, nil
	}

	ctx, cancel := context.WithCancelCause(ctx)
	w := &worker{cancel: cancel}
	g.workers[w] = struct{}{}

	return ctx, func() { g.leave(w) }, nil
}

func (g *gate) leave(w *worker) {
	w.cancel(nil)
	g.mu.Lock()
	defer g.mu.Unlock()

	delete(g.workers, w)

	if len(g.workers) == 0 {
		g.arm()
		g.notify()
	}
}

// check does what is due. Timers call it, and so does whoever asks, because timers may be late.
func (g *gate) check() {
	g.mu.Lock()
	err := g.update()
	g.mu.Unlock()

	if err != nil {
		g.exit(err)
	}
}

// update does what is due. If the process must end, it returns why.
func (g *gate) update() error {
	now := g.clock.Now()
	if g.lost == nil && due(g.deadline, now) {
		g.finish(errLate)
	}

	if due(g.cancelAt, now) && len(g.workers) > 0 {
		g.cancel(g.closed)
		g.cancelAt, g.killAt = time.Time{}, now.Add(g.grace())
		g.arm()
	}

	if due(g.killAt, now) && len(g.workers) > 0 {
		g.killAt = time.Time{}

		return fmt.Errorf("%w (%d of them): %w", errStuck, len(g.workers), g.closed)
	}

	return nil
}

func due(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }

// arm sets the timer for what comes next, if anything.
func (g *gate) arm() {
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}

	var next time.Time

	consider := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}

	if g.lost == nil {
		consider(g.deadline)
	}

	if len(g.workers) > 0 {
		consider(g.cancelAt)
		consider(g.killAt)
	}

	if !next.IsZero() {
		g.timer = g.clock.AfterFunc(next.Sub(g.clock.Now()), g.check)
	}
}

// rest stops the timer: the process has left, and nothing is due any more.
func (g *gate) rest() {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.deadline, g.cancelAt, g.killAt = time.Time{}, time.Time{}, time.Time{}
	g.arm()
}
