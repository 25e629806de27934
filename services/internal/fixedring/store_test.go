package fixedring

import (
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/status"
)

func TestMain(m *testing.M) {
	code := m.Run()

	if err := goleak.Find(); err != nil {
		panic(err)
	}

	os.Exit(code)
}

var spec = v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Resource: "configmaps"}}}

func newStore(t *testing.T) (*Store, *[]string) {
	t.Helper()

	var lines []string

	return New("ring", spec, funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})), &lines
}

// TestStatusIsMadeOfParts: each service replaces its part, and none that of another.
func TestStatusIsMadeOfParts(t *testing.T) {
	s, lines := newStore(t)
	c := s.Client(nothing{})
	now := testclock.NewFakePassiveClock(time.Unix(1_000_000_000, 0))
	monitor := status.Writer{Client: c, Owner: "leasemonitor", Clock: now}
	rebalancer := status.Writer{Client: c, Owner: "rebalancer", Clock: now}
	condition := func(kind string, is metav1.ConditionStatus) []metav1.Condition {
		return []metav1.Condition{{Type: kind, Status: is, Reason: "Because", Message: "of it"}}
	}

	require.NoError(t, monitor.Write(t.Context(), s.Ring(), status.Part{
		Shards: new(int32(3)), Holders: []v1alpha1.ShardHolder{{Shard: "a", Pod: "b"}}, Conditions: condition("Ready", metav1.ConditionFalse),
	}))
	require.NoError(t, rebalancer.Write(t.Context(), s.Ring(), status.Part{
		Assignment: &v1alpha1.AssignmentStatus{Fingerprint: "f", LostShards: []string{"a"}}, Conditions: condition("Assigned", metav1.ConditionTrue),
	}))
	require.NoError(t, monitor.Write(t.Context(), s.Ring(), status.Part{
		Shards: new(int32(2)), Holders: []v1alpha1.ShardHolder{}, Conditions: condition("Ready", metav1.ConditionTrue),
	}))

	got := s.Ring().Status
	require.EqualValues(t, 2, got.Shards)
	require.Empty(t, got.Holders)
	require.Equal(t, &v1alpha1.AssignmentStatus{Fingerprint: "f", LostShards: []string{"a"}}, got.Assignment)
	require.True(t, meta.IsStatusConditionTrue(got.Conditions, "Ready"))
	require.True(t, meta.IsStatusConditionTrue(got.Conditions, "Assigned"))
	require.Len(t, *lines, 3, "each condition that changed is logged")

	before := s.Ring().ResourceVersion
	require.NoError(t, monitor.Write(t.Context(), s.Ring(), status.Part{
		Shards: new(int32(2)), Holders: []v1alpha1.ShardHolder{}, Conditions: condition("Ready", metav1.ConditionTrue),
	}))
	require.Equal(t, before, s.Ring().ResourceVersion)
}

// nothing is a client of an API server that is never asked.
type nothing struct{ client.Client }

func (nothing) Status() client.SubResourceWriter { return nil }

// TestWritesAreConditional: like an update with a resource version.
func TestWritesAreConditional(t *testing.T) {
	s, _ := newStore(t)
	c := s.Client(nothing{})
	old, ring := s.Ring(), s.Ring()

	ring.Finalizers = []string{"f"}
	require.NoError(t, c.Patch(t.Context(), ring, client.Merge))
	require.Equal(t, s.Ring(), ring)

	old.Finalizers = []string{"g"}
	require.True(t, apierrors.IsConflict(c.Patch(t.Context(), old, client.Merge)))
	require.Equal(t, []string{"f"}, s.Ring().Finalizers)

	old.Name = "another"
	require.True(t, apierrors.IsNotFound(c.Patch(t.Context(), old, client.Merge)))
	require.True(t, apierrors.IsNotFound(s.Reader(nil).Get(t.Context(), client.ObjectKey{Name: "another"}, old)))
	require.NoError(t, s.Reader(nil).Get(t.Context(), client.ObjectKey{Name: "ring"}, old))
	require.Equal(t, s.Ring(), old)
}

// TestWatch shows the state from when it begins, and every last state.
func TestWatch(t *testing.T) {
	s, _ := newStore(t)
	w, err := s.Watch(metav1.ListOptions{})
	require.NoError(t, err)

	next := func() *v1alpha1.ClusterRing {
		e := <-w.ResultChan()
		require.Equal(t, watch.Modified, e.Type)

		ring, ok := e.Object.(*v1alpha1.ClusterRing)
		require.True(t, ok)

		return ring
	}
	require.Equal(t, s.Ring(), next())

	for range 10 {
		require.NoError(t, s.setMeta(s.Ring()))
	}

	for next().ResourceVersion != s.Ring().ResourceVersion { //nolint:revive // the body is the condition
	}

	w.Stop()
	w.Stop()

	for range w.ResultChan() {
	}
	require.NoError(t, s.setMeta(s.Ring()))
}

func TestMapper(t *testing.T) {
	gk := v1alpha1.GroupVersion.WithKind("ClusterRing").GroupKind()
	m := Mapper(meta.NewDefaultRESTMapper(nil))

	mapping, err := m.RESTMapping(gk, v1alpha1.GroupVersion.Version)
	require.NoError(t, err)
	require.Equal(t, "clusterrings", mapping.Resource.Resource)
	require.Equal(t, meta.RESTScopeNameRoot, mapping.Scope.Name())

	_, err = m.RESTMapping(schema.GroupKind{Kind: "Pod"})
	require.True(t, meta.IsNoMatchError(err))
}
