package api

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// Keys are counted one by one up to a limit. Objects are counted beyond it.
func TestKeysAreLimited(t *testing.T) {
	table := hashring.New([]string{"a", "b"})
	l := newLoads(func(string) *hashring.Table { return table })
	tenant := func(i int) rings.Key {
		return rings.Key{Key: key.OfLabel("tenant", fmt.Sprint(i)), Rule: key.Rule{Label: "tenant"}}
	}

	sums := func() (objects, keys int64) {
		for _, load := range l.of {
			objects, keys = objects+load.GetObjects(), keys+load.GetKeys()
		}

		return objects, keys
	}

	for i := range maxKeys {
		l.add(tenant(i))
	}

	l.add(tenant(7))
	require.False(t, l.limited)

	objects, keys := sums()
	require.EqualValues(t, maxKeys+1, objects)
	require.EqualValues(t, maxKeys, keys)

	l.add(tenant(maxKeys))
	l.add(rings.Key{Key: key.Key{Kind: "ConfigMap", Name: "by-name"}})
	require.True(t, l.limited)
	require.Len(t, l.keys, maxKeys)

	objects, keys = sums()
	require.EqualValues(t, maxKeys+3, objects)
	require.EqualValues(t, maxKeys+1, keys)

	owner, _ := table.Owner(tenant(7).Hash())
	require.EqualValues(t, 2, l.of[owner].GetLargestKeyObjects())
	require.Equal(t, "7", l.of[owner].GetLargestKey().GetName())
}
