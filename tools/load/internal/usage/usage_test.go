package usage

import (
	"context"
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
	require.Equal(t, map[string]Usage{"a": {CPU: 10, Memory: 20, PeakMemory: 70, Received: 30, Sent: 40}}, Difference(before, after))
}

func TestParse(t *testing.T) {
	var memory, bytes int64
	require.NoError(t, parse("Name:\tx\nVmRSS:\t  12 kB\nrchar: 7\n", map[string]*int64{"VmRSS:": &memory, "rchar:": &bytes}))
	require.EqualValues(t, 12<<10, memory)
	require.EqualValues(t, 7, bytes)
	require.ErrorContains(t, parse("VmRSS: 1 kB\n", map[string]*int64{"VmRSS:": &memory, "rchar:": &bytes}), "has 1 of 2 figures")
	require.ErrorContains(t, parse("VmRSS: x kB\n", map[string]*int64{"VmRSS:": &memory}), "VmRSS: is no number")
}

// TestLocal reads the usage of this process itself.
func TestLocal(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the accounting is read on Linux alone")
	}
	local := Local{Processes: func() map[string]int { return map[string]int{"self": os.Getpid()} }}
	before, err := local.Read(t.Context())
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
		after, err := local.Read(t.Context())
		return err == nil && Difference(before, after)["self"].CPU > work && Difference(before, after)["self"].Received > 0
	}, time.Minute, time.Millisecond)

	require.NoError(t, local.ResetPeaks(t.Context()))
	after, err := local.Read(t.Context())
	require.NoError(t, err)
	require.InDelta(t, float64(after["self"].Memory), float64(after["self"].PeakMemory), 16<<20, "the peak begins anew")
}

func TestLocalOfNobody(t *testing.T) {
	local := Local{Processes: func() map[string]int { return map[string]int{"nobody": math.MaxInt32} }}
	_, err := local.Read(t.Context())
	require.ErrorContains(t, err, "read what nobody uses")
	require.ErrorContains(t, local.ResetPeaks(t.Context()), "reset the peak of the memory of nobody")
}

func TestMetrics(t *testing.T) {
	memory := "4096"
	m := NewMetrics(func(context.Context) (map[string][]string, error) {
		one := "process_cpu_seconds_total 1.5\nprocess_resident_memory_bytes " + memory + "\nprocess_network_receive_bytes_total 7\n"
		return map[string][]string{"assigner": {one, one}}, nil
	})
	read := func() Usage {
		all, err := m.Read(t.Context())
		require.NoError(t, err)
		return all["assigner"]
	}
	require.Equal(t, Usage{CPU: 3 * time.Second, Memory: 8192, PeakMemory: 8192, Received: 14}, read())
	memory = "1000"
	require.Equal(t, Usage{CPU: 3 * time.Second, Memory: 2000, PeakMemory: 8192, Received: 14}, read())
	require.NoError(t, m.ResetPeaks(t.Context()))
	require.EqualValues(t, 2000, read().PeakMemory)
}
