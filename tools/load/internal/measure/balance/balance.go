// Package balance measures how evenly a ring spreads objects over its shards, and how much moves when a shard joins. It
// asks the ring query service, which knows the same rings as the services that assign.
//
// Both follow from the names of the shards alone. So there is nothing to repeat, and each round is another set of
// names.
package balance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
)

const (
	// judged is the number of shards that has rows, and the largest of most sets, because larger rings take long and
	// differ less.
	judged = 50

	shareRow   = "balance-50"
	movedRow   = "moved-on-join-50"
	shareChart = "balance-by-shards"
	movedChart = "moved-on-join-by-shards"

	bySet = "Each round has another set of shard names. The result follows from the names alone, on any machine."
)

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	part := run.Part{Run: measure, Rows: []string{shareRow, movedRow, shareChart, movedChart}}

	return []run.Measurement{{Name: "balance", Small: 12 * time.Second, Full: 60 * time.Second, Parts: []run.Part{part}}}
}

// experiment has a ring with other shards in each round.
type experiment struct {
	bench *run.Bench
	// fullest and moved are what each round has found, by the number of shards.
	fullest, moved map[int][]float64
}

func measure(ctx context.Context, b *run.Bench) error {
	e := &experiment{bench: b, fullest: map[int][]float64{}, moved: map[int][]float64{}}

	sizes, sets := run.Pick(b, []int{3, 10, 50, 500}, []int{3, 5, 10, 20, 50, 100, 200, 500, 1000}), run.Pick(b, 3, 5)
	for set := range sets {
		if set == run.Pick(b, 1, 3) {
			sizes = slices.DeleteFunc(sizes, func(size int) bool { return size > judged })
		}
		b.Progress("set %d of %d: 3 to %d shards", set+1, sets, sizes[len(sizes)-1])

		if err := e.set(ctx, fmt.Sprintf("load-balance-%d", set), sizes); err != nil {
			return fmt.Errorf("set %d: %w", set+1, err)
		}
	}

	for _, size := range slices.Sorted(maps.Keys(e.fullest)) {
		b.Grow(result.Chart{ID: shareChart, Title: "Balance: share of the fullest shard / mean", X: "shards", Y: "×"}, size,
			e.fullest[size], []float64{1})
		b.Grow(result.Chart{ID: movedChart, Title: "Moved when a shard joins / what it gets", X: "shards", Y: "×"}, size,
			e.moved[size], []float64{1})
	}

	ideals := slices.Repeat([]float64{1}, sets)
	b.Report(result.Row{
		ID: shareRow, Title: "balance: share of the fullest shard / mean, 50 shards", Unit: "×", Values: e.fullest[judged],
		FloorTitle: "equal shares", Floor: ideals, Judge: result.JudgeValue, Target: result.Max(1.05), PriorArt: "1.23",
		Notes: []string{bySet, "No shard has more than 1.049 times the mean, rounded up to whole parts of the hash space: " +
			"344 of 327.7."},
	}, result.Row{
		ID: movedRow, Title: "moved when a shard joins 50 others / what it gets", Unit: "×", Values: e.moved[judged],
		FloorTitle: "nothing else moves", Floor: ideals, Judge: result.JudgeValue, Target: result.Max(1.08),
		PriorArt: "1.02", Notes: []string{bySet, "Each value is the mean of several newcomers."},
	})

	return nil
}

// set lets the shards of a new ring join one after the other, and measures at each size.
func (e *experiment) set(ctx context.Context, name string, sizes []int) error {
	fleet, err := e.bench.Fleet(ctx, shards.Ring{Name: name, Main: objects.ConfigMaps.GroupResource()}, 0)
	if err != nil {
		return err
	}

	for _, size := range sizes {
		if _, err := fleet.Join(ctx, size-len(fleet.Held())); err != nil {
			return err
		}

		share, moved, err := e.join(ctx, name, size)
		if err != nil {
			return fmt.Errorf("%d shards: %w", size, err)
		}

		e.fullest[size], e.moved[size] = append(e.fullest[size], share), append(e.moved[size], moved)
	}

	return nil
}

// join returns the share of the fullest shard of a ring, as a multiple of the mean. It also returns what would move if
// another shard joined, as a multiple of what that shard gets, which has to move: the mean of several newcomers. No
// name is used in two sets.
func (e *experiment) join(ctx context.Context, ring string, size int) (fullest, moved float64, err error) {
	newcomers := run.Pick(e.bench, 10, 20)
	for i := range newcomers {
		newcomer := fmt.Sprintf("newcomer-to-%s-%d-%d", ring, size, i)

		var answer *pb.SimulateResponse

		err := objects.Until(ctx, fmt.Sprintf("the ring query service knows the %d shards", size),
			func(ctx context.Context) (known bool, err error) {
				answer, err = e.bench.Local.Queries().Simulate(ctx, &pb.SimulateRequest{Ring: ring, Add: []string{newcomer}})
				return len(answer.GetShards()) == size+1, err
			})
		if err != nil {
			return 0, 0, err
		}

		for _, s := range answer.GetShards() {
			fullest = max(fullest, s.GetShareBefore()*float64(size))

			if s.GetName() == newcomer {
				moved += answer.GetMoved() / s.GetShareAfter() / float64(newcomers)
			}
		}
	}

	return fullest, moved, nil
}
