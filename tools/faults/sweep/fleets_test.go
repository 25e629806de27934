package sweep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/clusterring/clusterring/tools/faults/faultrun"
	"github.com/clusterring/clusterring/tools/testkit/check"
)

// moving has shards stop, die, stay frozen and come back, one after the other, while there is work on all Fleets.
type moving struct {
	ring   faultrun.RingSpec
	rounds int
}

func (m moving) play(ctx context.Context, run *faultrun.Run) error {
	loaded, stop := context.WithCancel(ctx)
	defer stop()

	users, loaded := errgroup.WithContext(loaded)
	users.Go(func() error { return run.TouchFleets(loaded, m.ring) })

	err := m.around(loaded, run)
	stop()

	return errors.Join(err, users.Wait())
}

// around loses each shard in turn, and has it come back.
func (m moving) around(ctx context.Context, run *faultrun.Run) error {
	for i := range m.rounds {
		name := m.ring.Shards[i%len(m.ring.Shards)]
		member := run.Member(name)

		lose := func() error { return member.Process().Stop(soon) }
		if i%3 == 1 {
			lose = member.Process().Destroy
		}
		run.Expect(name, false)

		if err := errors.Join(lose(), run.AwaitInPlace(ctx), run.Start(member), run.AwaitInPlace(ctx)); err != nil {
			return fmt.Errorf("round %d, shard %s: %w", i+1, name, err)
		}
	}

	return nil
}

// TestFleets moves owners whose controller counts their children in its cache and makes, with generated names, those that it misses. None is made
// twice (I9). FAULTS=all moves a thousand.
func TestFleets(t *testing.T) {
	s := theSuite(t)
	m := moving{rounds: 3, ring: faultrun.RingSpec{
		Name: faultrun.Ring, Namespaces: []string{faultrun.Namespace}, Shards: []string{"a", "b", "c", "d"}, Fleets: 20,
	}}

	least := 20
	if os.Getenv(variable) == "all" {
		m.rounds, m.ring.Fleets, least = 24, 100, 1000
	}
	s.run(t, faultrun.Case{
		Name: fmt.Sprintf("%d Fleets while shards go and come back", m.ring.Fleets), Rings: []faultrun.RingSpec{m.ring}, WorkDuration: time.Millisecond,
		Phases: []faultrun.Phase{faultrun.Join},
		After: during{faultrun.Join: func(ctx context.Context, run *faultrun.Run) error {
			if err := m.play(ctx, run); err != nil {
				return err
			}

			versions, err := run.Versions()
			if moves := check.Moves(versions); err == nil && moves < least {
				err = fmt.Errorf("there were %d moves of Fleets, and should be %d", moves, least)
			}

			return err
		}},
	})
}

// TestFleetsOfPlainShards moves them between shards that use no library of ours, and have no barrier. The order of the moves, and
// the pause before an owner comes, leave no Ship in excess, although they cannot guarantee it.
func TestFleetsOfPlainShards(t *testing.T) {
	s := theSuite(t)
	if os.Getenv(variable) != "all" {
		t.Skip("depends on how far caches lag: FAULTS=all runs it")
	}

	m := moving{rounds: 12, ring: faultrun.RingSpec{
		Name: faultrun.Ring, Namespaces: []string{faultrun.Namespace}, Shards: []string{"a", "b", "c", "d"}, Fleets: 50, Plain: true,
	}}
	moves := 0
	results := s.run(t, faultrun.Case{
		Name: "50 Fleets while plain shards go and come back", Rings: []faultrun.RingSpec{m.ring}, WorkDuration: time.Millisecond,
		Phases: []faultrun.Phase{faultrun.Join}, Uncounted: []string{"I1"},
		After: during{faultrun.Join: func(ctx context.Context, run *faultrun.Run) error {
			err := m.play(ctx, run)
			versions, errOfVersions := run.Versions()
			moves = check.Moves(versions)

			return errors.Join(err, errOfVersions)
		}},
	})
	t.Logf("%d moves of Fleets; violations that shards without our library have: %v", moves, results[0].Uncounted)
}
