// Package handover measures what a hand-over of owners with their controlled objects takes: how long an owner belongs
// to no shard, and how many writes that takes.
package handover

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

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
)

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	return []run.Measurement{{
		Name: "handover", Small: 20 * time.Second, Full: 80 * time.Second,
		Parts: []run.Part{{Rows: []string{nobodysRow, writesRow}, Run: measure}},
	}}
}

// moved is what one join has done to owners.
type moved struct {
	owners int
	// nobodys is how long owners belonged to no shard, in seconds: the median.
	nobodys float64
	// writes is the number of writes per owner.
	writes float64
}

func (m moved) String() string {
	return fmt.Sprintf("%d owners, without a shard for %.3f s, %.1f writes each", m.owners, m.nobodys, m.writes)
}

func measure(ctx context.Context, b *run.Bench) error {
	o, err := open(ctx, b)
	if err != nil {
		return err
	}

	owner := fmt.Sprintf("an owner of %d children", children)
	least := func(context.Context) (moved, error) { return moved{writes: writes}, nil }

	return run.Compare(ctx, b, run.Sides[moved]{Value: o.join, Floor: least},
		run.Figure[moved]{Row: result.Row{
			ID: nobodysRow, Title: "time for which " + owner + " belongs to no shard in a planned move, median",
			Unit: "s",
			Notes: []string{"The time counts from the write by which a shard releases the owner to the write that assigns it " +
				"to the next shard. An owner without children always belongs to a shard."},
		}, Of: func(m moved) float64 { return m.nobodys }},
		run.Figure[moved]{Row: result.Row{
			ID: writesRow, Title: "writes to move " + owner, Unit: "writes",
			FloorTitle: "one to drain it, one to release it, one for each child, and one to assign it",
		}, Of: func(m moved) float64 { return m.writes }})
}

const (
	// shardsAtFirst is the number of shards before one joins.
	shardsAtFirst = 3
	// children is the number of children of an owner.
	children = 3
	// writes is what the move of one owner takes: one to drain it, one to release it, one for each child, and one to
	// assign it.
	writes = 3 + children
)

// owners are Websites of a ring with so many ConfigMaps each. Create them with [open]; they are for one goroutine.
type owners struct {
	bench *run.Bench
	fleet *shards.Fleet
}

func open(ctx context.Context, b *run.Bench) (*owners, error) {
	fleet, err := b.Fleet(ctx, shards.Ring{
		Name: "load-owners", Main: objects.Websites.GroupResource(),
		Controlled: []schema.GroupResource{objects.ConfigMaps.GroupResource()},
	}, shardsAtFirst)
	if err != nil {
		return nil, err
	}

	o := &owners{bench: b, fleet: fleet}
	b.RemoveAll(fleet.Ring.Namespace, objects.Websites, objects.ConfigMaps)

	stop, err := fleet.Acknowledge(ctx, objects.Websites)
	if err != nil {
		return nil, err
	}
	b.Cleanup(func(context.Context) error { return stop() })

	err = o.fill(ctx)

	return o, err
}

func (o *owners) all(kind objects.Kind) objects.Selection {
	return objects.Selection{Kind: kind, Namespace: o.fleet.Ring.Namespace}
}

// fill creates the objects, and waits until all are in their places. There are so many owners that the moves of a
// quarter of them, which move when a fourth shard joins, take much longer than it takes to notice the shard.
func (o *owners) fill(ctx context.Context) error {
	sites := objects.Batch{
		Kind: objects.Websites, Namespace: o.fleet.Ring.Namespace, Prefix: "owner", Count: run.Pick(o.bench, 400, 1300),
	}
	if err := o.bench.Objects.Create(ctx, sites); err != nil {
		return err
	}

	list, err := o.bench.Objects.List(ctx, o.all(objects.Websites))
	if err != nil {
		return err
	}

	for i := range list {
		children := objects.Batch{
			Kind: objects.ConfigMaps, Namespace: o.fleet.Ring.Namespace, Prefix: "of-" + list[i].Name, Count: children,
			Owner: metav1.NewControllerRef(&list[i], objects.Websites.GroupVersion().WithKind(objects.Websites.Kind)),
		}
		if err := o.bench.Objects.Create(ctx, children); err != nil {
			return err
		}
	}

	return o.fleet.AwaitConverged(ctx, "")
}

// of returns the owners of a shard.
func (o *owners) of(ctx context.Context, shard string) ([]metav1.PartialObjectMetadata, error) {
	theirs := o.all(objects.Websites)
	theirs.Labels = contract.ShardLabel(o.fleet.Ring.Name) + "=" + shard

	list, err := o.bench.Objects.List(ctx, theirs)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("shard %s has no owner: there are too few", shard)
	}

	return list, err
}

// join lets a shard join, sees the owners come to it, and has the first shard leave, so that the next round finds as
// many.
func (o *owners) join(ctx context.Context) (moved, error) {
	h, seen, err := o.watch(ctx)
	if err != nil {
		return moved{}, err
	}
	defer seen.Stop()

	var newcomer string

	err = o.fleet.Change(ctx, func() error {
		names, err := o.fleet.Join(ctx, 1)
		newcomer = names[0]

		return err
	})
	if err != nil {
		return moved{}, err
	}

	theirs, err := o.of(ctx, newcomer)
	if err != nil {
		return moved{}, err
	}

	var m moved

	err = seen.Until(ctx, "the watch has shown all that a list has", func() (all bool) {
		m, all = h.moved(theirs)
		return all
	})
	if err != nil {
		return moved{}, err
	}

	return m, o.fleet.Change(ctx, func() error { return o.fleet.Lose(ctx, o.fleet.Held()[0]) })
}

// watch begins to watch owners and children as they are now.
func (o *owners) watch(ctx context.Context) (*history, *objects.Watch, error) {
	h := newHistory(o.bench.Clock, contract.ShardLabel(o.fleet.Ring.Name))
	seen, err := o.bench.Objects.Watch(ctx, h.see, o.all(objects.Websites), o.all(objects.ConfigMaps))

	return h, seen, err
}

// history is what the watches of owners and children have shown, by name of the owner.
type history struct {
	clock clock.PassiveClock
	label string

	writes int
	// left is when an owner was released, unless it has come to another shard since, and nobodys how long it belonged to
	// no shard then.
	left    map[string]time.Time
	nobodys map[string]time.Duration
	// version is its latest resource version.
	version map[string]string
}

func newHistory(c clock.PassiveClock, label string) *history {
	return &history{
		clock: c, label: label,
		left: map[string]time.Time{}, nobodys: map[string]time.Duration{}, version: map[string]string{},
	}
}

// see records an event.
func (h *history) see(event watch.EventType, kind objects.Kind, o *metav1.PartialObjectMetadata) {
	if event != watch.Modified {
		return
	}

	h.writes++

	if kind != objects.Websites {
		return
	}

	now := h.clock.Now()

	h.version[o.Name] = o.ResourceVersion
	if o.Labels[h.label] == "" {
		h.left[o.Name] = now
		return
	}

	if since, was := h.left[o.Name]; was {
		h.nobodys[o.Name] = now.Sub(since)
		delete(h.left, o.Name)
	}
}

// moved returns how owners have moved, and whether the watches have shown them as they are listed.
func (h *history) moved(theirs []metav1.PartialObjectMetadata) (m moved, all bool) {
	const median = 0.5

	var took []time.Duration

	for i := range theirs {
		name := theirs[i].Name
		if h.version[name] != theirs[i].ResourceVersion {
			return moved{}, false
		}

		took = append(took, h.nobodys[name])
	}

	return moved{
		owners: len(theirs), nobodys: continuity.Quantile(took, median).Seconds(),
		writes: float64(h.writes) / float64(len(theirs)),
	}, true
}
