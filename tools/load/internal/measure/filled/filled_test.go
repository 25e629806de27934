package filled

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestTimesOfTheFirstTheMarkedAndTheLastObject(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	now := times{clock: clock, marked: 2}

	for i := range 3 {
		clock.SetTime(time.Unix(int64(i)+1, 0))
		now.add()
	}
	require.Equal(t, times{
		clock: clock, marked: 2, seen: 3, first: time.Unix(1, 0), mark: time.Unix(2, 0), last: time.Unix(3, 0),
	}, now)
}

func TestOneAfterTheOtherTakesTheSum(t *testing.T) {
	c := Cost{Moved: 6, Rate: 30, APIServer: 1, Rebalancer: 2, First: 0.5, Mark: 1}
	require.Equal(t, Cost{Moved: 6, Rate: 10, APIServer: 3, Rebalancer: 5, First: 1, Mark: 3},
		c.Plus(Cost{Moved: 6, Rate: 15, APIServer: 2, Rebalancer: 3, First: 0.5, Mark: 2}))
}
