// Package handover measures what a hand-over of owners with their controlled objects takes: how long an owner belongs
// to no shard, and how many writes that takes.
package handover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/record"
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

	recording, stop := context.WithCancel(ctx)

	recorder, err := record.Start(recording, b.Local.Config, record.Options{
		Ring:   fleet.Ring.Name,
		Labels: record.Labels{Shard: contract.ShardLabel(fleet.Ring.Name), Drain: contract.DrainLabel(fleet.Ring.Name)},
		Objects: []record.Objects{
			{Kind: check.Website, Namespace: fleet.Ring.Namespace}, {Kind: check.ConfigMap, Namespace: fleet.Ring.Namespace},
		},
	})
	if err != nil {
		stop()

		return fmt.Errorf("record the owners: %w", err)
	}
	defer func() {
		stop()
		recorder.Wait()
	}()

	owner := fmt.Sprintf("an owner of %d children", children)

	all, _, err := run.Rounds(ctx, b, func(ctx context.Context) (moved, error) {
		return join(ctx, b, fleet, recorder)
	}, nil)
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
		Notes:      []string{"Writes count that change the shard label, or add or remove the drain label."},
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
func join(ctx context.Context, b *run.Bench, fleet *shards.Fleet, recorder *record.Recorder) (m moved, err error) {
	began := record.Now()
	joined := ""

	err = fleet.Change(ctx, func() error {
		names, err := fleet.Join(ctx, 1)
		joined = strings.Join(names, "")

		return err
	})
	if err != nil {
		return m, err
	}

	theirs, err := b.Objects.List(ctx, objects.Selection{
		Kind: objects.Websites, Namespace: fleet.Ring.Namespace, Labels: contract.ShardLabel(fleet.Ring.Name) + "=" + joined,
	})
	if err != nil {
		return m, err
	}

	var (
		versions []check.Version
		nobodys  []time.Duration
	)

	err = objects.Until(ctx, "the record shows all moves", func(context.Context) (_ bool, err error) {
		versions, err = recorder.Versions()
		nobodys = nil
		released := map[string]time.Duration{}
		followers := 0

		for _, v := range recorder.Newest() {
			if v.Kind == check.ConfigMap && v.Shard == joined {
				followers++
			}
		}

		for _, v := range versions {
			since, was := released[v.UID]

			switch {
			case v.Kind != check.Website || v.At < began:
			case v.Shard == "":
				released[v.UID] = v.At
			case was:
				nobodys = append(nobodys, v.At-since)
				delete(released, v.UID)
			}
		}

		return len(nobodys) >= len(theirs) && len(released) == 0 && followers >= children*len(theirs), err
	})
	if err != nil {
		return m, err
	}

	m.writes = float64(continuity.Of(versions, began, record.Now()).Labels) / float64(len(nobodys))
	m.nobodys = continuity.Quantile(nobodys, 0.5).Seconds()

	return m, fleet.Change(ctx, func() error { return fleet.Lose(ctx, fleet.Held()[0]) })
}
