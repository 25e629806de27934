package machine

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	m := of("processor\t: 0\nmodel name\t: Fast CPU @ 2 GHz\nprocessor\t: 1\nmodel name\t: Other\n", "MemTotal:       24000 kB\nMemFree: 1 kB\n", "6.1\n")
	require.Equal(t, "Fast CPU @ 2 GHz", m.CPU)
	require.EqualValues(t, 24000<<10, m.MemoryBytes)
	require.Equal(t, runtime.GOOS+" 6.1", m.OS)
	require.Positive(t, m.Cores)

	m = of("", "", "")
	require.Equal(t, runtime.GOARCH, m.CPU)
	require.Zero(t, m.MemoryBytes)
	require.Equal(t, runtime.GOOS, m.OS)
}
