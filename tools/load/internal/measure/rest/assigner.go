package rest

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

const assignerRow = "assigner-memory"

// rememberedRings measures the memory of an assigner that has started with all the rings there, once it knows all their shards.
func rememberedRings(ctx context.Context, b *run.Bench) error {
	rings, members := run.Pick(b, 5, 50), run.Pick(b, 100, 500)

	namespace, err := b.System.Namespace(ctx, "load-crowd")
	if err != nil {
		return err
	}

	err = b.Each(ctx, rings, func(b *run.Bench, i int) error {
		_, err := b.Fleet(ctx, shards.Ring{
			Name: "load-crowd-" + strconv.Itoa(i), Namespace: namespace, Main: objects.ConfigMaps.GroupResource(),
			State: "ready", // the lease monitor would take minutes to label so many
		}, members)

		return err
	})
	if err != nil {
		return err
	}

	var values []float64

	for range run.Pick(b, 1, 3) {
		if err := b.Local.Restart(ctx, target.Assigner); err != nil {
			return err
		}
		// The memory that it took to read the Leases is given back within a moment, if ever.
		if err := b.Pause(ctx, run.Pick(b, time.Second, 5*time.Second)); err != nil {
			return err
		}

		used, err := b.Local.Usage().Read()
		if err != nil {
			return err
		}

		u := used[target.Assigner]
		b.Progress("%d shards × %d rings: %.1f MiB, at the peak %.1f MiB", members, rings, float64(u.Memory)/mebibyte, peak(u))
		values = append(values, peak(u))
	}

	b.Report(result.Row{
		ID: assignerRow, Title: fmt.Sprintf("assigner memory, %d shards × %d rings", members, rings), Unit: "MiB", Values: values,
		Target: result.Max(64), Notes: []string{"The peak after a start with all rings and Leases in place."},
	})

	return nil
}
