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
