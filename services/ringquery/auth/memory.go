package auth

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
)

const (
	// memorySize is how many answers are remembered of each kind; the least recently used is forgotten first.
	memorySize = 4096
	// refusalTTL is the longest time that a refusal is remembered: who has just got a right should not wait for it.
	refusalTTL = 5 * time.Second
	// reviewTimeout is how long the API server has for an answer.
	reviewTimeout = 10 * time.Second
)

// memory remembers answers of the API server for a while. Those who want to know the same at the same time wait for one answer.
// An error is told to them all and is not remembered. It is safe for concurrent use.
type memory[T any] struct {
	entries *cache.LRUExpireCache
	flights singleflight.Group
}

func newMemory[T any](clk clock.PassiveClock) *memory[T] {
	return &memory[T]{entries: cache.NewLRUExpireCacheWithClock(memorySize, clk)}
}

// get returns what is remembered under the key, else what ask returns, which is then remembered for as long as ask says.
//
// ask goes on for the others when ctx ends, and so gets a context that has nothing of ctx but its values.
func (m *memory[T]) get(ctx context.Context, key string, ask func(context.Context) (T, time.Duration, error)) (T, error) {
	if found, ok := m.entries.Get(key); ok {
		if answer, ok := found.(T); ok {
			return answer, nil
		}
	}

	flight := m.flights.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
		defer cancel()

		answer, ttl, err := ask(ctx)
		if err == nil && ttl > 0 {
			m.entries.Add(key, answer, ttl)
		}

		return answer, err
	})

	var none T
	select {
	case <-ctx.Done():
		return none, fmt.Errorf("wait for the API server: %w", ctx.Err())
	case result := <-flight:
		if result.Err != nil {
			return none, result.Err
		}

		answer, _ := result.Val.(T) // it is what ask has returned

		return answer, nil
	}
}
