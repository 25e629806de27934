package world

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

// openers is how many rings are made or removed at a time.
const openers = 8

// Crowd is many rings, each with its own shards and objects. Make it with [OpenCrowd]; it is for one goroutine.
type Crowd struct {
	// Worlds are the rings.
	Worlds []*World

	bench *run.Bench
}

// Size says how many rings there are, with how many shards each, and how their names begin.
type Size struct {
	Name          string
	Rings, Shards int
}

// OpenCrowd declares many rings without objects. Close removes them.
func OpenCrowd(ctx context.Context, b *run.Bench, size Size) (c *Crowd, err error) {
	c = &Crowd{Worlds: make([]*World, size.Rings), bench: b}

	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close(context.WithoutCancel(ctx)))
		}
	}()

	return c, objects.Each(ctx, size.Rings, openers, func(_ context.Context, i int) error {
		w, err := Open(ctx, b, size.Name+"-"+strconv.Itoa(i), size.Shards) // what goes on until it is closed outlasts the call that this is
		if err == nil {
			c.Worlds[i] = w
		}

		return err
	})
}

// Close removes all of them.
func (c *Crowd) Close(ctx context.Context) error {
	errs := make([]error, len(c.Worlds))
	_ = objects.Each(ctx, len(c.Worlds), openers, func(ctx context.Context, i int) error {
		if w := c.Worlds[i]; w != nil {
			errs[i] = w.Close(ctx)
		}

		return nil
	})

	return errors.Join(errs...)
}

// Grow creates objects until each ring has as many as given.
func (c *Crowd) Grow(ctx context.Context, each int) error {
	return c.all(ctx, func(ctx context.Context, w *World) error { return w.Grow(ctx, each) })
}

// AwaitConverged waits until all rings have converged.
func (c *Crowd) AwaitConverged(ctx context.Context) error {
	return c.all(ctx, func(ctx context.Context, w *World) error { return w.AwaitConverged(ctx, "") })
}

func (c *Crowd) all(ctx context.Context, do func(context.Context, *World) error) error {
	return objects.Each(ctx, len(c.Worlds), openers, func(ctx context.Context, i int) error { return do(ctx, c.Worlds[i]) })
}

// orphans are the objects of a shard.
type orphans struct {
	world *World
	shard string
	list  []object
}

// first returns the objects of the first shard of each ring that has any, and how many they are.
func (c *Crowd) first(ctx context.Context) (found []orphans, count int, err error) {
	found = make([]orphans, len(c.Worlds))

	err = objects.Each(ctx, len(c.Worlds), openers, func(ctx context.Context, i int) error {
		shard, list, err := c.Worlds[i].firstUsed(ctx)
		found[i] = orphans{c.Worlds[i], shard, list}

		return err
	})
	for _, o := range found {
		count += len(o.list)
	}

	return found, count, err
}

// Die has one shard die in each ring, all at once, and returns what it took to move all their objects.
func (c *Crowd) Die(ctx context.Context) (Cost, error) {
	theirs, count, err := c.first(ctx)
	if err != nil {
		return Cost{}, err
	}

	return c.watched(ctx, count, func(ctx context.Context) error {
		return objects.Each(ctx, len(theirs), run.Concurrency, func(ctx context.Context, i int) error {
			return theirs[i].world.Lose(ctx, theirs[i].shard)
		})
	})
}

// Raw patches as many objects, of the same shards, and returns what that took: the floor of [Crowd.Die].
func (c *Crowd) Raw(ctx context.Context) (Cost, error) {
	theirs, count, err := c.first(ctx)
	if err != nil {
		return Cost{}, err
	}

	type one struct {
		world *World
		object
	}

	var all []one

	for _, o := range theirs {
		for _, object := range o.list {
			all = append(all, one{o.world, object})
		}
	}

	w := c.Worlds[0]
	turn := w.turn()

	return c.watched(ctx, count, func(ctx context.Context) error {
		return objects.Each(ctx, len(all), run.Concurrency, func(ctx context.Context, i int) error {
			return w.patch(ctx, all[i].world.Ring.Namespace, all[i].object, turn)
		})
	})
}

// watched does what changes so many objects, sees them change, and returns what it took until all rings were settled.
func (c *Crowd) watched(ctx context.Context, count int, action func(context.Context) error) (Cost, error) {
	version, err := c.version(ctx)
	if err != nil {
		return Cost{}, err
	}

	seen, err := observe(ctx, c.bench, watching{kind: objects.ConfigMaps, version: version, alters: true, count: count})
	if err != nil {
		return Cost{}, err
	}
	defer seen.stop()

	if err := c.Worlds[0].calm(ctx); err != nil {
		return Cost{}, err
	}

	var times times

	began := c.bench.Clock.Now()

	used, err := c.bench.Local.Usage().During(func() (err error) {
		if err := action(ctx); err != nil {
			return err
		}

		times, err = seen.await(ctx, count)

		return err
	})
	if err != nil {
		return Cost{}, err
	}

	cost := Cost{Moved: count, Rate: float64(count) / times.last.Sub(began).Seconds(), First: times.first.Sub(began).Seconds(), CPU: map[string]float64{}}
	for name, u := range used {
		cost.CPU[name] = float64(u.CPU) / float64(time.Millisecond) / float64(count)
	}

	cost.APIServer, cost.Rebalancer = cost.CPU[target.APIServer], cost.CPU[target.Rebalancer]

	return cost, c.AwaitConverged(ctx)
}

// version returns the present version of all ConfigMaps.
func (c *Crowd) version(ctx context.Context) (string, error) {
	list, err := c.bench.Objects.Metadata.Resource(objects.ConfigMaps.GroupVersionResource).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", fmt.Errorf("list an object: %w", err)
	}

	return list.ResourceVersion, nil
}

// firstUsed returns the first shard that has objects, and these.
func (w *World) firstUsed(ctx context.Context) (shard string, list []object, err error) {
	for _, shard := range w.Held() {
		list, _, err := w.list(ctx, in(v1alpha1.ShardLabel(w.Ring.Name), []string{shard}))
		if err != nil || len(list) > 0 {
			return shard, list, err
		}
	}

	return "", nil, fmt.Errorf("no shard of ring %s has an object", w.Ring.Name)
}

// Orphan has the first shard die that has objects, and returns how long it took until the first of them had been moved. It calls begun
// then, unless that is nil, and returns when all have been moved.
func (w *World) Orphan(ctx context.Context, begun func(context.Context) error) (first time.Duration, err error) {
	shard, list, err := w.firstUsed(ctx)
	if err != nil {
		return 0, err
	}

	label := in(v1alpha1.ShardLabel(w.Ring.Name), []string{shard})

	_, version, err := w.list(ctx, label)
	if err != nil {
		return 0, err
	}

	what := watching{kind: objects.ConfigMaps, namespace: w.Ring.Namespace, selector: label, version: version, leaves: true}

	seen, err := observe(ctx, w.bench, what)
	if err != nil {
		return 0, err
	}
	defer seen.stop()

	began := w.bench.Clock.Now()
	if err := w.Lose(ctx, shard); err != nil {
		return 0, err
	}

	times, err := seen.await(ctx, 1)
	if err != nil {
		return 0, err
	}

	if begun != nil {
		if err := begun(ctx); err != nil {
			return 0, err
		}
	}

	_, err = seen.await(ctx, len(list))

	return times.first.Sub(began), err
}
