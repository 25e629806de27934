package rest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

const (
	assignerRow = "assigner-memory"
	// openers is how many rings are created or removed at a time.
	openers = 8
)

func assignerMemory() run.Measurement {
	return run.Measurement{
		Name: "assigner-memory", IDs: []string{assignerRow},
		Budget: map[run.Scale]time.Duration{run.Small: 20 * time.Second, run.Full: 120 * time.Second}, Run: rememberedRings,
	}
}

// rememberedRings measures the memory of an assigner that has started with all the rings there, once it knows all their shards.
func rememberedRings(ctx context.Context, b *run.Bench) (rows []result.Row, series []result.Series, err error) {
	rings, members := run.Pick(b, 5, 50), run.Pick(b, 100, 500)

	namespace, err := b.System.Namespace(ctx, "load-crowd")
	if err != nil {
		return nil, nil, err
	}

	fleets := make([]*shards.Fleet, rings)
	each := func(ctx context.Context, do func(ctx context.Context, f *shards.Fleet) error) error {
		return objects.Each(ctx, rings, openers, func(ctx context.Context, i int) error { return do(ctx, fleets[i]) })
	}

	for i := range fleets {
		ring := shards.Ring{Name: "load-crowd-" + strconv.Itoa(i), Namespace: namespace, Main: objects.ConfigMaps.GroupResource()}
		if fleets[i], err = b.Fleet(ctx, ring); err != nil {
			return nil, nil, err
		}

		fleets[i].State = "ready" // the lease monitor would take minutes to label so many
	}

	defer func() {
		err = errors.Join(err, each(context.WithoutCancel(ctx), func(ctx context.Context, f *shards.Fleet) error { return f.Close(ctx) }))
	}()
	// The Leases first, so that each ring knows all its shards at once.
	for _, f := range fleets {
		if _, err := f.Join(ctx, members); err != nil {
			return nil, nil, err
		}
	}

	if err := each(ctx, func(ctx context.Context, f *shards.Fleet) error { return f.Declare(ctx) }); err != nil {
		return nil, nil, err
	}

	var values []float64

	for range run.Pick(b, 1, 3) {
		if err := b.Local.Restart(ctx, target.Assigner); err != nil {
			return nil, nil, err
		}
		// What it took to read the Leases is given back within a moment, if ever.
		if err := b.Pause(ctx, run.Pick(b, time.Second, 5*time.Second)); err != nil {
			return nil, nil, err
		}

		used, err := b.Local.Usage().Read()
		if err != nil {
			return nil, nil, err
		}

		u := used[target.Assigner]
		b.Progress("%d shards × %d rings: %.1f MiB, at the peak %.1f MiB", members, rings, float64(u.Memory)/mebibyte, float64(u.PeakMemory)/mebibyte)
		values = append(values, float64(u.PeakMemory)/mebibyte)
	}

	return []result.Row{{
		ID: assignerRow, Title: fmt.Sprintf("assigner memory, %d shards × %d rings", members, rings), Unit: "MiB", Values: values,
		Judge: result.JudgeValue, Target: result.Target{Bound: result.AtMost, Value: 64, Unit: "MiB"},
		Notes: []string{"The highest since it was started with all rings and Leases there."},
	}}, nil, nil
}
