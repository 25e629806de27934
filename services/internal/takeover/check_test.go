//go:build invariants

package takeover

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	testclock "k8s.io/utils/clock/testing"
)

// What must not be is noticed by the next look at the Leases.
func TestCorruptGuardPanics(t *testing.T) {
	now := time.Unix(1_000_000_000, 0)

	for name, corrupt := range map[string]func(s *shard){
		"1: an answer is trusted too long": func(s *shard) {
			s.verdict, s.allowedTill = Verdict{Allowed: true, Until: now.Add(time.Hour)}, now.Add(time.Minute)
		},
		"2: a Lease is held by a shard of none": func(s *shard) { s.held, s.holders = false, map[string]holder{"n": {}} },
		"2: a shard holds an unknown Lease":     func(s *shard) { s.holders = nil },
		"4: objects are taken for too long": func(s *shard) {
			s.read, s.allowedTill = span{now, now},
				now.Add(time.Millisecond)
		},
		"5: nobody asks again": func(s *shard) { s.read = span{now, now} },
	} {
		t.Run(name, func(t *testing.T) {
			g := New("ring", nil, testclock.NewFakePassiveClock(now))
			s := g.shard("a")
			require.NotPanics(t, g.changed)

			corrupt(s)
			require.Panics(t, g.changed)
		})
	}
}
