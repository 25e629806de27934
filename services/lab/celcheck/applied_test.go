package celcheck_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// managed returns managed fields of another writer with as many fields as given, and an entry of the rebalancer with these fields.
func managed(count int, metadata map[string]any) []any {
	data := map[string]any{}
	for i := range count {
		data[fmt.Sprintf("f:%040d", i)] = map[string]any{}
	}

	return []any{
		map[string]any{"manager": "kubectl", "operation": "Update", "apiVersion": "example.com/v1", "fieldsV1": map[string]any{"f:spec": data}},
		map[string]any{"manager": "rebalancer-r", "operation": "Apply", "apiVersion": "example.com/v1", "fieldsV1": map[string]any{"f:metadata": metadata}},
	}
}

// An object may be large in every way if admission changes it in the same write.
func TestLargeObjectsMoveThatAdmissionChanges(t *testing.T) {
	policy := compilePolicy(t, rebalancerPolicy(t))
	fields := map[string]any{
		"f:labels":      map[string]any{"f:" + shardLabel: map[string]any{}},
		"f:annotations": map[string]any{"f:" + handover: map[string]any{}},
	}

	for name, large := range map[string][]func(map[string]any){
		"small":          {},
		"managed fields": {set(managed(4500, fields), "metadata", "managedFields")},
		"labels":         {set(numbered(3000), "metadata", "labels")},
		"annotations":    {set(numbered(3000), "metadata", "annotations")},
		"map":            {set(numbered(35_000), "spec", "map")},
		"text":           {set(strings.Repeat("x", 900_000), "spec", "text")},
	} {
		change := append(append([]func(map[string]any){}, large...), set("shard-1", "metadata", "labels", shardLabel), set("{}", "metadata", "annotations", handover))
		if name != "managed fields" {
			change = append(change, set(managed(1, fields), "metadata", "managedFields"))
		}

		mutated := append(append([]func(map[string]any){}, change...), set("v2", "spec", "defaulted"), set("rebalancer", "metadata", "annotations", "stamp"))

		old := website(append(large, set(managed(1, map[string]any{}), "metadata", "managedFields"))...)
		matches, refused, cost := policy.evaluate(t, update(website(mutated...), old))
		require.True(t, matches, name)
		require.Empty(t, refused, name)
		require.Less(t, cost, int64(celconfig.RuntimeCELCostBudget/2), name)
	}
}
