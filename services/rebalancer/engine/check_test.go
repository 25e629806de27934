//go:build invariants

package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

// The next change detects a violated invariant.
func TestCorruptEnginePanics(t *testing.T) {
	e := New(Config{Ring: "ring", Clock: clock.RealClock{}, Limits: Limits{Workers: 1}})
	require.NotPanics(t, func() { e.update(func(time.Time) {}) })

	e.looks = []*look{{verified: true, owed: true}} // a pass has to look
	require.Panics(t, func() { e.update(func(time.Time) {}) })
}
