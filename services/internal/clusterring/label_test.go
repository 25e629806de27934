package clusterring

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

func ringOf(name, label string, second int64) v1alpha1.ClusterRing {
	return v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(second, 0)}, Spec: v1alpha1.ClusterRingSpec{ShardLabel: label},
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

// One ring of each label may use it, whatever rings there are.
func TestOneHolderPerLabel(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))

	for range 200 {
		all := make([]v1alpha1.ClusterRing, 0, 12)
		for i := range 12 {
			all = append(all, ringOf(string(rune('a'+i)), []string{"", "x/1", "x/2", "x/3"}[r.IntN(4)], r.Int64N(3)))
		}

		free, labels := map[string]int{}, map[string]int{}

		for i := range all {
			labels[all[i].Spec.ShardLabel]++

			if Older(&all[i], all) == "" {
				free[all[i].Spec.ShardLabel]++
			}
		}

		for label, rings := range labels {
			if label != "" {
				rings = 1
			}

			require.Equal(t, rings, free[label], label)
		}
	}
}

func TestMessage(t *testing.T) {
	c := LabelInUseCondition(v1alpha1.ConditionReady, new(ringOf("b", "x/1", 1)), "a")
	require.Equal(t, v1alpha1.ReasonShardLabelInUse, c.Reason)
	require.Equal(t, "ring a, which is older, uses the same spec.shardLabel x/1, so no service acts for this ring: delete this ring and create it "+
		"with another shardLabel, or delete ring a", c.Message)
}

// Names that are longer than what the suffix contains can be searched.
func TestCollidingNames(t *testing.T) {
	older, younger := ringOf("colliding-rings-of-a-very-long-name-abcdef-727", "", 1), ringOf("colliding-rings-of-a-very-long-name-abcdef-27184", "", 2)
	all := []v1alpha1.ClusterRing{older, younger, ringOf(older.Name[:wholeName], "", 0)}

	require.Equal(t, older.LabelKeys(), younger.LabelKeys())
	require.Equal(t, older.Name, Older(&younger, all))
	require.Empty(t, Older(&older, all))
	require.Equal(t, "ring "+older.Name+", which is older, has the same suffix clusterring-2d8ad6a8-colliding-rings-of-a-very-long-name-abcdef of labels and names, "+
		"so no service acts for this ring: delete this ring and create it with another name, or delete ring "+older.Name, LabelInUse(&younger, older.Name))

	// Its webhook and its fence would have the names of the other's.
	younger.Spec.ShardLabel = "x/1"
	require.Equal(t, older.Name, Older(&younger, all))

	require.True(t, mayCollide(&younger))
	require.True(t, strings.HasSuffix(contract.RingSuffix(older.Name[:wholeName]), "-"+older.Name[:wholeName]), "a name of this length is whole")
	require.False(t, strings.HasSuffix(contract.RingSuffix(older.Name[:wholeName]+"x"), "x"))
	require.False(t, mayCollide(&all[2]))
}
