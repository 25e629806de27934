package capacity

import (
	"slices"
	"time"

	"github.com/clusterring/clusterring/tools/lab/continuity"
)

// The objectives: the given part of all changes begin within the first time, and are done within the second.
const (
	part         = 0.99
	beginsWithin = time.Second
	DoneWithin   = 5 * time.Second
)

// kept reports whether an objective is kept. It is if there are no observations.
func kept(c continuity.Counts) bool { return float64(c.Within) >= part*float64(c.All) }

// Sample are the counts of both objectives at a time, since the beginning: of the first by shard, in the order in which
// they came.
type Sample struct {
	At    time.Duration
	Begun []continuity.Counts
	Done  continuity.Counts
}

// Minus returns the counts since an earlier sample.
func (s Sample) Minus(earlier Sample) Sample {
	begun := slices.Clone(s.Begun)
	for i, c := range earlier.Begun {
		begun[i] = begun[i].Minus(c)
	}

	return Sample{At: s.At - earlier.At, Begun: begun, Done: s.Done.Minus(earlier.Done)}
}

// AllBegun returns the counts of the first objective of all shards together.
func (s Sample) AllBegun() (all continuity.Counts) {
	for _, c := range s.Begun {
		all = all.Plus(c)
	}

	return all
}

// Kept reports whether both objectives are kept, by all shards together.
func (s Sample) Kept() bool { return kept(s.AllBegun()) && kept(s.Done) }

// KeptByEach reports whether both objectives are kept, the first by each shard.
func (s Sample) KeptByEach() bool {
	return kept(s.Done) && !slices.ContainsFunc(s.Begun, func(c continuity.Counts) bool { return !kept(c) })
}

// Knee returns the time of the last sample at which both objectives were kept since the beginning: under a load that
// grows, this is the load that the shards carry. It is late by design: what was counted before hides an overload for a
// while, the longer the more there was.
func Knee(samples []Sample) (at time.Duration) {
	for _, s := range samples {
		if s.Kept() {
			at = s.At
		}
	}

	return at
}
