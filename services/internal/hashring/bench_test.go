package hashring_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
)

func BenchmarkNew(b *testing.B) {
	for _, n := range []int{3, 10, 50, 500, 1000} {
		shards := randomNames(rand.New(rand.NewPCG(1, 1)), n)
		b.Run(fmt.Sprintf("shards=%d", n), func(b *testing.B) {
			b.ReportAllocs()

			for b.Loop() {
				hashring.New(shards)
			}
		})
	}
}

func BenchmarkOwner(b *testing.B) {
	r := hashring.New(randomNames(rand.New(rand.NewPCG(1, 1)), 50))
	b.ReportAllocs()

	h := key.Hash(1)
	for b.Loop() {
		_, _ = r.Owner(h)
		h = (h*48271 + 11) % key.Prime
	}
}

// Rankings of all partitions in turn: the owner and two more.
func BenchmarkRanking(b *testing.B) {
	for _, n := range []int{3, 50, 300, 1000} {
		r := hashring.New(randomNames(rand.New(rand.NewPCG(1, 1)), n))
		r.Ranking(0, 2) // makes the table
		b.Run(fmt.Sprintf("shards=%d", n), func(b *testing.B) {
			b.ReportAllocs()

			partition := 0
			for b.Loop() {
				r.Ranking(partition, 3)
				partition = (partition + 4799) % hashring.Partitions
			}
		})
	}
}

// The first ranking of a table builds an index, as after each change of the set of shards.
func BenchmarkFirstRanking(b *testing.B) {
	for _, n := range []int{3, 300} {
		shards := randomNames(rand.New(rand.NewPCG(1, 1)), n)
		b.Run(fmt.Sprintf("shards=%d", n), func(b *testing.B) {
			b.ReportAllocs()

			for b.Loop() {
				b.StopTimer()

				r := hashring.New(shards)
				b.StartTimer()
				r.Ranking(0, 2)
			}
		})
	}
}

func BenchmarkCacheHit(b *testing.B) {
	shards := randomNames(rand.New(rand.NewPCG(1, 1)), 50)
	c := hashring.NewCache(4)
	c.Get(shards)
	b.ReportAllocs()

	for b.Loop() {
		c.Get(shards)
	}
}
