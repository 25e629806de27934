package moves

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

const (
	renewalRow = "moves-renewal-rings"

	// renewing is the number of shards that renew their Leases, each once in a renewal, for renewedFor.
	renewing            = 50
	renewal, renewedFor = time.Second, 5 * time.Second
)

// renewals measures what a renewal costs the API server and all services, which watch Leases: with one ring, and with many more.
func renewals(ctx context.Context, b *run.Bench) error {
	fleet, err := b.Fleet(ctx, shards.Ring{Name: "load-renewals", Main: objects.ConfigMaps.GroupResource()}, renewing)
	if err != nil {
		return err
	}

	if err := fleet.AwaitShards(ctx); err != nil {
		return err
	}

	const parts = 2

	alone, err := renewalCosts(ctx, b.Share(parts), fleet)
	if err != nil {
		return err
	}

	others := run.Pick(b, 10, 100)

	err = b.Each(ctx, others, func(b *run.Bench, i int) error {
		_, err := b.Fleet(ctx, shards.Ring{Name: "load-renewals-" + strconv.Itoa(i), Main: objects.ConfigMaps.GroupResource()}, 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("more rings: %w", err)
	}

	among, err := renewalCosts(ctx, b, fleet)
	if err != nil {
		return err
	}

	// The time budget may allow one of them more rounds.
	rounds := min(len(alone), len(among))
	alone, among = alone[:rounds], among[:rounds]

	note := fmt.Sprintf("%d shards renew their Leases once per second. What API server and services take without renewals is subtracted. The renewals are sent with the rights of an administrator.", renewing)
	b.Report(result.Row{
		ID: renewalRow, Title: fmt.Sprintf("CPU of API server and services per renewal of a Lease, with %d other rings", others), Unit: "ms", Values: among,
		FloorTitle: "without other rings", Floor: alone, Target: result.Max(1.2), Notes: []string{note},
	})

	return nil
}

// usedFor is the CPU time of API server and services, in milliseconds, and the renewals in that time.
type usedFor struct {
	ms       float64
	renewals int
	// of is the part of each process.
	of map[string]float64
}

func (u usedFor) String() string {
	parts := make([]string, 0, len(u.of))
	for _, name := range slices.Sorted(maps.Keys(u.of)) {
		parts = append(parts, fmt.Sprintf("%s %.0f", name, u.of[name]))
	}

	return fmt.Sprintf("%.0f ms (%s), %d renewals", u.ms, strings.Join(parts, ", "), u.renewals)
}

// renewalCosts returns the CPU time of API server and services per renewal, in milliseconds.
func renewalCosts(ctx context.Context, b *run.Bench, fleet *shards.Fleet) ([]float64, error) {
	values, floors, err := run.Rounds(ctx, b, func(ctx context.Context) (usedFor, error) {
		renewals := 0
		u, err := during(b, func() error {
			stop := fleet.Renew(ctx, renewal)
			paused := b.Pause(ctx, renewedFor)
			n, failed := stop()
			renewals = n

			return errors.Join(paused, failed)
		})
		u.renewals = renewals

		return u, err
	}, func(ctx context.Context) (usedFor, error) {
		return during(b, func() error { return b.Pause(ctx, renewedFor) })
	})

	costs := make([]float64, len(values))
	for i, v := range values {
		costs[i] = (v.ms - floors[i].ms) / float64(max(1, v.renewals))
	}

	return costs, err
}

// during measures the CPU time that API server and services take meanwhile.
func during(b *run.Bench, do func() error) (usedFor, error) {
	all, err := b.Local.Usage().During(do)

	u := usedFor{of: map[string]float64{}}
	for _, name := range append([]string{target.APIServer}, target.Services...) {
		u.of[name] = all[name].Milliseconds()
		u.ms += u.of[name]
	}

	return u, err
}
