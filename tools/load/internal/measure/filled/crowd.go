package filled

import (
	"context"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/run"
)

// openers is the number of rings that are filled or read at a time.
const openers = 8

// Crowd is many rings, each with its own shards and objects. Create it with [OpenCrowd]; it is for one goroutine.
type Crowd []*Ring

// Size is the number of rings, and the number of shards and objects of each.
type Size struct{ Rings, Shards, Objects int }

// OpenCrowd declares many rings with shards and objects. They are removed with the bench.
func OpenCrowd(ctx context.Context, b *run.Bench, size Size) (Crowd, error) {
	c := make(Crowd, size.Rings)

	err := b.Each(ctx, size.Rings, func(b *run.Bench, i int) (err error) {
		if c[i], err = Open(ctx, b, "load-rings-"+strconv.Itoa(i), size.Shards); err != nil {
			return err
		}

		return c[i].Grow(ctx, size.Objects)
	})

	return c, err
}

func (c Crowd) all(ctx context.Context, do func(ctx context.Context, i int) error) error {
	return objects.Each(ctx, len(c), openers, do)
}

// Die has one shard die in each ring, all at once, and returns what it took to move all their objects.
func (c Crowd) Die(ctx context.Context) (Cost, error) {
	return c.measure(ctx, func(ctx context.Context, shards []string, _ []metav1.PartialObjectMetadata) error {
		return objects.Each(ctx, len(c), objects.Concurrency, func(ctx context.Context, i int) error { return c[i].Lose(ctx, shards[i]) })
	})
}

// Raw patches the objects of the same shards, and returns what that took: the floor of [Crowd.Die].
func (c Crowd) Raw(ctx context.Context) (Cost, error) {
	return c.measure(ctx, func(ctx context.Context, _ []string, theirs []metav1.PartialObjectMetadata) error {
		return c[0].patch(ctx, theirs, c[0].turn())
	})
}

// measure measures what changes the objects of one shard of each ring.
func (c Crowd) measure(ctx context.Context, change func(context.Context, []string, []metav1.PartialObjectMetadata) error) (Cost, error) {
	shards, lists := make([]string, len(c)), make([][]metav1.PartialObjectMetadata, len(c))

	err := c.all(ctx, func(ctx context.Context, i int) (err error) {
		shards[i], lists[i], err = c[i].firstUsed(ctx)
		return err
	})
	if err != nil {
		return Cost{}, err
	}

	theirs, ring := slices.Concat(lists...), 0
	for _, w := range c {
		ring += w.made
	}

	return trial{
		counts: objects.Selection{Kind: objects.ConfigMaps}, event: watch.Modified, ring: ring,
		act: func(ctx context.Context) (int, error) { return len(theirs), change(ctx, shards, theirs) },
		settle: func(ctx context.Context) error {
			return c.all(ctx, func(ctx context.Context, i int) error { return c[i].AwaitConverged(ctx, "") })
		},
	}.measure(ctx, c[0].bench)
}
