// Package handover measures what a hand-over of owners with their controlled objects takes: how long an owner belongs
// to no shard, and how many writes that takes.
package handover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
)

const (
	nobodysRow = "handover-nobodys"
	writesRow  = "handover-writes"

	// shardsAtFirst is the number of shards before one joins.
	shardsAtFirst = 3
	// children is the number of children of an owner.
	children = 3
)

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	return []run.Measurement{{
		Name: "handover", Small: 20 * time.Second, Full: 80 * time.Second,
		Parts: []run.Part{{Rows: []string{nobodysRow, writesRow}, Run: measure}},
	}}
}

// moved is what one join has done to owners: how long they belonged to no shard, in seconds (the median), and the
// number of writes per owner.
type moved struct{ nobodys, writes float64 }

func measure(ctx context.Context, b *run.Bench) error {
	fleet, err := owners(ctx, b)
	if err != nil {
		return err
	}

	owner := fmt.Sprintf("an owner of %d children", children)

	all, _, err := run.Rounds(ctx, b, func(ctx context.Context) (moved, error) { return join(ctx, b, fleet) }, nil)
	if err != nil {
		return err
	}
	b.Report(result.Row{
		ID: nobodysRow, Title: "time for which " + owner + " belongs to no shard in a planned move, median", Unit: "s",
		Values: result.Column(all, func(m moved) float64 { return m.nobodys }),
		Notes: []string{"The time counts from the write by which a shard releases the owner to the write that assigns it " +
			"to the next shard. An owner without children always belongs to a shard."},
	}, result.Row{
		ID: writesRow, Title: "writes to move " + owner, Unit: "writes",
		Values:     result.Column(all, func(m moved) float64 { return m.writes }),
		FloorTitle: "one to drain it, one to release it, one for each child, and one to assign it",
		Floor:      slices.Repeat([]float64{3 + children}, len(all)),
	})

	return nil
}

// owners returns a ring of Websites with so many ConfigMaps each, all in their places. There are so many that the moves
// of a quarter of them, which move when a fourth shard joins, take much longer than it takes to notice the shard.
func owners(ctx context.Context, b *run.Bench) (*shards.Fleet, error) {
	fleet, err := b.Fleet(ctx, shards.Ring{
		Name: "load-owners", Main: objects.Websites.GroupResource(),
		Controlled: []schema.GroupResource{objects.ConfigMaps.GroupResource()},
	}, shardsAtFirst)
	if err != nil {
		return nil, err
	}

	namespace := fleet.Ring.Namespace
	b.RemoveAll(namespace, objects.Websites, objects.ConfigMaps)

	stop, err := fleet.Acknowledge(ctx, objects.Websites)
	if err != nil {
		return nil, err
	}
	b.Cleanup(func(context.Context) error { return stop() })

	err = b.Objects.Create(ctx, objects.Batch{
		Kind: objects.Websites, Namespace: namespace, Prefix: "owner", Count: run.Pick(b, 400, 1300),
	})
	if err != nil {
		return nil, err
	}

	list, err := b.Objects.List(ctx, objects.Selection{Kind: objects.Websites, Namespace: namespace})

	for i := range list {
		err = errors.Join(err, b.Objects.Create(ctx, objects.Batch{
			Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "of-" + list[i].Name, Count: children,
			Owner: metav1.NewControllerRef(&list[i], objects.Websites.GroupVersion().WithKind(objects.Websites.Kind)),
		}))
	}

	if err != nil {
		return nil, err
	}

	err = fleet.AwaitConverged(ctx, "")

	return fleet, err
}

// join lets a shard join, sees the owners come to it, and has the first shard leave, so that the next round finds as
// many.
func join(ctx context.Context, b *run.Bench, fleet *shards.Fleet) (m moved, err error) {
	var (
		label    = contract.ShardLabel(fleet.Ring.Name)
		websites = objects.Selection{Kind: objects.Websites, Namespace: fleet.Ring.Namespace}
		written  int
		released = map[string]time.Time{} // by name
		nobodys  []time.Duration
	)

	seen, err := b.Objects.Watch(ctx, func(event watch.EventType, kind objects.Kind, o *metav1.PartialObjectMetadata) {
		if event != watch.Modified {
			return
		}

		written++

		since, was := released[o.Name]

		switch {
		case kind != objects.Websites:
		case o.Labels[label] == "":
			released[o.Name] = b.Clock.Now()
		case was:
			nobodys = append(nobodys, b.Clock.Since(since))
			delete(released, o.Name)
		}
	}, websites, objects.Selection{Kind: objects.ConfigMaps, Namespace: fleet.Ring.Namespace})
	if err != nil {
		return m, err
	}
	defer seen.Stop()

	err = fleet.Change(ctx, func() error {
		names, err := fleet.Join(ctx, 1)
		websites.Labels = label + "=" + names[0]

		return err
	})
	if err != nil {
		return m, err
	}

	theirs, err := b.Objects.List(ctx, websites)
	if err == nil && len(theirs) == 0 {
		err = fmt.Errorf("no owner has moved to %s: there are too few", websites.Labels)
	}

	if err != nil {
		return m, err
	}

	err = seen.Until(ctx, "the watch has shown all moves", func() bool { return len(nobodys) >= len(theirs) })
	if err != nil {
		return m, err
	}

	seen.Stop()

	m.nobodys = continuity.Quantile(nobodys, 0.5).Seconds()
	m.writes = float64(written) / float64(len(theirs))

	return m, fleet.Change(ctx, func() error { return fleet.Lose(ctx, fleet.Held()[0]) })
}
