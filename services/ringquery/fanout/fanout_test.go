package fanout_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"github.com/clusterring/clusterring/services/ringquery/fanout"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counter is a topic whose state is a number.
type counter struct {
	*fanout.Hub[int64]

	value, reads atomic.Int64
	clock        *testclock.FakePassiveClock
}

func newCounter() *counter {
	c := &counter{clock: testclock.NewFakePassiveClock(time.Unix(1, 0))}
	c.Hub = fanout.NewHub(func(context.Context, string) (int64, error) {
		c.reads.Add(1)
		return c.value.Load(), nil
	}, func(a, b int64) bool { return a == b }, c.clock)

	return c
}

func (c *counter) set(value int64) {
	c.value.Store(value)
	c.Changed("it")
}

// state is what a reader gets.
type state struct{ value, revision int64 }

// errEnough ends a reader.
var errEnough = errors.New("enough")

// read follows the topic, and passes each state to check, until that returns false.
func (c *counter) read(t *testing.T, check func(s state) (more bool)) {
	t.Helper()

	err := c.Follow(t.Context(), "it", func(value, revision int64) error {
		if check(state{value, revision}) {
			return nil
		}

		return errEnough
	})
	assert.ErrorIs(t, err, errEnough)
}

func TestReaderWaitsForAnotherState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, got := newCounter(), make(chan state, 2)

		go c.read(t, func(s state) bool {
			got <- s
			return s.value == 0
		})

		require.Equal(t, state{0, 0}, <-got)
		c.Changed("another")
		synctest.Wait()
		c.Changed("it") // it looks as it did
		synctest.Wait()
		require.Empty(t, got)

		c.set(1)
		require.Equal(t, state{1, 2}, <-got, "the change that did not show is counted")
	})
}

func TestStateIsReadOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const readers = 100

		c := newCounter()

		var done sync.WaitGroup
		for range readers {
			done.Go(func() {
				c.read(t, func(s state) bool {
					assert.Contains(t, []state{{0, 0}, {1, 1}}, s)
					return s.value == 0
				})
			})
		}
		synctest.Wait()
		require.EqualValues(t, 1, c.reads.Load())
		require.Equal(t, readers, c.Readers())
		c.set(1)
		done.Wait()
		require.EqualValues(t, 2, c.reads.Load())
		require.Zero(t, c.Readers())
	})
}

func TestStateThatIsOldIsReadAgain(t *testing.T) {
	c := newCounter()

	c.read(t, func(state) bool { // while another reader follows the topic
		for _, step := range []struct {
			wait  time.Duration
			reads int64
		}{{time.Second - 1, 1}, {1, 2}} {
			c.clock.SetTime(c.clock.Now().Add(step.wait))
			c.read(t, func(state) bool { return false })
			require.Equal(t, step.reads, c.reads.Load())
		}

		return false
	})
}

// TestChangeWhileTheStateIsRead verifies that the state is read again, because it may not contain the change.
func TestChangeWhileTheStateIsRead(t *testing.T) {
	reading, goOn := make(chan struct{}), make(chan struct{})
	c, got := newCounter(), make(chan state)
	c.Hub = fanout.NewHub(func(context.Context, string) (int64, error) {
		v := c.value.Load()
		reading <- struct{}{}
		<-goOn

		return v, nil
	}, func(a, b int64) bool { return a == b }, clock.RealClock{})

	go c.read(t, func(s state) bool {
		got <- s
		return s.value == 0
	})
	<-reading
	c.set(1) // does not wait for the reading
	goOn <- struct{}{}
	require.Equal(t, state{0, 0}, <-got)
	<-reading
	goOn <- struct{}{}
	require.Equal(t, state{1, 1}, <-got)
}

// TestEveryReaderGetsTheLastState verifies this for concurrent changes.
func TestEveryReaderGetsTheLastState(t *testing.T) {
	const writers, changes = 4, 500

	c := newCounter()

	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			last := state{-1, -1}
			c.read(t, func(s state) bool {
				ok := assert.Greater(t, s.revision, last.revision) && assert.Greater(t, s.value, last.value) &&
					(last.revision >= 0 || assert.Zero(t, s.revision, "a reader counts from its beginning"))
				last = s

				return ok && s.value < writers*changes
			})
		})
	}

	for range writers {
		all.Go(func() {
			for range changes {
				c.value.Add(1)
				c.Changed("it")
			}
		})
	}
	all.Wait()
	require.Zero(t, c.Readers())
}
