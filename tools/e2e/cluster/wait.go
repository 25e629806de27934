package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

const (
	// look is the shortest interval between checks of a condition. A check that takes long is repeated after restful times as long, at most
	// longestRest, because it keeps the cluster from what it waits for.
	look        = 200 * time.Millisecond
	restful     = 4
	longestRest = 15 * time.Second
	// longest is how many times its limit a wait may last that goes on as long as there is progress.
	longest = 5
)

// Until checks a condition until it returns no problem, at most for the given time. The error contains the last problem.
func (c *Cluster) Until(ctx context.Context, limit time.Duration, problem func(context.Context) error) error {
	var last error

	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	for {
		began := c.Clock.Now()

		err := problem(limited)
		if err == nil {
			return nil
		}

		if limited.Err() == nil || last == nil {
			last = err
		}

		select {
		case <-c.Clock.After(min(longestRest, max(look, restful*c.Clock.Since(began)))):
		case <-limited.Done():
			if ctx.Err() == nil && problem(ctx) == nil { // what has become true in the meantime counts
				return nil
			}

			return fmt.Errorf("after %s: %w", limit, last)
		}
	}
}

// incompleteError reports a problem with a size, for example the number of objects that are out of place.
type incompleteError struct {
	Count int
	Text  string
}

// Error implements error.
func (e incompleteError) Error() string { return e.Text }

// WhileImproving is like [Cluster.Until], but the time begins anew whenever the problem is an [incompleteError] with a smaller count than before,
// up to longest times the limit. So the speed of the machine hardly matters.
func (c *Cluster) WhileImproving(ctx context.Context, limit time.Duration, problem func(context.Context) error) error {
	began := c.Clock.Now()
	before, improved := math.MaxInt, began

	for {
		err := c.Until(ctx, limit-c.Clock.Since(improved), func(ctx context.Context) error {
			err := problem(ctx)

			if left, ok := errors.AsType[incompleteError](err); ok {
				if left.Count < before {
					improved = c.Clock.Now()
				}

				before = left.Count
			}

			return err
		})
		if err == nil || ctx.Err() != nil {
			return err
		}

		if c.Clock.Since(improved) >= limit || c.Clock.Since(began) >= longest*limit {
			return fmt.Errorf("no progress for %s, %s in all: %w", c.Clock.Since(improved).Round(time.Second), c.Clock.Since(began).Round(time.Second), err)
		}
	}
}
