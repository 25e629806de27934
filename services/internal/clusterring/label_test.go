package clusterring

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func ringOf(name, label string, second int64) v1alpha1.ClusterRing {
	return v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(second, 0)},
		Spec:       v1alpha1.ClusterRingSpec{ShardLabel: label},
	}
}

func TestHolder(t *testing.T) {
	const label, other = "example.com/shard", "example.com/other"

	all := []v1alpha1.ClusterRing{
		ringOf("z-oldest", label, 10), ringOf("c", label, 20), ringOf("b", label, 20), ringOf("a-youngest", label, 30),
		ringOf("alone", other, 5), ringOf("default", "", 1), ringOf("another", "", 1),
	}
	all[0].DeletionTimestamp = new(metav1.Unix(40, 0)) // objects still carry its label

	want := map[string]string{
		"z-oldest": "", "b": "z-oldest", "c": "z-oldest", "a-youngest": "z-oldest", "alone": "", "default": "", "another": "",
	}
	check := func() {
		for i := range all {
			require.Equal(t, want[all[i].Name], Older(&all[i], all), all[i].Name)
		}
	}
	check()

	// The order does not matter, and whether a ring knows itself does not either.
	for seed := range uint64(20) {
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		check()
	}

	// When the oldest is gone, the next one may use the label. Of those that were created at the same time, the name
	// decides.
	all = slices.DeleteFunc(all, func(r v1alpha1.ClusterRing) bool { return r.Name == "z-oldest" })
	want["b"], want["c"], want["a-youngest"] = "", "b", "b"
	check()

	unseen := ringOf("a", label, 20)
	require.Empty(t, Older(&unseen, all))
	require.Equal(t, "b", Older(new(ringOf("d", label, 20)), all))
}

// Names that are longer than what the suffix contains can be searched.
func TestCollidingNames(t *testing.T) {
	older, younger := ringOf("colliding-rings-of-a-very-long-name-abcdef-727", "", 1),
		ringOf("colliding-rings-of-a-very-long-name-abcdef-27184", "", 2)
	all := []v1alpha1.ClusterRing{older, younger, ringOf(older.Name[:wholeName], "", 0)}

	require.Equal(t, older.LabelKeys(), younger.LabelKeys())
	require.Equal(t, older.Name, Older(&younger, all))
	require.Empty(t, Older(&older, all))
	require.Equal(t, "ring "+older.Name+", which is older, has the same suffix "+
		"clusterring-2d8ad6a8-colliding-rings-of-a-very-long-name-abcdef of labels and names, "+
		"so no service acts for this ring: delete this ring and create it with another name, or delete ring "+older.Name,
		LabelInUse(&younger, older.Name))

	// Its webhook and its fence would have the names of the other's.
	younger.Spec.ShardLabel = "x/1"
	require.Equal(t, older.Name, Older(&younger, all))

	require.True(t, mayCollide(&younger))
	require.True(t, strings.HasSuffix(contract.RingSuffix(older.Name[:wholeName]), "-"+older.Name[:wholeName]),
		"a name of this length is whole")
	require.False(t, strings.HasSuffix(contract.RingSuffix(older.Name[:wholeName]+"x"), "x"))
	require.False(t, mayCollide(&all[2]))
}

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

type world struct {
	*testing.T
	client client.Client
	clock  *clocktesting.FakePassiveClock
	ring   *v1alpha1.ClusterRing
}

func newWorld(t *testing.T) *world {
	t.Helper()

	w := &world{
		T: t, client: localplane.Shared(t).Client, clock: clocktesting.NewFakePassiveClock(time.Unix(1_000_000_000, 0)),
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

// Nothing is written when nothing changes, and the time of a transition moves with the status alone.
func TestStatusIsWrittenWhenItChanges(t *testing.T) {
	w := newWorld(t)
	part := StatusPart{Shards: new(int32(1)), AvailableShards: new(int32(1)),
		Conditions: []metav1.Condition{condition("Ready", metav1.ConditionTrue)}}
	c := &part.Conditions[0]
	ready := func() *metav1.Condition { return meta.FindStatusCondition(w.ring.Status.Conditions, "Ready") }

	w.write("one", part)
	version, first := w.ring.ResourceVersion, w.clock.Now()

	w.clock.SetTime(first.Add(time.Hour))
	w.write("one", part)
	require.Equal(t, version, w.ring.ResourceVersion)

	c.Message = strings.Repeat("ü", maxMessage) // longer than the API accepts
	w.write("one", part)
	require.LessOrEqual(t, len(ready().Message), maxMessage)
	require.Regexp(t, `ü\.\.\.$`, ready().Message)
	require.True(t, ready().LastTransitionTime.Time.Equal(first))

	c.Status = metav1.ConditionFalse
	w.write("one", part)
	require.True(t, ready().LastTransitionTime.Time.Equal(w.clock.Now()))
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
