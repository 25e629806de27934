package cluster

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

func TestWhileImproving(t *testing.T) {
	for name, test := range map[string]struct {
		// left is how many are left after so many minutes; the last number stays.
		left []int
		// ends is when the wait ends, with a success if nothing is left.
		ends time.Duration
	}{
		"at once":               {left: []int{0}, ends: 0},
		"slow and steady":       {left: []int{9, 8, 7, 6, 5, 4, 3, 2, 1, 0}, ends: 9 * time.Minute},
		"no progress":           {left: []int{9}, ends: 2 * time.Minute},
		"no progress after all": {left: []int{9, 8, 7}, ends: 4 * time.Minute},
		"down after a rise":     {left: []int{1, 9, 8, 7, 6, 0}, ends: 5 * time.Minute},
		"neither down nor up":   {left: []int{9, 8, 9, 8, 9, 8, 9, 8, 9, 8, 9, 8, 9, 8}, ends: 11 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &Cluster{Clock: clock.RealClock{}}
				began := c.Clock.Now()

				err := c.WhileImproving(t.Context(), 2*time.Minute, func(context.Context) error {
					count := test.left[min(len(test.left)-1, int(c.Clock.Since(began)/time.Minute))]
					if count == 0 {
						return nil
					}

					return incompleteError{Count: count, Text: "some are left"}
				})
				require.InDelta(t, test.ends.Seconds(), c.Clock.Since(began).Seconds(), 1)
				require.Equal(t, test.left[min(len(test.left)-1, int(c.Clock.Since(began)/time.Minute))] == 0, err == nil, err)
			})
		})
	}
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, checks := &Cluster{Clock: clock.RealClock{}}, 0
		began := c.Clock.Now()

		err := c.Until(t.Context(), 55*time.Second, func(context.Context) error {
			checks++

			<-c.Clock.After(2 * time.Second)

			return errors.New("not yet")
		})
		require.ErrorContains(t, err, "after 55s: not yet")
		require.Equal(t, 57*time.Second, c.Clock.Since(began))
		require.Equal(t, 7, checks, "a slow check is repeated after four times as long, and once more at the end")
	})
}
