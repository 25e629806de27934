package shard

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

const (
	testDuration = 15 * time.Second
	testDeadline = 10 * time.Second
	testHoldOff  = 2 * time.Second
	instant      = time.Nanosecond
)

// exits records how often the process would have ended, and why.
type exits struct {
	count atomic.Int64
	last  atomic.Value
}

func (e *exits) exit(err error) {
	e.count.Add(1)
	e.last.Store(err)
}

// testTerm runs a test in a bubble whose clock stands still until all goroutines wait.
func testTerm(t *testing.T, test func(t *testing.T, term *term, exits *exits)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &exits{}
		term := newTerm(Options{LeaseDuration: testDuration, RenewDeadline: testDeadline, Exit: e.exit}, clock.RealClock{})
		t.Cleanup(func() { term.close() })
		test(t, term, e)
	})
}

// pass lets time pass in the bubble, with all timers on time.
func pass(d time.Duration) {
	<-clock.RealClock{}.After(d)
	synctest.Wait()
}

func work(t *testing.T, term *term) (context.Context, func()) {
	t.Helper()
	ctx, end, err := term.begin(t.Context())
	require.NoError(t, err)

	return ctx, end
}

func TestTermGoesOneWay(t *testing.T) {
	testTerm(t, func(t *testing.T, term *term, _ *exits) {
		t.Helper()
		_, _, err := term.begin(t.Context())
		require.ErrorIs(t, err, ErrNotHeld)

		term.taken(term.clock.Now(), 0)
		ctx, end := work(t, term)
		require.False(t, term.close(), "a worker is inside")
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		_, _, err = term.begin(t.Context())
		require.ErrorIs(t, err, ErrLost)

		end()
		require.True(t, term.close())
		term.taken(term.clock.Now(), 0)
		term.renewed(term.clock.Now())
		require.ErrorIs(t, term.held(), ErrLost, "it does not come back")
	})
}

func TestTermEndsAtTheRenewDeadline(t *testing.T) {
	testTerm(t, func(t *testing.T, term *term, exits *exits) {
		t.Helper()

		sent := term.clock.Now()
		pass(time.Second) // for the answer
		term.taken(sent, 0)
		ctx, end := work(t, term)

		pass(4 * time.Second)

		sent = term.clock.Now()
		pass(2 * time.Second)
		term.renewed(sent)

		pass(8*time.Second - instant)
		require.NoError(t, ctx.Err())
		require.NoError(t, term.held())
		pass(instant)
		require.ErrorIs(t, context.Cause(ctx), errLate, "ten seconds after the renewal was sent")
		require.ErrorIs(t, term.held(), ErrLost)
		term.renewed(term.clock.Now())
		require.ErrorIs(t, term.held(), ErrLost, "workers have been told to stop")

		end()
		pass(time.Hour)
		require.Zero(t, exits.count.Load(), "the worker has stopped")
	})
}

func TestProcessEndsIfAWorkerDoesNotStop(t *testing.T) {
	testTerm(t, func(t *testing.T, term *term, exits *exits) {
		t.Helper()
		term.taken(term.clock.Now(), 0)
		_, end := work(t, term)
		_, other := work(t, term)

		defer end()

		pass(testDeadline)
		other()
		pass(testDuration - testDeadline - instant)
		require.Zero(t, exits.count.Load())
		pass(instant)
		require.EqualValues(t, 1, exits.count.Load())
		err, _ := exits.last.Load().(error)
		require.ErrorIs(t, err, errStuck)
		require.ErrorContains(t, err, "1 of them")
		pass(time.Hour)
		require.EqualValues(t, 1, exits.count.Load())
	})
}

// A process that was told to stop releases its Lease when the last worker ends. If this worker does not end, the Lease may be
// lost meanwhile, and only the term can detect it.
func TestProcessEndsIfAWorkerDoesNotStopAfterTheLeaseCouldNotBeGivenBack(t *testing.T) {
	testTerm(t, func(t *testing.T, term *term, exits *exits) {
		t.Helper()
		term.taken(term.clock.Now(), 0)

		_, end := work(t, term)
		defer end()
		require.False(t, term.close())
		pass(testDuration)
		require.EqualValues(t, 1, exits.count.Load())
	})
}

func TestTakenLeaseEndsTheTermAtOnce(t *testing.T) {
	testTerm(t, func(t *testing.T, term *term, exits *exits) {
		t.Helper()
		term.taken(term.clock.Now(), 0)

		ctx, end := work(t, term)
		defer end()
		pass(time.Second)

		taken := errors.New("taken")
		term.lose(taken)
		require.ErrorIs(t, context.Cause(ctx), taken)
		require.ErrorIs(t, term.held(), taken)

		pass(testDuration - testDeadline - instant)
		require.Zero(t, exits.count.Load())
		pass(instant)
		require.EqualValues(t, 1, exits.count.Load())
	})
}

func TestNobodyBeginsDuringTheHoldOff(t *testing.T) {
	testTerm(t, func(t *testing.T, term *term, _ *exits) {
		t.Helper()

		sent := term.clock.Now()
		pass(time.Second)
		term.taken(sent, testHoldOff)
		pass(testHoldOff - time.Millisecond)

		_, _, err := term.begin(t.Context())

		var wait holdOffError
		require.ErrorAs(t, err, &wait, "it counts from the answer: until then the Lease may have been free")
		require.Equal(t, time.Millisecond, time.Duration(wait))
		require.ErrorIs(t, err, ErrNotHeld)
		require.ErrorIs(t, term.held(), ErrNotHeld, "nor does anybody write")

		term.renewed(term.clock.Now())
		pass(time.Millisecond)

		_, end := work(t, term)
		end()
	})
}

// lateClock has advanced while timers have not fired, as in a process that was frozen.
type lateClock struct {
	clock.RealClock
	ahead atomic.Int64
}

func (c *lateClock) Now() time.Time { return c.RealClock.Now().Add(time.Duration(c.ahead.Load())) }

func TestProcessThatWasFrozen(t *testing.T) {
	frozen := func(t *testing.T, ahead time.Duration, test func(t *testing.T, term *term, exits *exits)) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			clk, e := &lateClock{}, &exits{}
			term := newTerm(Options{LeaseDuration: testDuration, RenewDeadline: testDeadline, Exit: e.exit}, clk)
			t.Cleanup(func() { term.close() })
			term.taken(clk.Now(), 0)
			clk.ahead.Store(int64(ahead))
			test(t, term, e)
		})
	}

	t.Run("begins nothing", func(t *testing.T) {
		frozen(t, testDeadline, func(t *testing.T, term *term, _ *exits) {
			t.Helper()
			_, _, err := term.begin(t.Context())
			require.ErrorIs(t, err, errLate)
		})
	})
	t.Run("writes nothing", func(t *testing.T) {
		frozen(t, testDeadline, func(t *testing.T, term *term, _ *exits) {
			t.Helper()
			require.ErrorIs(t, term.held(), errLate)
		})
	})
	t.Run("cancels what runs when anybody asks", func(t *testing.T) {
		frozen(t, 0, func(t *testing.T, term *term, exits *exits) {
			t.Helper()

			ctx, end := work(t, term)
			defer end()
			term.clock.(*lateClock).ahead.Store(int64(testDeadline))
			require.Error(t, term.held())
			require.ErrorIs(t, context.Cause(ctx), errLate)
			require.Zero(t, exits.count.Load(), "there is time to stop")
		})
	})
	t.Run("ends at once if its Lease has run out", func(t *testing.T) {
		frozen(t, 0, func(t *testing.T, term *term, exits *exits) {
			t.Helper()

			_, end := work(t, term)
			defer end()
			term.clock.(*lateClock).ahead.Store(int64(testDuration))
			require.Error(t, term.held())
			require.EqualValues(t, 1, exits.count.Load())
		})
	})
	t.Run("does not prolong what is over", func(t *testing.T) {
		frozen(t, testDeadline, func(t *testing.T, term *term, _ *exits) {
			t.Helper()
			term.renewed(term.clock.Now())
			require.ErrorIs(t, term.held(), errLate)
		})
	})
}
