package engine

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// A sweep may take long. Objects whose shard is dead shall not wait for it.
func TestSweepLetsUrgentWorkGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gvr := schema.GroupVersionResource{Version: "v1", Resource: "rs"}
		e := New(Config{Clock: clock.RealClock{}})
		t.Cleanup(e.queue.ShutDown)

		sink := astraySink{e, resources.Resource{GVR: gvr}}
		o := objects.Object{ID: objects.ID{GVR: gvr, Name: "a"}}
		began := time.Now() //nolint:forbidigo // that of the bubble
		waits := func() func() bool {
			over := make(chan struct{})

			go func() {
				defer close(over)
				e.awaitUrgent(t.Context())
			}()

			return func() bool {
				synctest.Wait()

				select {
				case <-over:
					return true
				default:
					return false
				}
			}
		}

		e.state.unlisted[gvr] = struct{}{}
		over := waits()
		require.False(t, over(), "what is urgent is not known yet")
		e.submit(t.Context(), o)
		sink.Listed()
		require.False(t, over(), "an object has no shard")
		e.state.block(o.ID, "waits")
		require.True(t, over(), "nothing can be done about it now")

		e.state.unlisted[gvr] = struct{}{}
		over = waits()
		require.False(t, over())
		sink.Failed(errors.New("forbidden"))
		require.True(t, over(), "nobody knows when it can be listed")
		require.Zero(t, time.Since(began)) //nolint:forbidigo // as above

		e.state.unlisted[gvr] = struct{}{}
		e.awaitUrgent(t.Context())
		require.Equal(t, urgentFirst, time.Since(began), "others wait, too") //nolint:forbidigo // as above
	})
}
