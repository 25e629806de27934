package usage

import (
	"math"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLocal reads the usage of this process itself.
func TestLocal(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the accounting is read on Linux alone")
	}

	local := Reader(func() map[string]int { return map[string]int{"self": os.Getpid()} })
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

		used := Difference(before, after)["self"]

		return err == nil && used.CPU > work && used.Received > 0 && used.Memory == after["self"].Memory
	}, time.Minute, time.Millisecond)
}
