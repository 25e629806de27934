// Package balance measures how evenly a ring spreads objects over its shards, and how much moves when a shard joins. It asks the
// ring query service, which knows the same rings as the services that assign.
//
// Both follow from the names of the shards alone. So there is nothing to repeat, and each round is another set of names.
package balance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

const (
	name = "load-balance"
	// few is the number of shards above which there are fewer sets, for want of time, and because larger rings differ less.
	few = 50

	shareRow    = "balance-"
	shareSeries = "balance-by-shards"
	movedRow    = "moved-on-join-"
	movedSeries = "moved-on-join-by-shards"

	unit = "×"
)

// judged is a size of the ring that has a row of its own.
type judged struct {
	shards   int
	target   float64
	priorArt string
}

// What the fullest shard may have, as a multiple of the mean; and what may move when a shard joins, as a multiple of what it gets.
var (
	shares = []judged{{3, 1.05, "1.08"}, {10, 1.05, "1.15"}, {50, 1.05, "1.23"}, {500, 1.10, "over 1.3"}}
	joins  = []judged{{3, 1.02, "1.02"}, {10, 1.02, "1.02"}, {50, 1.08, "1.02"}}
)

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	ids := []string{shareSeries, movedSeries}
	for _, j := range shares {
		ids = append(ids, shareRow+strconv.Itoa(j.shards))
	}

	for _, j := range joins {
		ids = append(ids, movedRow+strconv.Itoa(j.shards))
	}

	return []run.Measurement{{
		Name: "balance", IDs: ids, Budget: map[run.Scale]time.Duration{run.Small: 12 * time.Second, run.Full: 60 * time.Second}, Run: measure,
	}}
}

// experiment is one ring, whose shards get other names in each round.
type experiment struct {
	bench *run.Bench
	fleet *shards.Fleet
	query pb.DiagnosticsServiceClient
	found findings
}

func measure(ctx context.Context, b *run.Bench) (rows []result.Row, series []result.Series, err error) {
	connection, err := grpc.NewClient(b.Local.RingQueryAddress(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the ring query service: %w", err)
	}
	defer func() { err = errors.Join(err, connection.Close()) }()

	fleet, err := b.Fleet(ctx, shards.Ring{Name: name, Main: objects.ConfigMaps.GroupResource()})
	if err != nil {
		return nil, nil, err
	}

	defer func() { err = errors.Join(err, fleet.Close(context.WithoutCancel(ctx))) }()

	e := &experiment{bench: b, fleet: fleet, query: pb.NewDiagnosticsServiceClient(connection)}
	if err := fleet.Declare(ctx); err != nil {
		return nil, nil, err
	}

	sizes, sets := run.Pick(b, []int{3, 10, 50, 500}, []int{3, 5, 10, 20, 50, 100, 200, 500, 1000}), run.Pick(b, 3, 5)
	for set := range sets {
		if set == run.Pick(b, 1, 3) {
			sizes = slices.DeleteFunc(sizes, func(size int) bool { return size > few })
		}
		b.Progress("set %d of %d: 3 to %d shards", set+1, sets, sizes[len(sizes)-1])

		if err := e.set(ctx, set, sizes); err != nil {
			return nil, nil, fmt.Errorf("set %d: %w", set+1, err)
		}
	}

	return e.found.rows(b.Wants), e.found.series(b.Wants), nil
}

// set lets shards with new names join one after the other, and measures at each size.
func (e *experiment) set(ctx context.Context, set int, sizes []int) error {
	if err := e.fleet.RemoveLeases(ctx); err != nil {
		return err
	}

	for _, size := range sizes {
		if _, err := e.fleet.Join(ctx, size-len(e.fleet.Held())); err != nil {
			return err
		}

		partitions, err := e.partitions(ctx)
		if err != nil {
			return fmt.Errorf("%d shards: %w", size, err)
		}

		moved, err := e.moved(ctx, set, size)
		if err != nil {
			return fmt.Errorf("%d shards: %w", size, err)
		}
		e.found.add(size, fullest(partitions), moved)
	}

	return nil
}

// partitions returns how many parts of the hash space each shard has, once the ring query service knows all shards.
func (e *experiment) partitions(ctx context.Context) (partitions []int32, err error) {
	held := map[string]bool{}
	for _, shard := range e.fleet.Held() {
		held[shard] = true
	}

	err = target.Until(ctx, fmt.Sprintf("the ring query service knows the %d shards", len(held)), func(ctx context.Context) (bool, error) {
		answer, err := e.query.GetRing(ctx, &pb.GetRingRequest{Name: name})
		if err != nil {
			return false, fmt.Errorf("ask for the ring: %w", err)
		}

		partitions = partitions[:0]

		for _, shard := range answer.GetShards() {
			if shard.GetAvailable() && held[shard.GetName()] {
				partitions = append(partitions, shard.GetPartitions())
			}
		}

		return len(partitions) == len(held) && int(answer.GetRing().GetAvailableShards()) == len(held), nil
	})

	return partitions, err
}

// moved returns what would move if a shard joined, as a multiple of what that shard gets, which has to move: the mean of several
// newcomers. No name is used in two sets.
func (e *experiment) moved(ctx context.Context, set, size int) (float64, error) {
	newcomers, sum := run.Pick(e.bench, 10, 20), 0.0
	for i := range newcomers {
		newcomer := fmt.Sprintf("newcomer-%d-%d-%d", set, size, i)

		answer, err := e.query.Simulate(ctx, &pb.SimulateRequest{Ring: name, Add: []string{newcomer}})
		if err != nil {
			return 0, fmt.Errorf("ask what a newcomer would move: %w", err)
		}

		if len(answer.GetShards()) != size+1 {
			return 0, fmt.Errorf("a newcomer to %d shards would make a ring of %d", size, len(answer.GetShards()))
		}

		at := slices.IndexFunc(answer.GetShards(), func(s *pb.SimulatedShard) bool { return s.GetName() == newcomer })
		if at < 0 || answer.GetShards()[at].GetShareAfter() == 0 {
			return 0, fmt.Errorf("the newcomer %s would get nothing", newcomer)
		}

		sum += answer.GetMoved() / answer.GetShards()[at].GetShareAfter()
	}

	return sum / float64(newcomers), nil
}
