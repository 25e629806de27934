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

func TestAwait(t *testing.T) {
	looks := 0
	look := func(context.Context) string {
		if looks++; looks < 3 {
			return "something"
		}

		return ""
	}
	require.NoError(t, must.Attempt(func() { must.Await(t.Context(), time.Minute, look) }))
	require.Equal(t, 3, looks)

	err := must.Attempt(func() { must.Await(t.Context(), 0, func(context.Context) string { return "all" }) })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "s: all: ")

	broken := errors.New("broken")
	err = must.Attempt(func() {
		must.Await(t.Context(), time.Minute, func(context.Context) string {
			must.Do(broken)
			return ""
		})
	})
	require.ErrorIs(t, err, broken, "it does not wait any longer")
}
