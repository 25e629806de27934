package sweep

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/faults/stage"
)

func TestPlain(t *testing.T) {
	s := theSuite(t)
	s.run(t, 1, 1, stage.Case{Name: "no fault", Prepare: func(w *stage.World) {
		for _, m := range w.Members(false) {
			m.Proxy.Hook(nil)
		}
	}})
	require.False(t, t.Failed())
}
