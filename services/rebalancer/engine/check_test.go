//go:build invariants

package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// The next change detects a violated invariant.
func TestCorruptEnginePanics(t *testing.T) {
	for name, corrupt := range map[string]func(e *Engine){
		"1: verified while a pass has to look": func(e *Engine) {
			e.passes.looks = []*look{{verified: true,
				owed: true}}
		},
		"2: what is due is not looked at": func(e *Engine) {
			e.running = true
			o := feed.Object{ID: feed.ID{Name: "o"}}
			e.table.See(e.Clock.Now(), o, false)
			e.table.Take(e.Clock.Now())
			e.table.Report(e.Clock.Now(), o.ID, work.Outcome{Object: &o, Event: work.Failed})
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := New(Config{Ring: "ring", Clock: clock.RealClock{}, Limits: Limits{Workers: 1}})
			require.NotPanics(t, func() { e.update(func(time.Time) {}) })

			corrupt(e)
			require.Panics(t, e.check)
		})
	}
}
