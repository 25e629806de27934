package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
)

func TestGrace(t *testing.T) {
	begin := time.Unix(1_000_000_000, 0)
	g := &grace{}

	g.retarget(begin, 1, 1, true)
	require.LessOrEqual(t, g.wait(begin), time.Duration(0), "no wait in a ring of which nothing is known")

	g.known = 4
	g.retarget(begin, 1, 4, false)
	require.LessOrEqual(t, g.wait(begin), time.Duration(0), "three have left, and none has come back")
	g.retarget(begin, 0, 4, false)
	g.retarget(begin, 1, 4, true)
	require.Equal(t, comeback, g.wait(begin), "the first one has come back")
	require.LessOrEqual(t, g.wait(begin.Add(comeback)), time.Duration(0), "the wait has an end")

	later := begin.Add(comeback / 2)
	g.retarget(later, 2, 4, true)
	require.LessOrEqual(t, g.wait(later), time.Duration(0), "half of them are available")

	// Shards that crash come back all the time. Objects do not wait for the end of that.
	g = &grace{known: 4}
	for at := time.Duration(0); at < 2*longestComeback; at += time.Second {
		g.retarget(begin.Add(at), 0, 4, false)
		g.retarget(begin.Add(at), 1, 4, true)
		require.Equal(t, at < longestComeback, g.wait(begin.Add(at)) > 0, "after %s", at)
	}

	much := begin.Add(time.Hour)
	g.retarget(much, 0, 4, false)
	g.retarget(much, 1, 4, true)
	require.Equal(t, comeback, g.wait(much), "this is another disruption")

	g = &grace{}
	g.retarget(begin, 0, 4, false)
	g.retarget(begin, 1, 4, true)
	require.Equal(t, comeback, g.wait(begin), "a new leader knows the Leases of shards that are not available")
}

func TestLinesAreFew(t *testing.T) {
	now := time.Unix(1_000_000_000, 0)
	q := &sparseLog{}

	_, say := q.say(now)
	require.True(t, say)

	for range 3 {
		_, say = q.say(now.Add(time.Second))
		require.False(t, say)
	}

	others, say := q.say(now.Add(10 * time.Second))
	require.True(t, say)
	require.Equal(t, 3, others)
}

// After a disruption of all shards, the first shard that comes back would get all objects, and give them back when the others follow.
func TestFirstShardThatComesBackDoesNotGetEverything(t *testing.T) {
	r := newResting(t)
	all := target(r.ring)
	three := of(all, "a", "b", "c")

	for _, name := range three.View.AvailableShards() {
		s := &leasetest.Shard{Client: r.plane.Client, Ring: r.ring, Namespace: r.ns, Name: name}
		require.NoError(t, s.Acquire(t.Context()))
		require.NoError(t, s.Release(t.Context()))
	}

	var objects []*corev1.ConfigMap

	for i := range 12 {
		name := fmt.Sprintf("object-%d", i)
		owner, _ := three.View.Owner(key.Key{Kind: "ConfigMap", Namespace: r.ns, Name: name})
		objects = append(objects, r.create(name, owner))
	}

	at := func(name string) (n int) {
		for _, cm := range objects {
			require.NoError(t, r.plane.Client.Get(t.Context(), client.ObjectKeyFromObject(cm), cm))

			if cm.Labels[contract.ShardLabel(r.ring)] == name {
				n++
			}
		}

		return n
	}

	r.e.SetTarget(three)
	r.run()

	mine := at("a")
	r.e.SetTarget(of(all))
	r.e.SetTarget(of(all, "a"))
	r.eventually(func() bool { return r.e.Report().Blocked == len(objects)-mine })
	require.Contains(t, r.e.Report().BlockedExample, "1 of 3 shards have come back")
	require.Equal(t, mine, at("a"))

	r.e.SetTarget(three)
	r.settle()
	require.Equal(t, mine, at("a"), "no objects should have moved")

	r.e.SetTarget(of(all))
	r.e.SetTarget(of(all, "a"))
	r.eventually(func() bool { return r.e.Report().Blocked == len(objects)-mine })
	r.clock.Step(comeback)
	r.eventually(func() bool { return at("a") == len(objects) })
}
