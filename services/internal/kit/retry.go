package kit

import (
	"math/rand/v2"
	"time"

	"k8s.io/client-go/util/workqueue"
)

const (
	// firstRetry and lastRetry bound the pause before something that failed is tried again. It doubles from try to try.
	firstRetry = 5 * time.Millisecond
	lastRetry  = 30 * time.Second
	// retryJitter is by how much a pause may be shorter, as a part of it, so that what failed together is not tried together.
	retryJitter = 0.2
)

// RateLimiter returns a rate limiter for the retries of a controller. Pauses start at 5 ms and double up to 30 s; each is
// shortened at random by up to a fifth. (The default of controller-runtime goes up to 1,000 s.) Each controller needs its own
// rate limiter. It is safe for concurrent use.
func RateLimiter[T comparable]() workqueue.TypedRateLimiter[T] {
	return jittered[T]{workqueue.NewTypedItemExponentialFailureRateLimiter[T](firstRetry, lastRetry)}
}

// jittered shortens the pauses of another limiter.
type jittered[T comparable] struct {
	workqueue.TypedRateLimiter[T]
}

// When implements workqueue.TypedRateLimiter.
func (j jittered[T]) When(item T) time.Duration {
	pause := j.TypedRateLimiter.When(item)
	return pause - time.Duration(rand.Float64()*retryJitter*float64(pause)) //nolint:gosec // chance, no secret
}
