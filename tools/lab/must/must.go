// Package must writes scenarios as lists of steps: what fails ends the scenario, as require does in a test. [Attempt]
// returns the error.
//
// Everything here is for the goroutine of the scenario, and for what [AtOnce] and [Meanwhile] call. Other goroutines
// return errors, or attempt what they do.
package must

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// poll is the shortest pause between looks. A look that takes long is followed by a pause that is restful times as
	// long, at most longestRest, because it keeps the system from what it waits for.
	poll        = 50 * time.Millisecond
	restful     = 4
	longestRest = 15 * time.Second

	// concurrency is how much [AtOnce] does at a time.
	concurrency = 16
)

// failure is the panic that ends a scenario.
type failure struct{ error }

// Do ends the scenario if there is an error.
func Do(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Hold ends the scenario unless a condition holds. The rest is the error.
func Hold(holds bool, format string, args ...any) {
	if !holds {
		Do(fmt.Errorf(format, args...))
	}
}

// None ends the scenario unless there are no findings. The error has the first few.
func None[T any](what string, findings []T) {
	const few = 5

	if len(findings) > 0 {
		errs := []error{fmt.Errorf("%s: %d times", what, len(findings))}
		for _, finding := range findings[:min(few, len(findings))] {
			errs = append(errs, fmt.Errorf("%v", finding))
		}

		Do(errors.Join(errs...))
	}
}

// Get returns a value, unless there is an error.
func Get[T any](value T, err error) T {
	Do(err)

	return value
}

// Attempt returns the error that ends a part of a scenario, nil if there is none.
func Attempt(do func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			err = r.error
		default:
			panic(r)
		}
	}()
	do()

	return nil
}

// Until repeats a part of a scenario until it does not fail. The error has how it failed last.
func Until(ctx context.Context, within time.Duration, part func(context.Context)) {
	begin := time.Now()

	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()

	var last error

	for {
		looked := time.Now()

		err := Attempt(func() { part(limited) })
		if err == nil {
			return
		}

		if limited.Err() == nil || last == nil {
			last = err
		}

		left := within - time.Since(begin) // half of it at most, so that it is looked at again near the end
		rest := min(longestRest, max(poll, min(restful*time.Since(looked), left/2)))

		if over := Attempt(func() { Pause(limited, rest) }); over != nil {
			Do(fmt.Errorf("after %.1f s: %w: %w", time.Since(begin).Seconds(), last, over))
		}
	}
}

// AtOnce does something for the numbers from 0 to n-1, several at a time.
func AtOnce(ctx context.Context, n int, do func(ctx context.Context, i int)) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)

	for i := range n {
		group.Go(func() error { return Attempt(func() { do(ctx, i) }) })
	}

	Do(group.Wait())
}

// Pause lets time pass.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
	case <-ctx.Done():
		Do(context.Cause(ctx))
	}
}

// Meanwhile does something while each of the others is repeated, with a pause in between. If one of the others fails,
// the context of do ends. What the others have begun is not interrupted.
func Meanwhile(ctx context.Context, pause time.Duration, do func(context.Context), others ...func(context.Context)) {
	unhurried := context.WithoutCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)

	repeating, over := context.WithCancel(ctx)
	defer over()

	for _, other := range others {
		group.Go(func() error {
			for repeating.Err() == nil {
				if err := Attempt(func() { other(unhurried) }); err != nil {
					return err
				}

				_ = Attempt(func() { Pause(repeating, pause) }) // then it is over
			}

			return nil
		})
	}

	err := Attempt(func() { do(ctx) })
	over()
	Do(cmp.Or(group.Wait(), err)) // a failure of the others has ended the rest
}
