package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// Whatever happens to objects, in whatever order, the counts are what one would count.
func TestSlotsAreCountedAsThingsHappen(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same in each run
	limits := Limits{Total: 6, PerShard: 3}
	s, now := newState(), time.Unix(1_000_000_000, 0)

	for step := range 20_000 {
		o := objects.Object{
			ID:    objects.ID{Name: fmt.Sprint(random.IntN(8))},
			Shard: fmt.Sprint("shard-", random.IntN(3)),
		}

		switch random.IntN(8) {
		case 0:
			s.put(o)
		case 1:
			s.update(func() { s.grant(o.ID, o.Shard) })
		case 2:
			s.startDrain(o, now)
		case 3:
			s.asked(o.ID)
		case 4:
			s.sawDrain(o, now)
		case 5:
			s.endDrain(o.ID)
		case 6:
			s.markLate(o.ID, now, 0)
		case 7:
			s.done(o.ID)
		}

		for _, shard := range []string{"shard-0", "shard-1", "shard-2"} {
			total, own, isStuck := len(s.granted), 0, false

			for _, of := range s.granted {
				if of == shard {
					own++
				}
			}

			for _, d := range s.draining {
				if !d.late {
					total++
				}

				if d.shard == shard {
					own++
					isStuck = isStuck || d.late
				}
			}

			free, stuck := s.hasSlot(shard, limits)
			require.Equal(t, isStuck, stuck, "step %d, %s", step, shard)
			require.Equal(t, !isStuck && own < limits.PerShard && total < limits.Total, free, "step %d, %s", step, shard)
		}
	}

	for id := range s.work {
		s.done(id)
	}

	for id := range s.granted {
		s.done(id)
	}

	for id := range s.draining {
		s.endDrain(id)
	}

	require.Equal(t, newSlots(), s.slots, "nothing is left")
}
