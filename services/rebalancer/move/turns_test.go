package move

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

func object(version, resource, name string) feed.ID {
	return feed.ID{
		GVR:       schema.GroupVersionResource{Group: "g", Version: version, Resource: resource},
		Namespace: "ns", Name: name,
	}
}

func TestTurns(t *testing.T) {
	var again []feed.ID

	turns := NewTurns(func(id feed.ID) { again = append(again, id) })
	owner, other := object("v1", "owners", "one"), object("v1", "owners", "two")
	sameOwner := object("v2", "owners", "one")
	child := func(i int) feed.ID { return object("v1", "children", fmt.Sprint(i)) }

	begins := func(owner, id feed.ID) func() {
		end, ok := turns.Begin(owner, id)
		require.True(t, ok, "%s should begin", id)

		return end
	}
	putOff := func(owner, id feed.ID) {
		_, ok := turns.Begin(owner, id)
		require.False(t, ok, "%s should be deferred", id)
	}

	one, two := begins(owner, child(1)), begins(owner, child(2))
	begins(other, other)() // is independent of the others

	putOff(owner, owner)
	putOff(sameOwner, sameOwner) // in any version
	putOff(owner, child(3))      // its owner goes first
	putOff(owner, child(3))
	one()
	require.Empty(t, again)
	two()
	require.ElementsMatch(t, []feed.ID{owner, sameOwner}, again[:2], "the owner should be first")
	require.Equal(t, []feed.ID{child(3)}, again[2:], "each should be returned once")

	again = nil
	self := begins(owner, owner)
	putOff(owner, child(1))
	putOff(sameOwner, child(2))
	self()
	require.ElementsMatch(t, []feed.ID{child(1), child(2)}, again)
	require.Empty(t, turns.owners, "nothing should be stored between turns")
}

// In any order, an owner is never processed together with its followers, no object is lost, and nothing stays stored.
func TestTurnsOfMany(t *testing.T) {
	const workers, owners, followers, rounds = 8, 3, 5, 50

	queue := make(chan feed.ID, owners*(followers+1))
	turns := NewTurns(func(id feed.ID) { queue <- id })

	var (
		alone, along [owners]atomic.Int32
		left         atomic.Int32
		wg           sync.WaitGroup
	)

	todo := map[feed.ID]*atomic.Int32{}
	ownerOf := map[feed.ID]int{}

	for i := range owners {
		for j := range followers + 1 {
			id := object("v1", "children", fmt.Sprintf("%d-%d", i, j))
			if j == 0 {
				id = object("v1", "owners", fmt.Sprint(i))
			}

			todo[id], ownerOf[id] = &atomic.Int32{}, i
			todo[id].Store(rounds)
			left.Add(1)

			queue <- id
		}
	}

	decide := func(id feed.ID) {
		i := ownerOf[id]
		mine := object("v1", "owners", fmt.Sprint(i))

		end, ok := turns.Begin(mine, id)
		if !ok {
			return
		}
		defer end()

		if id == mine {
			defer alone[i].Add(-1)

			if n := alone[i].Add(1); n != 1 || along[i].Load() != 0 {
				t.Errorf("%s is not alone", id)
			}
		} else {
			defer along[i].Add(-1)

			along[i].Add(1)

			if alone[i].Load() != 0 {
				t.Errorf("%s is processed together with its owner", id)
			}
		}

		runtime.Gosched() // so that other goroutines can run in between

		if todo[id].Add(-1) > 0 {
			queue <- id
		} else if left.Add(-1) == 0 {
			close(queue)
		}
	}

	for range workers {
		wg.Go(func() {
			for id := range queue {
				decide(id)
			}
		})
	}

	wg.Wait()
	require.Empty(t, turns.owners)
}

// A deferred owner goes before objects that are deferred after it, and no other object joins the turn for which it waits.
func TestOwnerIsNotStarved(t *testing.T) {
	var again []feed.ID

	turns := NewTurns(func(id feed.ID) { again = append(again, id) })
	owner := object("v1", "owners", "one")

	first, ok := turns.Begin(owner, object("v1", "children", "first"))
	require.True(t, ok)

	_, ok = turns.Begin(owner, owner)
	require.False(t, ok)

	for i := range 100 {
		_, ok = turns.Begin(owner, object("v1", "children", fmt.Sprint(i)))
		require.False(t, ok)
	}

	first()
	require.Zero(t, slices.Index(again, owner))
	require.Len(t, again, 101)
}
