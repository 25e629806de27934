package record_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// seen is what an observer was told.
type seen struct {
	mu     sync.Mutex
	events []string
}

func (s *seen) add(event watch.EventType, object metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.events = append(s.events, string(event)+" "+object.GetName())
}

func (s *seen) are(events ...string) func() bool {
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()

		if len(s.events) != len(events) {
			return false
		}

		for i := range events {
			if s.events[i] != events[i] {
				return false
			}
		}

		return true
	}
}

// TestFollow follows one resource by two kinds of clients, one of them with a selector.
func TestFollow(t *testing.T) {
	plane := localplane.Shared(t)
	ns := plane.Namespace(t)
	typed, err := kubernetes.NewForConfig(plane.Config)
	require.NoError(t, err)
	ofMetadata, err := metadata.NewForConfig(plane.Config)
	require.NoError(t, err)

	configMap := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{"name": name}}}
	}
	a, b := configMap("a"), configMap("b")
	require.NoError(t, plane.Client.Create(t.Context(), a))

	ctx, cancel := context.WithCancel(t.Context())

	var all, some seen

	fail := func(err error) { t.Error(err) }
	waitAll, err := record.Follow(ctx, ofMetadata.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(ns), "",
		record.Observer[*metav1.PartialObjectMetadata]{See: func(e watch.EventType, o *metav1.PartialObjectMetadata) { all.add(e, o) }, Fail: fail})
	require.NoError(t, err)
	waitSome, err := record.Follow(ctx, typed.CoreV1().ConfigMaps(ns), "name=b",
		record.Observer[*corev1.ConfigMap]{See: func(e watch.EventType, o *corev1.ConfigMap) { some.add(e, o) }, Fail: fail})
	require.NoError(t, err)
	t.Cleanup(func() { cancel(); waitAll(); waitSome() })

	require.NoError(t, plane.Client.Create(t.Context(), b))
	require.NoError(t, plane.Client.Delete(t.Context(), a))

	b.Data = map[string]string{"x": "y"}
	require.NoError(t, plane.Client.Update(t.Context(), b))
	require.Eventually(t, all.are("ADDED a", "ADDED b", "DELETED a", "MODIFIED b"), patience, time.Millisecond)
	require.Eventually(t, some.are("ADDED b", "MODIFIED b"), patience, time.Millisecond)
}
