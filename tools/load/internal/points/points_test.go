package points

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPointsOutliveARun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out", "points.jsonl")
	key := Key{Experiment: "ramp", Sharder: "services", X: 3}

	f, err := Open(path, "v1")
	require.NoError(t, err)
	require.NoError(t, f.Add(Point{Key: key, Values: map[string]float64{"rate": 1}, Invalid: []string{"too late"}}))
	require.False(t, f.Has(key), "it is measured again")

	values, invalid := f.Of("ramp", "services", 3, "rate")
	require.Equal(t, []float64{1}, values, "for want of better ones")
	require.Equal(t, []string{"too late"}, invalid)

	second := key
	second.Round = 1
	require.NoError(t, f.Add(Point{Key: second, Values: map[string]float64{"rate": 3}}))
	require.NoError(t, f.Add(Point{Key: key, Values: map[string]float64{"rate": 2, "ideal": 4}}))

	// The next run is killed while it writes.
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // a file of the test
	require.NoError(t, err)
	_, err = file.WriteString("\n{\"Experiment\":\"ra")
	require.NoError(t, err)
	require.NoError(t, file.Close())

	again, err := Open(path, "v1")
	require.NoError(t, err)
	require.True(t, again.Has(key))

	values, invalid = again.Of("ramp", "services", 3, "rate")
	require.Equal(t, []float64{2, 3}, values)
	require.Empty(t, invalid)

	require.Equal(t, []int{3}, again.Xs("ramp", "services"))

	// It goes on behind what was cut off.
	second.Round = 2
	require.NoError(t, again.Add(Point{Key: second, Values: map[string]float64{"rate": 5}}))

	again, err = Open(path, "v1")
	require.NoError(t, err)
	require.True(t, again.Has(second))

	other, err := Open(path, "v2")
	require.NoError(t, err)
	require.False(t, other.Has(second), "another version may have other results")
}
