package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
)

const (
	// shardsAtFirst is how many shards there are before one joins.
	shardsAtFirst = 3
)

// owners are Websites of a ring with so many ConfigMaps each. Make them with [open]; they are for one goroutine.
type owners struct {
	bench    *run.Bench
	fleet    *shards.Fleet
	drains   *shards.Drains
	children int
}

// withChildren measures joins of a ring whose objects have so many children.
func withChildren(ctx context.Context, b *run.Bench, children int) (values, floors []moved, err error) {
	o, err := open(ctx, b, children)
	if o != nil {
		defer func() { err = errors.Join(err, o.close(context.WithoutCancel(ctx))) }()
	}

	if err != nil {
		return nil, nil, err
	}

	return run.Rounds(ctx, b, o.join, o.raw)
}

func open(ctx context.Context, b *run.Bench, children int) (*owners, error) {
	ring := shards.Ring{Name: fmt.Sprintf("load-owners-%d", children), Main: objects.Websites.GroupResource()}
	if children > 0 {
		ring.Controlled = []schema.GroupResource{objects.ConfigMaps.GroupResource()}
	}

	fleet, err := b.Fleet(ctx, ring)
	if err != nil {
		return nil, err
	}

	o := &owners{bench: b, children: children, fleet: fleet}
	if _, err := o.fleet.Join(ctx, shardsAtFirst); err != nil {
		return o, err
	}

	if err := o.fleet.Declare(ctx); err != nil {
		return o, err
	}

	o.drains = o.fleet.Acknowledge(ctx, run.Concurrency, objects.Websites)
	if err := o.fill(ctx, o.count()); err != nil {
		return o, err
	}

	return o, nil
}

// count returns how many owners there are: so many that a quarter of them, which moves when a fourth shard joins, takes about as many writes
// whatever the number of their children, and that these take much longer than it takes to notice the shard.
func (o *owners) count() int {
	writes := run.Pick(o.bench, 600, 2000)
	return (shardsAtFirst + 1) * writes / o.writes()
}

// writes returns how many writes the move of one owner takes: one to ask for it and one to give it up, and, if it has children, one for each and
// one to assign it.
func (o *owners) writes() int {
	if o.children == 0 {
		return 2
	}

	return 3 + o.children
}

// fill creates the objects, and waits until all are in their places.
func (o *owners) fill(ctx context.Context, count int) error {
	sites := objects.Batch{Kind: objects.Websites, Namespace: o.fleet.Ring.Namespace, Prefix: "owner", Count: count, Concurrency: run.Concurrency}
	if err := o.bench.Objects.Create(ctx, sites); err != nil {
		return err
	}

	list, err := o.list(ctx, objects.Websites)
	if err != nil {
		return err
	}

	for i := range list.Items {
		site := &list.Items[i]

		children := objects.Batch{
			Kind: objects.ConfigMaps, Namespace: o.fleet.Ring.Namespace, Prefix: "of-" + site.Name, Count: o.children, Concurrency: run.Concurrency,
			Owner: metav1.NewControllerRef(site, objects.Websites.GroupVersion().WithKind(objects.Websites.Kind)),
		}
		if err := o.bench.Objects.Create(ctx, children); err != nil {
			return err
		}
	}

	return o.fleet.AwaitConverged(ctx, "")
}

// close removes all of it, unless all that there is ends with this measurement.
func (o *owners) close(ctx context.Context) error {
	var errs []error
	if o.drains != nil {
		errs = append(errs, o.drains.Stop())
	}

	if o.bench.Last() {
		return errors.Join(errs...)
	}

	for _, kind := range []objects.Kind{objects.ConfigMaps, objects.Websites} {
		errs = append(errs, o.bench.Objects.DeleteAll(ctx, objects.Selection{Kind: kind, Namespace: o.fleet.Ring.Namespace}, run.Concurrency))
	}

	return errors.Join(append(errs, o.fleet.Close(ctx))...)
}

func (o *owners) list(ctx context.Context, kind objects.Kind) (*metav1.PartialObjectMetadataList, error) {
	list, err := o.bench.Objects.Metadata.Resource(kind.GroupVersionResource).Namespace(o.fleet.Ring.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the %s of ring %s: %w", kind.Resource, o.fleet.Ring.Name, err)
	}

	return list, nil
}

// join lets a shard join, sees the owners come to it, and has the first shard leave, so that the next round finds as many.
func (o *owners) join(ctx context.Context) (moved, error) {
	before, err := o.fleet.Read(ctx)
	if err != nil {
		return moved{}, err
	}

	seen, err := o.watch(ctx)
	if err != nil {
		return moved{}, err
	}
	defer seen.stop()

	began := o.bench.Clock.Now()

	names, err := o.fleet.Join(ctx, 1)
	if err != nil {
		return moved{}, err
	}

	if err := o.fleet.AwaitConverged(ctx, shards.Fingerprint(before)); err != nil {
		return moved{}, err
	}

	list, err := o.list(ctx, objects.Websites)
	if err != nil {
		return moved{}, err
	}

	theirs := map[string]string{} // by name, the version of now

	for i := range list.Items {
		if list.Items[i].Labels[v1alpha1.ShardLabel(o.fleet.Ring.Name)] == names[0] {
			theirs[list.Items[i].Name] = list.Items[i].ResourceVersion
		}
	}

	if len(theirs) == 0 {
		return moved{}, errors.New("no owner has moved: there are too few")
	}

	m, err := seen.moved(ctx, theirs, began)
	if err != nil {
		return moved{}, err
	}

	return m, o.lose(ctx)
}

// lose has the first shard declared dead, and waits until its objects have moved.
func (o *owners) lose(ctx context.Context) error {
	before, err := o.fleet.Read(ctx)
	if err != nil {
		return err
	}

	if err := o.fleet.Lose(ctx, o.fleet.Held()[0]); err != nil {
		return err
	}

	return o.fleet.AwaitConverged(ctx, shards.Fingerprint(before))
}

// raw sends as many writes for as many owners, those of the first shard, as a join takes.
func (o *owners) raw(ctx context.Context) (moved, error) {
	list, err := o.list(ctx, objects.Websites)
	if err != nil {
		return moved{}, err
	}

	first := o.fleet.Held()[0]

	sites := slices.DeleteFunc(list.Items, func(site metav1.PartialObjectMetadata) bool {
		return site.Labels[v1alpha1.ShardLabel(o.fleet.Ring.Name)] != first
	})
	if len(sites) == 0 {
		return moved{}, errors.New("the first shard has no owner: there are too few")
	}

	seen, err := o.watch(ctx) // as join does: it costs the API server something
	if err != nil {
		return moved{}, err
	}
	defer seen.stop()

	began := o.bench.Clock.Now()

	err = objects.Each(ctx, len(sites), run.Concurrency, func(ctx context.Context, i int) error { return o.rawOne(ctx, sites[i].Name) })
	if err != nil {
		return moved{}, err
	}

	return moved{owners: len(sites), writes: float64(o.writes()), rate: float64(len(sites)) / o.bench.Clock.Since(began).Seconds()}, nil
}

// rawOne sends the writes for one owner, one after the other.
func (o *owners) rawOne(ctx context.Context, name string) error {
	owner := objects.Websites.Path(o.fleet.Ring.Namespace, name)

	paths := []string{owner, owner}
	for i := range o.children {
		paths = append(paths, objects.ConfigMaps.Path(o.fleet.Ring.Namespace, "of-"+name+"-"+strconv.Itoa(i)))
	}

	if o.children > 0 {
		paths = append(paths, owner)
	}

	for _, path := range paths {
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{objects.TurnLabel: strconv.FormatInt(o.bench.Clock.Now().UnixNano(), 10)}}})
		if err != nil {
			return fmt.Errorf("encode a patch: %w", err)
		}

		if err := o.bench.Objects.MergePatch(ctx, path, body); err != nil {
			return err
		}
	}

	return nil
}
