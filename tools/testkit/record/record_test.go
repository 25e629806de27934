package record_test

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, nil)) }

const (
	ring     = "recorded"
	patience = 20 * time.Second
)

var labels = record.Labels{Shard: "shard.example.org/ring", Drain: "drain.example.org/ring"}

func TestRecorder(t *testing.T) {
	plane := localplane.Shared(t)
	require.NoError(t, plane.Install(t.Context(), "deploy/example/crd"))
	ns := plane.Namespace(t)
	began := record.Now()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := record.Start(ctx, plane.Config, record.Options{Ring: ring, Labels: labels, LeaseNamespace: ns,
		Objects: []record.Objects{{Kind: check.Website, Namespace: ns}, {Kind: check.ConfigMap, Namespace: ns}}})
	require.NoError(t, err)
	t.Cleanup(func() { cancel(); r.Wait() })

	c := plane.Client
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a",
			Labels: map[string]string{"alpha.sharding.timebertt.dev/clusterring": ring}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("a"), LeaseDurationSeconds: new(int32(2))},
	}
	require.NoError(t, c.Create(ctx, lease))
	lease.Spec.RenewTime = new(metav1.NowMicro())
	require.NoError(t, c.Update(ctx, lease), "a renewal is no version")

	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "X", Name: "x", UID: "owner", Controller: new(true)}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: ns, Name: "cm", Labels: map[string]string{labels.Shard: "a"},
		OwnerReferences: []metav1.OwnerReference{owner},
	}}
	require.NoError(t, c.Create(ctx, cm))
	cm.Labels[labels.Drain] = ""
	require.NoError(t, c.Update(ctx, cm))
	cm.Labels = nil
	require.NoError(t, c.Update(ctx, cm))
	require.NoError(t, c.Delete(ctx, cm))

	require.Eventually(t, func() bool {
		versions, err := r.Versions()
		renewed := slices.ContainsFunc(versions,
			func(v check.Version) bool { return v.Renewed.Equal(lease.Spec.RenewTime.Time) })

		return err == nil && len(versions) == 5 && renewed
	}, patience, time.Millisecond)

	versions, err := r.Versions()
	require.NoError(t, err)

	var got []check.Version

	for _, v := range versions {
		require.NotZero(t, v.Number)
		require.NotEmpty(t, v.UID)
		require.Greater(t, v.At, began)
		v.Number, v.UID, v.At, v.Namespace, v.Renewed = 0, "", 0, "", time.Time{}
		got = append(got, v)
	}

	want := check.Version{Kind: check.ConfigMap, Name: "cm", Owner: "owner"}
	at, draining, deleted := want, want, want
	at.Shard, draining.Shard, draining.Draining, deleted.Deleted = "a", "a", true, true
	require.ElementsMatch(t, []check.Version{
		{Kind: check.Lease, Name: "a", Holder: "a", Duration: 2 * time.Second}, at, draining, want, deleted,
	}, got)
	require.Len(t, r.Newest(), 2)
}

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
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name,
			Labels: map[string]string{"name": name}}}
	}
	a, b := configMap("a"), configMap("b")
	require.NoError(t, plane.Client.Create(t.Context(), a))

	ctx, cancel := context.WithCancel(t.Context())

	var all, some seen

	fail := func(err error) { t.Error(err) }
	waitAll, err := record.Follow(ctx,
		ofMetadata.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(ns), "",
		record.Observer[*metav1.PartialObjectMetadata]{
			See: func(e watch.EventType, o *metav1.PartialObjectMetadata) { all.add(e, o) }, Fail: fail,
		})
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
