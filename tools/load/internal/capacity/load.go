// Package capacity tells what load a set of shards carries. It generates the load, judges what became of it by two
// service level objectives, and simulates shards that cost nothing, to compare with.
//
// The objectives and the way to find the highest load within them are those of Tim Ebert's thesis on horizontally
// scalable Kubernetes controllers (2024), chapter 6.
package capacity

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/tools/lab/continuity"
)

// Rate is a rate of changes per second that grows linearly: Base + Slope·t, where t counts seconds. It is never
// negative.
type Rate struct{ Base, Slope float64 }

// At returns the rate at a time since the beginning.
func (r Rate) At(t time.Duration) float64 { return r.Base + r.Slope*t.Seconds() }

// Arrivals returns the times of the changes of a Poisson process with this rate, up to an end.
func (r Rate) Arrivals(rng *rand.Rand, end time.Duration) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		// The expected number of changes until t is n = Base·t + Slope·t²/2. In units of n, the process is a standard one.
		for n := rng.ExpFloat64(); ; n += rng.ExpFloat64() {
			t := n / r.Base
			if r.Slope > 0 {
				t = (math.Sqrt(r.Base*r.Base+2*r.Slope*n) - r.Base) / r.Slope
			}

			if at := time.Duration(t * float64(time.Second)); at > end || !yield(at) {
				return
			}
		}
	}
}

const (
	// Overload is how many times as many changes there are as all workers can do, where all shall be busy.
	Overload = 1.3
	// Slope is by how much the rate of changes of a shard grows in a second: as in the thesis, where that of all shards
	// grows to 75 per second in 15 minutes.
	Slope = 75.0 / 900
)

// mostInFlight is the number of changes that a generator makes at a time. More wait, which counts as lag.
const mostInFlight = 200

// Generator makes changes at given times, however long each of them takes: an open loop, as users are.
type Generator struct {
	Clock clock.Clock
	// Change makes a change. It is called concurrently.
	Change func(ctx context.Context) error
}

// Offered is what a generator has done.
type Offered struct {
	// Asked is the number of changes that were due, and Took how long each of those took that succeeded.
	Asked int
	Took  []time.Duration
	// Lag is how much later than planned 99 % of the changes began at most.
	Lag time.Duration
}

const (
	// leastMade is the part of the changes that must have succeeded, mostLag the lag, and mostTook the time that 99 % of
	// the changes may take, up to which a load was what it should be.
	leastMade = 0.99
	mostLag   = 50 * time.Millisecond
	mostTook  = time.Second
)

// Check returns an error if the load was not what it should have been, so that nothing can be concluded from it.
func (o Offered) Check() error {
	var errs []error

	if made := float64(len(o.Took)) / float64(o.Asked); !(made >= leastMade) {
		errs = append(errs, fmt.Errorf("only %d of %d changes were made", len(o.Took), o.Asked))
	}

	if o.Lag > mostLag {
		errs = append(errs, fmt.Errorf("changes began up to %s late", o.Lag.Round(time.Millisecond)))
	}

	if took := continuity.Quantile(o.Took, part); took > mostTook {
		errs = append(errs, fmt.Errorf("changes took up to %s", took.Round(time.Millisecond)))
	}

	return errors.Join(errs...)
}

// mostBusy is the part of a machine that all processes may use: beyond it, they wait for each other.
const mostBusy = 0.65

// Invalid returns why nothing can be concluded from what was seen under loads: while so many of the cores of this
// machine were busy, and so many requests of shards were refused.
func Invalid(offered []Offered, busy, refused float64) (why []string) {
	for _, o := range offered {
		if err := o.Check(); err != nil {
			why = append(why, err.Error())
		}
	}

	if most := mostBusy * float64(runtime.NumCPU()); busy > most {
		why = append(why, fmt.Sprintf("%.2f of %d cores were busy", busy, runtime.NumCPU()))
	}

	if refused > 0 {
		why = append(why, fmt.Sprintf("%.0f requests of shards were refused, to be sent again later", refused))
	}

	return why
}

// Run makes a change at each of the given times since now, and returns when all of them have ended. If ctx ends, no
// further change begins.
func (g Generator) Run(ctx context.Context, at iter.Seq[time.Duration]) Offered {
	var (
		began   = g.Clock.Now()
		changes errgroup.Group
		mu      sync.Mutex
		offered Offered
		lags    []time.Duration
	)

	changes.SetLimit(mostInFlight)

	for due := range at {
		select {
		case <-ctx.Done():
		case <-g.Clock.After(due - g.Clock.Since(began)):
		}

		if ctx.Err() != nil {
			break
		}

		changes.Go(func() error {
			from := g.Clock.Now()
			err := g.Change(ctx)

			mu.Lock()
			defer mu.Unlock()

			lags = append(lags, from.Sub(began)-due)

			if offered.Asked++; err == nil {
				offered.Took = append(offered.Took, g.Clock.Since(from))
			}

			return nil
		})
	}

	_ = changes.Wait() // none

	offered.Lag = continuity.Quantile(lags, part)

	return offered
}
