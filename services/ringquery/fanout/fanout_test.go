package fanout_test

import (
	"context"
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

func TestReaderWaitsForAnotherState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter()

		r := c.Follow("it")
		defer r.Close()

		_, err := r.Next(t.Context())
		require.NoError(t, err)

		got := make(chan fanout.State[int64], 1)

		go func() {
			s, err := r.Next(t.Context())
			assert.NoError(t, err)
			got <- s
		}()
		c.Changed("another")
		synctest.Wait()
		c.Changed("it") // it looks as it did
		synctest.Wait()
		require.Empty(t, got)

		c.set(1)
		require.Equal(t, fanout.State[int64]{Value: 1, Revision: 2}, <-got, "the change that did not show is counted")
	})
}

func TestStateIsReadOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const readers = 100

		c := newCounter()

		var ready, done sync.WaitGroup
		for range readers {
			ready.Add(1)
			done.Go(func() {
				r := c.Follow("it")
				defer r.Close()

				_, err := r.Next(t.Context())
				assert.NoError(t, err)
				ready.Done()

				s, err := r.Next(t.Context())
				assert.NoError(t, err)
				assert.Equal(t, fanout.State[int64]{Value: 1, Revision: 1}, s)
			})
		}
		ready.Wait()
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

	first := c.Follow("it")
	defer first.Close()

	_, err := first.Next(t.Context())
	require.NoError(t, err)

	for _, step := range []struct {
		wait  time.Duration
		reads int64
	}{{time.Second - 1, 1}, {1, 2}} {
		c.clock.SetTime(c.clock.Now().Add(step.wait))
		other := c.Follow("it")
		_, err = other.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, step.reads, c.reads.Load())
		other.Close()
	}
}

// TestChangeWhileTheStateIsRead verifies that the state is read again, because it may not contain the change.
func TestChangeWhileTheStateIsRead(t *testing.T) {
	reading, goOn := make(chan struct{}), make(chan struct{})

	var value atomic.Int64

	h := fanout.NewHub(func(context.Context, string) (int64, error) {
		v := value.Load()
		reading <- struct{}{}
		<-goOn

		return v, nil
	}, func(a, b int64) bool { return a == b }, clock.RealClock{})

	r := h.Follow("it")
	defer r.Close()

	got := make(chan fanout.State[int64])

	go func() {
		for range 2 {
			s, err := r.Next(t.Context())
			assert.NoError(t, err)
			got <- s
		}
	}()
	<-reading
	value.Store(1)
	h.Changed("it") // does not wait for the reading
	goOn <- struct{}{}
	require.Equal(t, fanout.State[int64]{Value: 0, Revision: 0}, <-got)
	<-reading
	goOn <- struct{}{}
	require.Equal(t, fanout.State[int64]{Value: 1, Revision: 1}, <-got)
}

// TestEveryReaderGetsTheLastState verifies this for concurrent changes.
func TestEveryReaderGetsTheLastState(t *testing.T) {
	const writers, changes = 4, 500

	c := newCounter()

	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			r := c.Follow("it")
			defer r.Close()

			last := fanout.State[int64]{Value: -1, Revision: -1}
			for last.Value < writers*changes {
				s, err := r.Next(t.Context())
				if !assert.NoError(t, err) || !assert.Greater(t, s.Revision, last.Revision) ||
					!assert.Greater(t, s.Value, last.Value) ||
					last.Revision < 0 && !assert.Zero(t, s.Revision, "a reader counts from its beginning") {
					return
				}

				last = s
			}
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
