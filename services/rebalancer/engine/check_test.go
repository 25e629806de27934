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
	for name, corrupt := range map[string]func(s *state){
		"1: verified while a pass has to look": func(s *state) {
			s.passes.looks = []*look{{verified: true,
				owed: true}}
		},
		"2: what is due is not looked at": func(s *state) {
			o := feed.Object{ID: feed.ID{Name: "o"}}
			s.table.See(s.clock.Now(), o, false)
			s.table.Take(s.clock.Now())
			s.table.Report(s.clock.Now(), o.ID, work.Outcome{Object: &o, Event: work.Failed})
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := New(Config{Ring: "ring", Clock: clock.RealClock{}, Limits: Limits{Workers: 1}})
			require.NotPanics(t, func() { e.update(func(time.Time) {}) })

			corrupt(e.state)
			require.Panics(t, e.check)
		})
	}
}
