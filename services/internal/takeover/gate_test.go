package takeover

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// silentReader does not answer.
type silentReader struct{ client.Reader }

func (silentReader) List(ctx context.Context, _ client.ObjectList, _ ...client.ListOption) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// A caller that shares the read of another waits no longer than its context allows.
func TestNobodyWaitsForTheReadOfAnotherBeyondItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New("ring", silentReader{}, clock.RealClock{})

		reads, end := context.WithCancel(t.Context())
		ended := make(chan struct{})

		go func() {
			defer close(ended)

			_, err := g.MayTake(reads, "a")
			assert.ErrorIs(t, err, context.Canceled)
		}()

		synctest.Wait()

		began := time.Now() //nolint:forbidigo // of the bubble

		waits, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		_, err := g.MayTake(waits, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(began)) //nolint:forbidigo // of the bubble

		end()
		<-ended
	})
}
