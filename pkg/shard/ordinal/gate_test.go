package ordinal

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

// exits are the calls of Exit.
type exits struct {
	mu  sync.Mutex
	all []error
}

func (e *exits) exit(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()

	e.all = append(e.all, err)
}

func (e *exits) calls() []error {
	e.mu.Lock()
	defer e.mu.Unlock()

	return slices.Clone(e.all)
}

// testGate tests a gate with a term of 15 s and a patience of 20 s in a bubble whose clock stands still until all goroutines wait.
func testGate(t *testing.T, test func(t *testing.T, g *gate, exits *exits)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		exits := &exits{}
		g := newGate(Options{
			TermDuration: 15 * time.Second, Patience: 20 * time.Second, Exit: exits.exit,
		}, clock.RealClock{})
		t.Cleanup(g.rest)
		g.renewed(g.clock.Now())
		g.open(share{index: 1, replicas: 2})
		test(t, g, exits)
	})
}

// pass lets time pass in the bubble, with all timers on time.
func pass(d time.Duration) {
	<-clock.RealClock{}.After(d)
	synctest.Wait()
}

func TestWorkersBeginOnlyOnTheShare(t *testing.T) {
	testGate(t, func(t *testing.T, g *gate, _ *exits) {
		t.Helper()

		ctx, end, err := g.begin(t.Context(), 3)
		require.NoError(t, err)
		require.NotNil(t, end)
		require.NoError(t, ctx.Err())
		require.False(t, g.idle())
		end()
		require.True(t, g.idle())
		require.Error(t, ctx.Err())

		_, end, err = g.begin(t.Context(), 2)
		require.NoError(t, err)
		require.Nil(t, end, "foreign")
	})
}

func TestTheTermEndsByTheClock(t *testing.T) {
	testGate(t, func(t *testing.T, g *gate, exits *exits) {
		t.Helper()

		ctx, end, err := g.begin(t.Context(), 1)
		require.NoError(t, err)
		pass(9999 * time.Millisecond)
		require.NoError(t, ctx.Err())
		pass(time.Millisecond)
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		require.ErrorIs(t, g.over(), errLate)

		g.renewed(g.clock.Now()) // an answer that came too late
		g.open(share{index: 1, replicas: 2})

		_, _, err = g.begin(t.Context(), 1)
		require.ErrorIs(t, err, ErrLost)
		require.Empty(t, exits.calls())
		pass(5 * time.Second)
		require.Len(t, exits.calls(), 1, "the worker ignores its context")
		require.ErrorIs(t, exits.calls()[0], errStuck)
		end()
	})
}

// The timers of a process that was frozen have not fired when its workers begin.
func TestAFrozenProcess(t *testing.T) {
	testGate(t, func(t *testing.T, g *gate, exits *exits) {
		t.Helper()
		g.mu.Lock()
		g.timer.Stop()
		g.mu.Unlock()
		pass(time.Hour)

		_, _, err := g.begin(t.Context(), 1)
		require.ErrorIs(t, err, errLate)
		require.Empty(t, exits.calls(), "it has no worker")
	})
}

func TestPatienceWithWorkersOfAnEarlierShare(t *testing.T) {
	testGate(t, func(t *testing.T, g *gate, exits *exits) {
		t.Helper()

		ctx, end, err := g.begin(t.Context(), 1)
		require.NoError(t, err)
		g.shut(errPlan)

		_, _, err = g.begin(t.Context(), 1)
		require.ErrorIs(t, err, errPlan)

		for range 4 {
			pass(5*time.Second - time.Millisecond)
			g.renewed(g.clock.Now())
		}

		require.NoError(t, ctx.Err())
		pass(4 * time.Millisecond)
		require.ErrorIs(t, context.Cause(ctx), errPlan)
		require.NoError(t, g.over(), "the term goes on")
		pass(5 * time.Second)
		require.Len(t, exits.calls(), 1)
		end()

		g.open(share{replicas: 1})

		_, end, err = g.begin(t.Context(), 1)
		require.NoError(t, err)
		pass(time.Second)
		end()
		require.Len(t, exits.calls(), 1)
	})
}

func TestWhoListensToTheGate(t *testing.T) {
	testGate(t, func(t *testing.T, g *gate, _ *exits) {
		t.Helper()

		changes := g.listen()
		heard := func() bool {
			select {
			case <-changes:
				return true
			default:
				return false
			}
		}

		g.open(share{index: 1, replicas: 2})
		require.False(t, heard(), "nothing has changed")
		g.open(share{index: 2, replicas: 5})
		require.True(t, heard())

		_, end, err := g.begin(t.Context(), 2)
		require.NoError(t, err)
		g.shut(errPlan)
		require.True(t, heard())
		end()
		require.True(t, heard(), "the last worker has ended")
		g.lose(errors.New("taken"))
		require.True(t, heard())
	})
}
