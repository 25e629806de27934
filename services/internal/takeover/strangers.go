package takeover

import "maps"

// manyStrangers is the number of names without a Lease that are remembered, although they had none since the guard started. Users may label
// objects with any name. Forgetting such a name loses nothing.
const manyStrangers = 256

// forgetStrangers drops the names that never had a Lease, if there are too many. The caller holds g.mu.
func (g *Guard) forgetStrangers() {
	if len(g.shards) < manyStrangers {
		return
	}

	n := 0

	for _, s := range g.shards {
		if s.stranger {
			n++
		}
	}

	if n >= manyStrangers {
		maps.DeleteFunc(g.shards, func(_ string, s *shard) bool { return s.stranger })
	}
}
