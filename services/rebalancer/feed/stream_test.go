package feed

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// sink records the calls of a stream.
type sink struct{ said chan string }

func (s sink) Begin() { s.said <- "begin" }
func (s sink) Present(_ context.Context, o Object) {
	s.said <- "present " + o.Name + " " + o.Shard
}
func (s sink) Gone(id ID, _ string) { s.said <- "gone " + id.Name }
func (s sink) Listed()              { s.said <- "listed" }

func (s sink) Failed(err error) {
	if err != nil {
		s.said <- "failed"
	}
}

func (s sink) expect(t *testing.T, want ...string) {
	t.Helper()

	for _, w := range want {
		require.Equal(t, w, <-s.said) // if nothing comes, the timeout of the test run shows where
	}
}

func TestStream(t *testing.T) {
	w := newNamespace(t)
	label := func(shard string) map[string]string { return map[string]string{contract.ShardLabel(ring): shard} }

	w.create("at-one", label("one"))
	cm := w.create("at-two", label("two"))

	s := sink{said: make(chan string)}
	stream := NewStream(w.c, Scope{GVR: configMaps, Namespace: w.ns, Selector: contract.ShardLabel(ring) + " notin (one)"}, s, clock.RealClock{})

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})

	go func() {
		defer close(ended)
		stream.Run(ctx)
	}()

	s.expect(t, "begin", "present at-two two", "listed")

	w.create("unlabelled", nil)
	s.expect(t, "present unlabelled ")

	cm.Labels = label("one")
	require.NoError(t, w.plain.Update(t.Context(), cm))
	s.expect(t, "gone at-two")

	cancel()
	<-ended
}

func TestStreamReportsFailureAndGoesOn(t *testing.T) {
	w := newNamespace(t)
	s := sink{said: make(chan string)}
	stream := NewStream(w.c, Scope{GVR: corev1.SchemeGroupVersion.WithResource("ghosts")}, s, clock.RealClock{})

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})

	go func() {
		defer close(ended)
		stream.Run(ctx)
	}()

	s.expect(t, "begin", "failed", "begin", "failed")

	go func() {
		for range s.said { // let it finish
		}
	}()

	cancel()
	<-ended
	close(s.said)
}
