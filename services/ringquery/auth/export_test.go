package auth

import (
	"testing"
	"time"
)

// LongReviews gives the API server an hour for each answer until the test ends, so that a slow machine ends no request
// of the test.
func LongReviews(t *testing.T) {
	t.Helper()

	before := answersWithin.Swap(int64(time.Hour))
	t.Cleanup(func() { answersWithin.Store(before) })
}
