package ring_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/ring"
)

func BenchmarkNew(b *testing.B) {
	for _, n := range []int{3, 10, 50, 500, 1000} {
		shards := randomNames(rand.New(rand.NewPCG(1, 1)), n)
		b.Run(fmt.Sprintf("shards=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ring.New(shards)
			}
		})
	}
}

func BenchmarkOwner(b *testing.B) {
	r := ring.New(randomNames(rand.New(rand.NewPCG(1, 1)), 50))
	b.ReportAllocs()
	h := key.Hash(1)
	for b.Loop() {
		_, _ = r.Owner(h)
		h = (h*48271 + 11) % key.Prime
	}
}

// Rankings of all tokens, one after the other: the owner and two more.
func BenchmarkRanking(b *testing.B) {
	for _, n := range []int{3, 50, 300, 1000} {
		r := ring.New(randomNames(rand.New(rand.NewPCG(1, 1)), n))
		r.Ranking(0, 2) // makes the table
		b.Run(fmt.Sprintf("shards=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			token := 0
			for b.Loop() {
				r.Ranking(token, 3)
				token = (token + 4799) % ring.Tokens
			}
		})
	}
}

// The first ranking of a ring makes a table, as each change of the set of shards asks for.
func BenchmarkFirstRanking(b *testing.B) {
	for _, n := range []int{3, 300} {
		shards := randomNames(rand.New(rand.NewPCG(1, 1)), n)
		b.Run(fmt.Sprintf("shards=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				r := ring.New(shards)
				b.StartTimer()
				r.Ranking(0, 2)
			}
		})
	}
}

func BenchmarkCacheHit(b *testing.B) {
	shards := randomNames(rand.New(rand.NewPCG(1, 1)), 50)
	c := ring.NewCache(4)
	c.Get(shards)
	b.ReportAllocs()
	for b.Loop() {
		c.Get(shards)
	}
}
