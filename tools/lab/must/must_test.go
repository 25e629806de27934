package must_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/lab/must"
)

func TestAttempt(t *testing.T) {
	broken := errors.New("broken")
	do := func(err error, holds bool) (reached int, failed error) {
		failed = must.Attempt(func() {
			must.Do(err)

			reached = must.Get(1, nil)
			must.Hold(holds, "it is %t", holds)

			reached++
		})

		return reached, failed
	}

	reached, err := do(broken, true)
	require.ErrorIs(t, err, broken)
	require.Zero(t, reached)

	reached, err = do(nil, false)
	require.EqualError(t, err, "it is false")
	require.Equal(t, 1, reached)

	reached, err = do(nil, true)
	require.NoError(t, err)
	require.Equal(t, 2, reached)

	require.NoError(t, must.Attempt(func() { must.None[string]("nothing", nil) }))
	require.EqualError(t, must.Attempt(func() { must.None("bad things", []int{1, 2, 3, 4, 5, 6, 7}) }),
		"bad things: 7 times\n1\n2\n3\n4\n5")

	require.Panics(t, func() { _ = must.Attempt(func() { panic("a bug") }) })
}

func TestUntil(t *testing.T) {
	looks := 0
	look := func(context.Context) {
		looks++
		must.Hold(looks == 3, "look %d of 3", looks)
	}
	require.NoError(t, must.Attempt(func() { must.Until(t.Context(), time.Minute, look) }))

	err := must.Attempt(func() { must.Until(t.Context(), 0, look) })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "s: look 4 of 3: ")

	broken := errors.New("broken")
	ctx, end := context.WithCancelCause(t.Context())
	end(broken)
	require.ErrorIs(t, must.Attempt(func() { must.Until(ctx, time.Minute, look) }), broken, "it does not wait any longer")
}

func TestMeanwhile(t *testing.T) {
	done, twice := 0, make(chan struct{})
	other := func(context.Context) {
		if done++; done == 2 {
			close(twice)
		}
	}
	require.NoError(t, must.Attempt(func() {
		must.Meanwhile(t.Context(), time.Millisecond, func(context.Context) { <-twice }, other)
	}))
	require.GreaterOrEqual(t, done, 2)

	broken := errors.New("broken")
	require.ErrorIs(t, must.Attempt(func() {
		must.Meanwhile(t.Context(), time.Minute, func(ctx context.Context) { must.Pause(ctx, time.Hour) },
			func(context.Context) { must.Do(broken) })
	}), broken, "it does not wait for the rest")
}
