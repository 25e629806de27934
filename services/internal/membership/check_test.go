//go:build invariants

package membership

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

// What must not be is noticed by the next change.
func TestCorruptIndexPanics(t *testing.T) {
	a, b := types.NamespacedName{Namespace: "n", Name: "a"}, types.NamespacedName{Namespace: "n", Name: "b"}

	for name, corrupt := range map[string]func(x *Index){
		"1: a Lease is that of two rings":  func(x *Index) { x.leases[a] = "other" },
		"1: a Lease is that of no ring":    func(x *Index) { x.leases[b] = "ring" },
		"1: a ring without a Lease":        func(x *Index) { x.rings["other"] = &members{} },
		"2: a view is out of date":         func(x *Index) { x.rings["ring"].leases[a] = facts{holder: "somebody"} },
		"2: a view is that of another":     func(x *Index) { x.rings["ring"].view.ringName = "other" },
		"3: a ring waits for no batch":     func(x *Index) { x.batched["ring"] = true },
		"3: more batches ended than began": func(x *Index) { x.batches = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			x := NewIndex()
			x.put(a, "ring", facts{holder: "a"})
			require.Len(t, x.View("ring").Shards(), 1)
			require.NotPanics(t, x.changed)

			corrupt(x)
			require.Panics(t, x.changed)
		})
	}
}
