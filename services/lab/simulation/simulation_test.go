package simulation

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

func TestMain(m *testing.M) {
	klog.LogToStderr(false)
	os.Exit(m.Run())
}

// number reads a number from the environment; the Makefile target test-simulation sets it.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()

	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}

	return atoi(t, text)
}

func atoi(t *testing.T, text string) int {
	t.Helper()

	n, err := strconv.Atoi(text)
	require.NoError(t, err)

	return n
}

// enough reports whether no more seeds should begin: never if their number was given, and otherwise when half of the
// tests' time has passed, because a machine may be slow.
func enough(t *testing.T, began time.Time) time.Time {
	t.Helper()

	deadline, ok := t.Deadline()
	if !ok || os.Getenv("SEEDS") != "" || os.Getenv("SEED") != "" {
		return began.AddDate(1, 0, 0)
	}

	return began.Add(deadline.Sub(began) / 2)
}

// once are seeds that have failed.
var once = []int{
	2983, // the bound of requests was that of a dozen objects
	3752, // an object that an edit made a main object was taken as a controlled one
	4843, // the same, because the rebalancer did not know of the edit
	6300, // owners are read before writes that hang, and some of these succeed
	6713, // nothing was together when no shard was left
	7567, // an owner waited for a main object
}

// wanted returns the seeds to run: the comma-separated seeds in SEED, or otherwise SEEDS seeds from FROM on; by default
// some, and those that have failed.
func wanted(t *testing.T) (seeds []int) {
	t.Helper()

	if named := os.Getenv("SEED"); named != "" {
		for text := range strings.SplitSeq(named, ",") {
			seeds = append(seeds, atoi(t, text))
		}

		return seeds
	}

	if os.Getenv("SEEDS") == "" {
		seeds = slices.Clone(once)
	}

	first := number(t, "FROM", 0)
	for i := range number(t, "SEEDS", 80) {
		seeds = append(seeds, first+i)
	}

	return seeds
}

// TestSeeds runs the histories of many seeds. It shrinks and prints a failing history with its trace. With ONLY=all,
// failing seeds are only named. With ONLY=first, no other seed runs after a failing one.
func TestSeeds(t *testing.T) {
	var (
		seeds      = wanted(t)
		next, done atomic.Int64
		mu         sync.Mutex
		failed     = map[int]string{}
		began      = clock.RealClock{}.Now()
		only       = os.Getenv("ONLY")
		until      = enough(t, began)
	)

	t.Run("seeds", func(t *testing.T) {
		for i := range runtime.GOMAXPROCS(0) {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()

				for {
					i := int(next.Add(1)) - 1
					if mu.Lock(); i >= len(seeds) || only == "first" && len(failed) > 0 || (clock.RealClock{}).Now().After(until) {
						mu.Unlock()
						return
					}
					mu.Unlock()

					seed := seeds[i]

					if r := run(t, Draw(uint64(seed))); len(r.Violations) > 0 {
						mu.Lock()
						failed[seed] = r.Violations[0]
						mu.Unlock()
						t.Logf("seed %d: %s", seed, r.Violations[0])
					}

					if d := done.Add(1); d%1000 == 0 {
						t.Logf("%d of %d seeds, %s", d, len(seeds), clock.RealClock{}.Since(began).Round(time.Second))
						fmt.Fprintf(os.Stderr, "%d of %d seeds, %s\n", d, len(seeds), clock.RealClock{}.Since(began).Round(time.Second))
					}
				}
			})
		}
	})

	t.Logf("%d of %d seeds in %s", done.Load(), len(seeds), clock.RealClock{}.Since(began).Round(time.Millisecond))

	for i, seed := range slices.Sorted(maps.Keys(failed)) {
		switch {
		case only != "":
			t.Errorf("failed: seed %d: %s", seed, failed[seed])
		case i < 3: // the others are named above
			explain(t, Draw(uint64(seed)))
		}
	}
}

// explain fails with the shortest history that fails in the same way.
func explain(t *testing.T, h History) {
	t.Helper()

	properties := run(t, h).Properties()
	if len(properties) == 0 {
		t.Errorf("seed %d failed, but does not fail again: it depends on more than its history", h.Seed)
		return
	}

	property := properties[0]
	tries := 0
	short := Shrink(h, func(h History) bool {
		tries++
		return tries < 400 && slices.Contains(run(t, h).Properties(), property)
	})

	short.Verbose = true
	r := run(t, short)

	t.Errorf("seed %d fails. The shortest history that fails likewise (SEED=%d runs the whole):\n%s\nwhat happens in it:\n%s\n%s", h.Seed, h.Seed,
		short, strings.Join(r.Trace, "\n"), strings.Join(r.Violations, "\n"))
}
