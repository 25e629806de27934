package balance

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

// findings are what was measured, by number of shards: a value per set of names. The zero value is ready.
type findings struct {
	full, moved map[int][]float64
}

func (f *findings) add(shards int, fullest, moved float64) {
	if f.full == nil {
		f.full, f.moved = map[int][]float64{}, map[int][]float64{}
	}

	f.full[shards] = append(f.full[shards], fullest)
	f.moved[shards] = append(f.moved[shards], moved)
}

// fullest returns what the fullest shard has, as a multiple of the mean. There has to be a shard.
func fullest(partitions []int32) float64 {
	sum := 0
	for _, n := range partitions {
		sum += int(n)
	}

	return float64(slices.Max(partitions)) * float64(len(partitions)) / float64(sum)
}

// rows returns those that are wanted.
func (f *findings) rows(wanted func(ids ...string) bool) (rows []result.Row) {
	add := func(prefix, title, floor string, found map[int][]float64, all []judged, notes ...string) {
		for _, j := range all {
			id := prefix + strconv.Itoa(j.shards)
			if values := found[j.shards]; len(values) > 0 && wanted(id) {
				rows = append(rows, result.Row{
					ID: id, Title: fmt.Sprintf(title, j.shards), Unit: unit, Values: values, FloorTitle: floor, Floor: ideal(values), Judge: result.JudgeValue,
					Target: result.Target{Bound: result.AtMost, Value: j.target, Unit: unit}, PriorArt: j.priorArt, Notes: notes,
				})
			}
		}
	}

	const bySet = "A round is a set of names; what was measured follows from it alone, on any machine."
	add(shareRow, "balance: share of the fullest shard / mean, %d shards", "equal shares", f.full, shares, bySet,
		"No shard has more than 1.049 times the mean, rounded up to whole parts of the hash space: 344 of 327.7 with 50 shards, 35 of 32.8 with 500.")
	add(movedRow, "moved when a shard joins %d others / what it gets", "nothing else moves", f.moved, joins, bySet,
		"Each value is the mean of several newcomers.")

	return rows
}

// series returns those that are wanted.
func (f *findings) series(wanted func(ids ...string) bool) (all []result.Series) {
	for _, s := range []struct {
		id, title string
		found     map[int][]float64
	}{
		{shareSeries, "Balance: share of the fullest shard / mean", f.full},
		{movedSeries, "Moved when a shard joins / what it gets", f.moved},
	} {
		if !wanted(s.id) || len(s.found) == 0 {
			continue
		}

		series := result.Series{ID: s.id, Title: s.title, Over: result.OverShards, Unit: unit}
		for _, shards := range slices.Sorted(maps.Keys(s.found)) {
			series.Points = append(series.Points, result.Point{X: float64(shards), Values: s.found[shards], Floor: ideal(s.found[shards])})
		}

		all = append(all, series)
	}

	return all
}

// ideal is 1 for each of the values.
func ideal(values []float64) []float64 { return slices.Repeat([]float64{1}, len(values)) }
