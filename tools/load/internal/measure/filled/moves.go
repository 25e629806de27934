package filled

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
)

// metadataOnly is the type of response that the rebalancer asks for.
const metadataOnly = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// Die has so many shards declared dead, in the order of their names, and returns what it took to move their objects, once the ring has
// settled.
func (w *Ring) Die(ctx context.Context, n int) (Cost, error) {
	return w.lose(ctx, w.Held()[:n], trial{}, w.Lose)
}

// Leave lets one shard leave in the given way. The time is also taken when as many objects have moved as mark says.
func (w *Ring) Leave(ctx context.Context, way func(context.Context, string) error, mark int) (Cost, error) {
	return w.lose(ctx, w.Held()[:1], trial{mark: mark}, way)
}

// Least returns the floor of Die: raw patches of the objects of so many shards after two of each Lease, because a death is a write that takes
// the Lease, and one that labels it with its state, whoever moves the objects.
func (w *Ring) Least(ctx context.Context, n int) (Cost, error) {
	return w.rawAfter(ctx, func(ctx context.Context, turn string) error {
		const writes = 2

		return objects.Each(ctx, writes*n, objects.Concurrency, func(ctx context.Context, i int) error {
			return w.Mark(ctx, w.Held()[i%n], turn+"-"+strconv.Itoa(i/n))
		})
	}, n, 0)
}

// lose measures a trial in which shards leave in the given way.
func (w *Ring) lose(ctx context.Context, leaving []string, t trial, way func(context.Context, string) error) (Cost, error) {
	if len(leaving) >= len(w.Held()) {
		return Cost{}, fmt.Errorf("%d shards cannot leave: one has to stay", len(leaving))
	}

	before, err := w.Read(ctx)
	if err != nil {
		return Cost{}, err
	}

	t.counts, t.event = w.of(leaving), watch.Deleted

	theirs, err := w.bench.Objects.List(ctx, t.counts)
	if err != nil {
		return Cost{}, err
	}

	t.act = func(ctx context.Context) (int, error) {
		return len(theirs), objects.Each(ctx, len(leaving), objects.Concurrency, func(ctx context.Context, i int) error { return way(ctx, leaving[i]) })
	}

	return w.measure(ctx, t, shards.Fingerprint(before))
}

// Join lets so many shards join, and returns what it took until the other shards had given up their objects and these were theirs, once the
// ring has settled.
func (w *Ring) Join(ctx context.Context, n int) (Cost, error) {
	before, err := w.Read(ctx)
	if err != nil {
		return Cost{}, err
	}

	label := contract.ShardLabel(w.Ring.Name)
	counts := w.selected(label + " notin (" + strings.Join(w.Held(), ",") + ")," + label)

	return w.measure(ctx, trial{counts: counts, event: watch.Added, act: func(ctx context.Context) (int, error) {
		names, err := w.Fleet.Join(ctx, n)
		if err != nil {
			return 0, err
		}
		// How many objects move to them is known once all have moved.
		if err := w.AwaitConverged(ctx, shards.Fingerprint(before)); err != nil {
			return 0, err
		}

		theirs, err := w.bench.Objects.List(ctx, w.of(names))

		return len(theirs), err
	}}, shards.Fingerprint(before))
}

// Raw patches the objects of the first n shards, at most limit (0 means all), and returns what that took: the floor of moves without what a
// death writes to Leases. The objects are watched in the same way, so that the tool costs the API server as much.
func (w *Ring) Raw(ctx context.Context, n, limit int) (Cost, error) {
	return w.rawAfter(ctx, func(context.Context, string) error { return nil }, n, limit)
}

// rawAfter is Raw, after something else that counts too.
func (w *Ring) rawAfter(ctx context.Context, first func(ctx context.Context, turn string) error, n, limit int) (Cost, error) {
	theirs := w.of(w.Held()[:n])

	list, err := w.bench.Objects.List(ctx, theirs)
	if err != nil {
		return Cost{}, err
	}

	if limit > 0 && limit < len(list) {
		list = list[:limit]
	}

	turn := w.turn()
	theirs.Labels += "," + objects.TurnLabel + " notin (" + turn + ")"

	return w.measure(ctx, trial{counts: theirs, event: watch.Deleted, mark: len(list), act: func(ctx context.Context) (int, error) {
		if err := first(ctx, turn); err != nil {
			return 0, err
		}

		return len(list), w.patch(ctx, list, turn)
	}}, "")
}

// measure measures a trial of this ring. It has settled when it has converged among other shards than the ones with the fingerprint before.
func (w *Ring) measure(ctx context.Context, t trial, before string) (Cost, error) {
	t.ring = w.made
	t.settle = func(ctx context.Context) error { return w.AwaitConverged(ctx, before) }

	return t.measure(ctx, w.bench)
}

// turn returns a label value that distinguishes one pass of raw patches from another.
func (w *Ring) turn() string {
	w.turns++
	return strconv.Itoa(w.turns)
}

// patch patches objects as the rebalancer does.
func (w *Ring) patch(ctx context.Context, list []metav1.PartialObjectMetadata, turn string) error {
	return objects.Each(ctx, len(list), objects.Concurrency, func(ctx context.Context, i int) error {
		o := &list[i]

		body, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"labels": map[string]any{objects.TurnLabel: turn}, "resourceVersion": o.ResourceVersion,
		}})
		if err != nil {
			return fmt.Errorf("encode a patch: %w", err)
		}

		return w.raw.Do(ctx, objects.Request{
			Method: http.MethodPatch, Path: objects.ConfigMaps.Path(o.Namespace, o.Name),
			ContentType: string(types.MergePatchType), Accept: metadataOnly, Body: body,
		}, nil)
	})
}

// selected selects objects of the ring by their labels.
func (w *Ring) selected(labels string) objects.Selection {
	return objects.Selection{Kind: objects.ConfigMaps, Namespace: w.Ring.Namespace, Labels: labels}
}

// of selects the objects of some shards.
func (w *Ring) of(names []string) objects.Selection {
	return w.selected(contract.ShardLabel(w.Ring.Name) + " in (" + strings.Join(names, ",") + ")")
}

// firstUsed returns the first shard that has objects, and these.
func (w *Ring) firstUsed(ctx context.Context) (shard string, theirs []metav1.PartialObjectMetadata, err error) {
	for _, shard := range w.Held() {
		theirs, err := w.bench.Objects.List(ctx, w.of([]string{shard}))
		if err != nil || len(theirs) > 0 {
			return shard, theirs, err
		}
	}

	return "", nil, fmt.Errorf("no shard of ring %s has an object", w.Ring.Name)
}

// Orphan has the first shard die that has objects, and returns how many seconds it took until the first of them had moved. Then it
// calls begun, unless that is nil. It returns when all have moved and the ring has converged.
func (w *Ring) Orphan(ctx context.Context, begun func(context.Context) error) (float64, error) {
	shard, _, err := w.firstUsed(ctx)
	if err != nil {
		return 0, err
	}

	c, err := w.lose(ctx, []string{shard}, trial{begun: begun, atOnce: true}, w.Lose)

	return c.First, err
}
