package rest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/load/internal/target"
)

func TestRowsCompareManyObjectsWithNone(t *testing.T) {
	of := func(samples ...sample) (windows []window) {
		for _, s := range samples {
			windows = append(windows, window{
				target.Assigner: s, target.APIServer: {cpu: 100, memory: 100, requests: 100},
			})
		}

		return windows
	}
	none := of(sample{cpu: 1, memory: 3, requests: 4}, sample{cpu: 2, memory: 3, requests: 4})
	many := of(sample{cpu: 1, memory: 4, requests: 4}, sample{cpu: 2, memory: 4, requests: 4})
	met := map[string]bool{}

	for _, row := range restRows("100 objects", 100, many, none) {
		require.NoError(t, row.Check())
		require.Contains(t, row.Title, "the services at rest with 100 objects: ")
		require.Contains(t, row.Notes[0], "With 100: apiserver 100.00 ms/s")
		met[row.ID] = row.Met()
	}
	require.Equal(t, map[string]bool{"many-rest-cpu": true, "many-rest-memory": false}, met,
		"without the API server")
}
