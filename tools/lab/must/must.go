// Package must writes scenarios as lists of steps: what fails ends the scenario, as require does in a test. [Attempt]
// returns the error.
//
// Everything here is for the goroutine of the scenario alone. Other goroutines return errors, or attempt what they do.
package must

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// poll is the interval between looks.
const poll = 50 * time.Millisecond

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

// Await waits until nothing is missing. The error has what is missing.
func Await(ctx context.Context, within time.Duration, look func(context.Context) (missing string)) {
	begin, last := time.Now(), ""

	err := wait.PollUntilContextTimeout(ctx, poll, within, true, func(ctx context.Context) (bool, error) {
		missing := ""

		err := Attempt(func() { missing = look(ctx) })

		if missing != "" {
			last = missing
		}

		return missing == "" && err == nil, err
	})
	if err != nil {
		Do(fmt.Errorf("after %.1f s: %s: %w", time.Since(begin).Seconds(), last, err))
	}
}
