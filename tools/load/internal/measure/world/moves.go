package world

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
	"github.com/clusterring/clusterring/tools/load/internal/usage"
)

const (
	// metadataOnly is what the rebalancer asks for.
	metadataOnly = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	// pageSize is how many objects are listed by one request.
	pageSize = 5000
	// quiet is how long the API server is left alone before something is done whose time counts. To list what has not changed, it
	// asks etcd whether it knows the latest, at most every 100 ms; and the tool has just had it list the objects.
	quiet = 300 * time.Millisecond
)

// Cost is what it took to move objects.
type Cost struct {
	// Moved is how many objects were moved.
	Moved int
	// Rate is how many that were per second: from the change of a Lease, or the first patch, until the tool saw the last one.
	Rate float64
	// APIServer and Rebalancer are their CPU time per object, in milliseconds, until the tool saw the last one.
	APIServer, Rebalancer float64
	// First is when the first object had been moved, and Mark when as many had been as were asked for (0 if never), in seconds.
	First, Mark float64
	// CPU is the CPU time per object, in milliseconds, of everything that is measured, and of this program.
	CPU map[string]float64
	// Pass is the CPU time of API server and rebalancer from then on until the latter rested, in microseconds per object of the
	// ring: what the pass over all of them takes that follows each change. PassTook is how long that was, in seconds.
	Pass, PassTook float64
	// Rest and RestTook are the same until the rebalancer waited for the ring's settle period to pass, and are no part of Pass. They are 0
	// but after [World.DieAndRest].
	Rest, RestTook float64
}

func (c Cost) String() string {
	return fmt.Sprintf("%d objects, %.0f/s, API server %.2f ms, rebalancer %.3f ms, first after %.3f s",
		c.Moved, c.Rate, c.APIServer, c.Rebalancer, c.First)
}

// object is an object as it was listed.
type object struct{ name, version string }

// Die has so many shards declared dead, and returns what it took to move their objects, once the ring is settled. Shards come in the
// order of their names.
func (w *World) Die(ctx context.Context, n int) (Cost, error) {
	return w.lose(ctx, n, watching{}, w.Lose)
}

// DieAndRest does the same, and measures apart what comes between the moves and the pass. The settle period of the rebalancer has to be longer
// than that.
func (w *World) DieAndRest(ctx context.Context, n int) (Cost, error) {
	return w.lose(ctx, n, watching{rests: true}, w.Lose)
}

// Release lets one shard release its Lease; mark is at how many moved objects the time is taken, too.
func (w *World) Release(ctx context.Context, mark int) (Cost, error) {
	return w.lose(ctx, 1, watching{mark: mark}, w.Fleet.Release)
}

func (w *World) lose(ctx context.Context, n int, what watching, lose func(context.Context, string) error) (Cost, error) {
	held := w.Held()
	if n >= len(held) {
		return Cost{}, fmt.Errorf("%d of %d shards cannot leave: one has to stay", n, len(held))
	}

	selector := in(v1alpha1.ShardLabel(w.Ring.Name), held[:n])

	theirs, version, err := w.list(ctx, selector)
	if err != nil {
		return Cost{}, err
	}

	what.selector, what.version, what.leaves, what.count, what.changes = selector, version, true, len(theirs), true

	return w.watched(ctx, what, func(ctx context.Context) (int, error) {
		return len(theirs), objects.Each(ctx, n, run.Concurrency, func(ctx context.Context, i int) error { return lose(ctx, held[i]) })
	})
}

// Join lets so many shards join, and returns what it took until their objects had been given up by the others and were theirs, once
// the ring is settled.
func (w *World) Join(ctx context.Context, n int) (Cost, error) {
	label := v1alpha1.ShardLabel(w.Ring.Name)

	_, version, err := w.list(ctx, label+"=nobody")
	if err != nil {
		return Cost{}, err
	}

	ring, err := w.Read(ctx)
	if err != nil {
		return Cost{}, err
	}

	what := watching{selector: label + " notin (" + join(w.Held()) + ")," + label, version: version, changes: true}

	return w.watched(ctx, what, func(ctx context.Context) (int, error) {
		names, err := w.Fleet.Join(ctx, n)
		if err != nil {
			return 0, err
		}
		// How many come to them is known once all have come.
		if err := w.AwaitConverged(ctx, shards.Fingerprint(ring)); err != nil {
			return 0, err
		}

		theirs, _, err := w.list(ctx, in(label, names))

		return len(theirs), err
	})
}

// Plus returns what it takes to do one after the other with the same objects.
func (c Cost) Plus(next Cost) Cost {
	sum := Cost{
		Moved: c.Moved, Rate: 1 / (1/c.Rate + 1/next.Rate), First: c.First + next.First, Mark: c.Mark + next.Mark,
		APIServer: c.APIServer + next.APIServer, Rebalancer: c.Rebalancer + next.Rebalancer, CPU: maps.Clone(c.CPU),
	}
	for name, cpu := range next.CPU {
		sum.CPU[name] += cpu
	}

	return sum
}

// Raw patches the objects of the first n shards by their names, and returns what that took: the floor of Die. At most limit objects
// are patched; 0 means all. They are watched as those are that move, so that the tool costs the API server as much.
func (w *World) Raw(ctx context.Context, n, limit int) (Cost, error) {
	held := w.Held()
	selector := in(v1alpha1.ShardLabel(w.Ring.Name), held[:min(n, len(held))])

	list, version, err := w.list(ctx, selector)
	if err != nil {
		return Cost{}, err
	}

	if limit > 0 && limit < len(list) {
		list = list[:limit]
	}

	turn := w.turn()
	before := objects.TurnLabel + " notin (" + turn + ")"

	return w.watched(ctx, watching{selector: selector + "," + before, version: version, leaves: true, count: len(list), mark: len(list)}, func(ctx context.Context) (int, error) {
		return len(list), objects.Each(ctx, len(list), run.Concurrency, func(ctx context.Context, i int) error {
			return w.patch(ctx, w.Ring.Namespace, list[i], turn)
		})
	})
}

// turn returns what tells one time that objects are patched from another.
func (w *World) turn() string {
	w.turns++
	return strconv.Itoa(w.turns)
}

// patch patches one object as the rebalancer does.
func (w *World) patch(ctx context.Context, namespace string, o object, turn string) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{objects.TurnLabel: turn}, "resourceVersion": o.version}})
	if err != nil {
		return fmt.Errorf("encode a patch: %w", err)
	}

	return w.raw.Do(ctx, objects.Request{
		Method: http.MethodPatch, Path: objects.ConfigMaps.Path(namespace, o.name),
		ContentType: string(types.MergePatchType), Accept: metadataOnly, Body: body,
	}, nil)
}

// watched does what makes objects move, sees them do so, and returns what it took. The action returns how many objects that are.
func (w *World) watched(ctx context.Context, what watching, action func(context.Context) (int, error)) (Cost, error) {
	what.kind, what.namespace = objects.ConfigMaps, w.Ring.Namespace

	seen, err := observe(ctx, w.bench, what)
	if err != nil {
		return Cost{}, err
	}
	defer seen.stop()

	if err := w.calm(ctx); err != nil {
		return Cost{}, err
	}

	ring, err := w.Read(ctx)
	if err != nil {
		return Cost{}, err
	}

	before, err := w.bench.Local.Usage().Read()
	if err != nil {
		return Cost{}, err
	}

	began := w.bench.Clock.Now()

	n, err := action(ctx)
	if err != nil {
		return Cost{}, err
	}

	if n == 0 {
		return Cost{}, errors.New("no object had to move: there are too few for so many shards")
	}

	times, err := seen.await(ctx, n)
	if err != nil {
		return Cost{}, err
	}

	after, err := w.bench.Local.Usage().Read()
	if err != nil {
		return Cost{}, err
	}

	moved, calmed, restTook := after, after, 0.0
	if what.rests {
		if after, err = w.rest(ctx); err != nil {
			return Cost{}, err
		}

		restTook = w.bench.Clock.Since(times.last).Seconds()
		// A Go process collects its garbage every two minutes, whatever it does: with a million objects in memory, that is as much work
		// as the pass, and would hit some passes by chance.
		if err := w.bench.Local.Calm(ctx); err != nil {
			return Cost{}, err
		}

		if calmed, err = w.bench.Local.Usage().Read(); err != nil {
			return Cost{}, err
		}
	}

	old := ""
	if what.changes {
		old = shards.Fingerprint(ring)
	}

	if err := w.AwaitConverged(ctx, old); err != nil {
		return Cost{}, err
	}

	rested, err := w.bench.Local.Usage().Read()
	if err != nil {
		return Cost{}, err
	}

	c := Cost{
		Moved: n, Rate: float64(n) / times.last.Sub(began).Seconds(), First: times.first.Sub(began).Seconds(),
		CPU: map[string]float64{}, PassTook: w.bench.Clock.Since(times.last).Seconds() - restTook, RestTook: restTook,
	}
	if !times.mark.IsZero() {
		c.Mark = times.mark.Sub(began).Seconds()
	}

	for name, u := range usage.Difference(before, moved) {
		c.CPU[name] = float64(u.CPU) / float64(time.Millisecond) / float64(n)
	}

	c.APIServer, c.Rebalancer = c.CPU[target.APIServer], c.CPU[target.Rebalancer]
	c.Pass, c.Rest = w.each(usage.Difference(calmed, rested)), w.each(usage.Difference(moved, after))

	return c, nil
}

// each returns the CPU time of API server and rebalancer, in microseconds per object of the ring.
func (w *World) each(used map[string]usage.Usage) float64 {
	return float64(used[target.APIServer].CPU+used[target.Rebalancer].CPU) / float64(time.Microsecond) / float64(w.made)
}

// rest waits until the rebalancer has nothing to do, and returns what all have used until then.
func (w *World) rest(ctx context.Context) (map[string]usage.Usage, error) {
	// At rest it receives fewer than still bytes between two looks. The API server may take some looks to answer.
	const look, looks, still = 200 * time.Millisecond, 15, 8 << 10

	last, err := w.bench.Local.Usage().Read()
	for n := 0; err == nil && n < looks; n++ {
		if err := w.bench.Pause(ctx, look); err != nil {
			return nil, err
		}

		var now map[string]usage.Usage
		if now, err = w.bench.Local.Usage().Read(); err == nil && now[target.Rebalancer].Received-last[target.Rebalancer].Received > still {
			n = -1
		}

		last = now
	}

	return last, err
}

// calm lets the API server come to rest.
func (w *World) calm(ctx context.Context) error {
	if err := w.bench.Local.Calm(ctx); err != nil {
		return err
	}

	return w.bench.Pause(ctx, quiet)
}

// list returns the objects that a selector names, and the version of the list.
func (w *World) list(ctx context.Context, selector string) (list []object, version string, err error) {
	options := metav1.ListOptions{LabelSelector: selector, Limit: pageSize}
	for {
		page, err := w.bench.Objects.Metadata.Resource(objects.ConfigMaps.GroupVersionResource).Namespace(w.Ring.Namespace).List(ctx, options)
		if err != nil {
			return nil, "", fmt.Errorf("list the objects of ring %s: %w", w.Ring.Name, err)
		}

		for i := range page.Items {
			list = append(list, object{name: page.Items[i].Name, version: page.Items[i].ResourceVersion})
		}

		if version == "" {
			version = page.ResourceVersion
		}

		if options.Continue = page.Continue; options.Continue == "" {
			return list, version, nil
		}
	}
}

func in(label string, values []string) string { return label + " in (" + join(values) + ")" }
