package clusterring

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

type world struct {
	*testing.T
	client client.Client
	clock  *testclock.FakePassiveClock
	ring   *v1alpha1.ClusterRing
}

func newWorld(t *testing.T) *world {
	t.Helper()

	w := &world{
		T: t, client: localplane.Shared(t).Client, clock: testclock.NewFakePassiveClock(time.Unix(1_000_000_000, 0)),
		ring: &v1alpha1.ClusterRing{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "status-"},
			Spec:       v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Resource: "configmaps"}}},
		},
	}
	require.NoError(t, w.client.Create(t.Context(), w.ring))

	return w
}

func (w *world) write(owner string, p StatusPart) {
	w.Helper()
	require.NoError(w, StatusWriter{Client: w.client, Owner: owner, Clock: w.clock}.Write(w.Context(), w.ring, p))
	require.NoError(w, w.client.Get(w.Context(), client.ObjectKeyFromObject(w.ring), w.ring))
}

func condition(kind string, status metav1.ConditionStatus) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: "Because", Message: "of this"}
}

func TestServicesShareOneStatus(t *testing.T) {
	w := newWorld(t)

	w.write("one", StatusPart{
		ObservedGeneration: new(int64(1)), Shards: new(int32(3)), AvailableShards: new(int32(2)),
		Conditions: []metav1.Condition{condition("Ready", metav1.ConditionTrue)},
	})
	w.write("two", StatusPart{
		Assignment: &v1alpha1.AssignmentStatus{Fingerprint: "abc", Unassigned: 5},
		Conditions: []metav1.Condition{condition("Assigned", metav1.ConditionFalse)},
	})
	w.write("one", StatusPart{
		ObservedGeneration: new(int64(1)), Shards: new(int32(4)), AvailableShards: new(int32(0)),
		Conditions: []metav1.Condition{condition("Ready", metav1.ConditionFalse)},
	})

	got := w.ring.Status
	require.EqualValues(t, 1, got.ObservedGeneration)
	require.EqualValues(t, 4, got.Shards)
	require.Zero(t, got.AvailableShards)
	require.Equal(t, &v1alpha1.AssignmentStatus{Fingerprint: "abc", Unassigned: 5}, got.Assignment)
	require.True(t, meta.IsStatusConditionFalse(got.Conditions, "Ready"))
	require.True(t, meta.IsStatusConditionFalse(got.Conditions, "Assigned"))
}

func TestNothingIsWrittenWhenNothingChanges(t *testing.T) {
	w := newWorld(t)
	part := StatusPart{Shards: new(int32(1)), AvailableShards: new(int32(1)), Conditions: []metav1.Condition{condition("Ready", metav1.ConditionTrue)}}

	w.write("one", part)
	version := w.ring.ResourceVersion

	w.clock.SetTime(w.clock.Now().Add(time.Hour))
	w.write("one", part)
	require.Equal(t, version, w.ring.ResourceVersion)
}

func TestTransitionTimeMovesWithTheStatusAlone(t *testing.T) {
	w := newWorld(t)
	c := condition("Ready", metav1.ConditionTrue)

	w.write("one", StatusPart{Conditions: []metav1.Condition{c}})

	first := w.clock.Now()
	w.clock.SetTime(first.Add(time.Hour))

	c.Message = "of that"
	w.write("one", StatusPart{Conditions: []metav1.Condition{c}})

	got := meta.FindStatusCondition(w.ring.Status.Conditions, "Ready")
	require.Equal(t, "of that", got.Message)
	require.True(t, got.LastTransitionTime.Time.Equal(first))

	c.Status = metav1.ConditionFalse
	w.write("one", StatusPart{Conditions: []metav1.Condition{c}})

	got = meta.FindStatusCondition(w.ring.Status.Conditions, "Ready")
	require.True(t, got.LastTransitionTime.Time.Equal(w.clock.Now()))
}

func TestRingThatIsGone(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.client.Delete(t.Context(), w.ring))

	writer := StatusWriter{Client: w.client, Owner: "one", Clock: w.clock}
	require.NoError(t, writer.Write(t.Context(), w.ring, StatusPart{Shards: new(int32(1))}))
}

func TestLongMessageIsCut(t *testing.T) {
	w := newWorld(t)
	c := condition("Ready", metav1.ConditionTrue)
	c.Message = strings.Repeat("ü", maxMessage)

	w.write("one", StatusPart{Conditions: []metav1.Condition{c}})

	got := meta.FindStatusCondition(w.ring.Status.Conditions, "Ready").Message
	require.LessOrEqual(t, len(got), maxMessage)
	require.Regexp(t, `ü\.\.\.$`, got)
}

// A status that was computed for a deleted ring does not land on another ring of the same name.
func TestStatusOfDeletedRingDoesNotLandOnItsSuccessor(t *testing.T) {
	w := newWorld(t)
	late := w.ring.DeepCopy()
	writer := StatusWriter{Client: w.client, Owner: "one", Clock: w.clock}
	part := StatusPart{Shards: new(int32(3)), Conditions: []metav1.Condition{condition("Ready", metav1.ConditionTrue)}}

	others := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`))
	require.NoError(t, w.client.Patch(t.Context(), w.ring, others))
	require.NoError(t, writer.Write(t.Context(), late, part), "others may write to the ring at the same time")

	require.NoError(t, w.client.Delete(t.Context(), w.ring))
	require.NoError(t, writer.Write(t.Context(), late, part))

	successor := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: late.Name}, Spec: late.Spec}
	require.NoError(t, w.client.Create(t.Context(), successor))
	require.True(t, apierrors.IsConflict(writer.Write(t.Context(), late, part)))
	require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(successor), successor))
	require.Empty(t, successor.Status)
	require.NoError(t, writer.Write(t.Context(), successor, part))
}
