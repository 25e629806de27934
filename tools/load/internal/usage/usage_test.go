package usage

import (
	"math"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDifference(t *testing.T) {
	before := map[string]Usage{"a": {CPU: 1, Memory: 50, PeakMemory: 60, Received: 3, Sent: 4}, "gone": {CPU: 1}}
	after := map[string]Usage{"a": {CPU: 11, Memory: 20, PeakMemory: 70, Received: 33, Sent: 44}, "new": {CPU: 1}}
	require.Equal(t, map[string]Usage{"a": {CPU: 10, Memory: 20, PeakMemory: 70, Received: 30, Sent: 40}},
		Difference(before, after))
}

// TestLocal reads the usage of this process itself.
func TestLocal(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the accounting is read on Linux alone")
	}

	local := Reader{Processes: func() map[string]int { return map[string]int{"self": os.Getpid()} }}
	before, err := local.Read()
	require.NoError(t, err)
	require.Positive(t, before["self"].CPU)
	require.Positive(t, before["self"].Memory)
	require.GreaterOrEqual(t, before["self"].PeakMemory, before["self"].Memory)

	const work = 30 * time.Millisecond

	hole := make([]byte, 1<<20)
	require.Eventually(t, func() bool {
		for i := range hole {
			hole[i] = byte(math.Sqrt(float64(i)))
		}

		after, err := local.Read()

		return err == nil && Difference(before, after)["self"].CPU > work && Difference(before, after)["self"].Received > 0
	}, time.Minute, time.Millisecond)
}
