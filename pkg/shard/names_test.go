package shard

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

const ownLabel = "cloudapi.team-orca.dev/shard"

// namedOptions are the options of a Pod in a ring with a label of its own that takes one of the names.
func (f *fixture) namedOptions(pod string, names ...string) Options {
	o := f.slotOptions(pod, 0)
	o.Slots, o.ShardLabel = Named(names...), ownLabel

	return o
}

// TestNamedShards: of two processes with one name, the second one waits until the first one stops, and works on the same objects.
func TestNamedShards(t *testing.T) {
	f := newFixture(t)

	first := f.claim(f.namedOptions("pod-a", "blue", "green")).got()
	require.Equal(t, "blue", first.Name())

	other := f.claim(f.namedOptions("pod-b", "blue", "green")).got()
	require.Equal(t, "green", other.Name())

	var worked, next atomic.Int64

	process := f.runs(first, func(string) { worked.Add(1) })
	f.runs(other, ignore)

	cm := &corev1.ConfigMap{ObjectMeta: f.meta(nil, "object")}
	cm.Labels = map[string]string{ownLabel: "blue"}
	require.NoError(t, f.admin.Create(t.Context(), cm))
	f.eventually("it works on its object", func() bool { return worked.Load() > 0 })

	lease := f.lease(first)
	require.Equal(t, "pod-a", lease.Annotations[contract.AnnotationPod])
	require.Equal(t, ownLabel, lease.Annotations[contract.AnnotationShardLabel])

	// The same name once more: a slot of one.
	second := f.claim(f.namedOptions("pod-c", "blue"))
	second.waits("pod-c")
	require.NoError(t, process.stop())

	successor := second.got()
	require.Equal(t, "blue", successor.Name())
	require.Equal(t, lease.Spec.AcquireTime, f.lease(successor).Spec.AcquireTime, "it was offered, and never free")
	f.runs(successor, func(string) { next.Add(1) })
	f.eventually("its successor works on it", func() bool { return next.Load() > 0 })
	f.refresh(cm)
	require.Equal(t, map[string]string{ownLabel: "blue"}, cm.Labels, "nothing has moved")
	require.Equal(t, "pod-c", f.lease(successor).Annotations[contract.AnnotationPod])

	// A drain is acknowledged by the keys of the ring.
	f.label(cm, ownLabel+"-drain", "green")
	f.eventually("the object is handed to the shard that the drain names", func() bool {
		f.refresh(cm)
		return cm.Labels[ownLabel] == "green" && len(cm.Labels) == 1
	})
}

// TestLeaseOfAPredecessorLosesItsLabel: what a predecessor has announced does not stay.
func TestLeaseOfAPredecessorLosesItsLabel(t *testing.T) {
	f := newFixture(t)
	s := f.claim(f.namedOptions("pod-a", "blue")).got()
	require.NoError(t, f.runs(s, ignore).stop())
	require.Equal(t, ownLabel, f.lease(s).Annotations[contract.AnnotationShardLabel])

	options := f.namedOptions("pod-b", "blue")
	options.ShardLabel = ""
	next := f.claim(options).got()
	require.NotContains(t, f.lease(next).Annotations, contract.AnnotationShardLabel)
}

func TestKeysOfAShard(t *testing.T) {
	s, err := New(Options{Ring: "example", Name: "a", Namespace: "n", ShardLabel: ownLabel})
	require.NoError(t, err)
	require.Equal(t, contract.LabelKeys{Shard: ownLabel, Drain: ownLabel + "-drain", Handover: ownLabel + "-handover", Held: ownLabel + "-held"}, s.LabelKeys())
	require.Equal(t, ownLabel+"=a", s.Selector().String())
	require.Equal(t, ownLabel+"-handover", s.stores.keys.Handover)
}

func TestNamesThatAreRefused(t *testing.T) {
	many := make([]string, 1001)
	for i := range many {
		many[i] = fmt.Sprint("shard-", i)
	}

	for want, o := range map[string]Options{
		`slots: their number, -1, must be from 1`:   {Slots: Count(-1)},
		`slots: their number, 5001, must be from 1`: {Slots: Count(5001)},
		`slots: give Named at least one name`:       {Slots: Named()},
		`name: remove "red"`:                        {Slots: Named("blue"), Name: "red"},
		`slots: "a/b" is invalid`:                   {Slots: Named("a/b")},
		`it is how the lease monitor signs Leases`:  {Slots: Named("shardlease-controller")},
		`slots: give Named at least one name, and`:  {Slots: Named("blue", "")},
		`shard label: "k8s.io/shard" is invalid`:    {ShardLabel: "k8s.io/shard"},
		`use a domain of your own`:                  {ShardLabel: "x.kubernetes.io/shard"},
		`could be one that follows from the shardL`: {ShardLabel: "example.com/shard-drain"},
	} {
		o.Ring, o.Namespace = "example", "n"

		_, err := o.complete(func() (string, error) { return "pod-a", nil }, "")
		require.ErrorContains(t, err, want)
	}
}
