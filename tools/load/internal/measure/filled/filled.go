// Package filled has a ring of ConfigMaps with shards and objects, for measurements of moves and of rest: it fills a
// ring, lets shards die and join, and measures how fast their objects move and what that costs. The floor is the same
// number of raw patches.
package filled

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
	"github.com/clusterring/clusterring/tools/load/internal/usage"
)

// Ring is a ring with its shards and objects. Create it with [Open]; it is for one goroutine.
type Ring struct {
	*shards.Fleet

	bench *run.Bench
	// raw writes as the rebalancer does: with its rights, by one connection.
	raw   *objects.Client
	batch objects.Batch
	made  int // objects
	turns int // raw passes
}

// Open declares a ring of ConfigMaps of the given name with so many shards, and no objects, and acknowledges drains as
// soon as it sees them. Objects, ring, and Leases are removed with the bench.
func Open(ctx context.Context, b *run.Bench, name string, size int) (*Ring, error) {
	fleet, err := b.Fleet(ctx, shards.Ring{Name: name, Main: objects.ConfigMaps.GroupResource()}, size)
	if err != nil {
		return nil, err
	}

	w := &Ring{bench: b, Fleet: fleet, batch: objects.Batch{
		Kind: objects.ConfigMaps, Namespace: fleet.Ring.Namespace, Prefix: "object",
	}}

	config, err := b.Local.As(ctx, target.Rebalancer)
	if err != nil {
		return nil, err
	}

	if w.raw, err = objects.New(config); err != nil {
		return nil, err
	}

	b.Cleanup(func(context.Context) error {
		w.raw.Close()
		return nil
	})
	// Without objects, nothing has to be drained when the ring is removed.
	b.RemoveAll(fleet.Ring.Namespace, objects.ConfigMaps)

	stop, err := w.Acknowledge(ctx, objects.ConfigMaps)
	if err != nil {
		return nil, err
	}
	b.Cleanup(func(context.Context) error { return stop() })

	err = w.AwaitConverged(ctx, "")

	return w, err
}

// Objects returns how many objects there are.
func (w *Ring) Objects() int { return w.made }

// Grow creates objects until there are as many as given, and waits until each has a shard.
func (w *Ring) Grow(ctx context.Context, total int) error {
	first := w.made
	w.made = total

	err := objects.Each(ctx, total-first, objects.Concurrency, func(ctx context.Context, i int) error {
		_, err := w.bench.Objects.Post(ctx, w.batch.Ref(first+i), w.batch.Object(first+i))
		return err
	})
	if err != nil {
		return err
	}

	err = objects.Until(ctx, "all objects have a shard", func(ctx context.Context) (bool, error) {
		without, err := w.bench.Objects.List(ctx, w.selected("!"+contract.ShardLabel(w.Ring.Name)))
		return len(without) == 0, err
	})
	if err != nil {
		return err
	}

	return w.AwaitConverged(ctx, "")
}

// Restart restarts all services, the rebalancer with more arguments, and waits until they have gone over the ring's
// objects and are at rest. The ring must be settled.
func (w *Ring) Restart(ctx context.Context, more ...string) error {
	ring, err := w.Read(ctx)
	if err != nil {
		return err
	}

	before := assignedSince(ring)

	for _, name := range target.Services {
		var args []string
		if name == target.Rebalancer {
			args = more
		}

		if err := w.bench.Local.Restart(ctx, name, args...); err != nil {
			return err
		}
	}
	// A new rebalancer first reports that it has not looked yet.
	err = w.Await(ctx, "its assignment is reported again", func(ring *v1alpha1.ClusterRing) bool {
		return assignedSince(ring) != before
	})
	if err != nil {
		return err
	}

	return w.AwaitConverged(ctx, "")
}

// assignedSince returns when the condition Assigned changed last.
func assignedSince(ring *v1alpha1.ClusterRing) metav1.Time {
	return ptr.Deref(meta.FindStatusCondition(ring.Status.Conditions, v1alpha1.ConditionAssigned),
		metav1.Condition{}).LastTransitionTime
}

// Round is the death of some shards, the floor right before it, because they share the speed of the machine at that
// moment, and as many shards that join after it.
type Round struct{ Least, Died, Joined Cost }

// Round measures a round with n shards.
func (w *Ring) Round(ctx context.Context, n int) (r Round, err error) {
	if r.Least, err = w.Least(ctx, n); err != nil {
		return r, fmt.Errorf("floor: %w", err)
	}

	dying := w.Held()[:n]

	if r.Died, err = w.Leave(ctx, dying, func(ctx context.Context) error { return w.Lose(ctx, dying...) }); err != nil {
		return r, fmt.Errorf("death: %w", err)
	}

	if err := w.Bury(ctx, dying); err != nil { // a ring of a thousand shards keeps a thousand Leases
		return r, err
	}

	if r.Joined, err = w.Join(ctx, n); err != nil {
		return r, fmt.Errorf("join: %w", err)
	}

	return r, nil
}

// Leave has shards leave in the given way, and returns what it took to move their objects, once the ring has converged.
func (w *Ring) Leave(ctx context.Context, leaving []string, way func(context.Context) error) (Cost, error) {
	before, err := w.Read(ctx)
	if err != nil {
		return Cost{}, err
	}

	theirs, err := w.Of(ctx, leaving...)
	if err != nil {
		return Cost{}, err
	}

	return w.measure(ctx, trial{
		counts: w.of(leaving), event: watch.Deleted, before: shards.Fingerprint(before),
		act: func(ctx context.Context) (int, error) { return len(theirs), way(ctx) },
	})
}

// Join lets so many shards join, and returns what it took until the other shards had given up their objects and these
// were theirs, once the ring has converged.
func (w *Ring) Join(ctx context.Context, n int) (Cost, error) {
	label := contract.ShardLabel(w.Ring.Name)
	counts := w.selected(label + " notin (" + strings.Join(w.Held(), ",") + ")," + label)

	return w.measure(ctx, trial{counts: counts, event: watch.Added, act: func(ctx context.Context) (int, error) {
		var names []string
		// How many objects move to them is known once all have moved.
		err := w.Change(ctx, func() (err error) {
			names, err = w.Fleet.Join(ctx, n)
			return err
		})
		if err != nil {
			return 0, err
		}

		theirs, err := w.Of(ctx, names...)

		return len(theirs), err
	}})
}

// Least patches the objects of the first n shards, as the rebalancer does, and returns what that took: the floor of
// their death. Two patches of each Lease come first, because a death is a write that takes the Lease, and one that
// labels it with its state, no matter who moves the objects. The objects are watched in the same way, so that the tool
// costs the API server as much.
func (w *Ring) Least(ctx context.Context, n int) (Cost, error) {
	dying := w.Held()[:n]

	list, err := w.Of(ctx, dying...)
	if err != nil {
		return Cost{}, err
	}

	w.turns++
	turn := strconv.Itoa(w.turns)
	counts := w.of(dying)
	counts.Labels += "," + objects.TurnLabel + " notin (" + turn + ")"

	return w.measure(ctx, trial{counts: counts, event: watch.Deleted, act: func(ctx context.Context) (int, error) {
		for _, write := range []string{"taken", "labelled"} {
			if err := w.Mark(ctx, dying, turn+write); err != nil {
				return 0, err
			}
		}

		return len(list), objects.Each(ctx, len(list), objects.Concurrency, func(ctx context.Context, i int) error {
			o := &list[i]

			return w.raw.MergePatch(ctx, objects.Ref{Kind: objects.ConfigMaps, Namespace: o.Namespace, Name: o.Name},
				map[string]any{"metadata": map[string]any{
					"labels": map[string]any{objects.TurnLabel: turn}, "resourceVersion": o.ResourceVersion,
				}})
		})
	}})
}

// selected selects objects of the ring by their labels.
func (w *Ring) selected(labels string) objects.Selection {
	return objects.Selection{Kind: objects.ConfigMaps, Namespace: w.Ring.Namespace, Labels: labels}
}

// of selects the objects of some shards.
func (w *Ring) of(names []string) objects.Selection {
	return w.selected(contract.ShardLabel(w.Ring.Name) + " in (" + strings.Join(names, ",") + ")")
}

// Of returns the objects of some shards.
func (w *Ring) Of(ctx context.Context, names ...string) ([]metav1.PartialObjectMetadata, error) {
	return w.bench.Objects.List(ctx, w.of(names))
}

// quiet is how long the API server is left alone before something is measured. To list what has not changed, it asks
// etcd for its latest revision, at most every 100 ms; and the tool has just listed the objects.
const quiet = 300 * time.Millisecond

// Cost is what it took to move objects.
type Cost struct {
	// Moved is the number of moved objects.
	Moved int
	// Rate is objects per second: from the change of a Lease, or the first patch, until the tool saw the last one.
	Rate float64
	// APIServer and Rebalancer are their CPU time per object, in milliseconds, until the tool saw the last one.
	APIServer, Rebalancer float64
	// First is the time until the first object had moved, in seconds.
	First float64
	// Pass is the CPU time of API server and rebalancer from then on until the rebalancer was at rest, in microseconds per
	// object of the ring: the cost of the pass over all of them that follows each change.
	Pass float64
}

// trial is a change that moves objects.
type trial struct {
	// counts is what is watched, and event the event that counts as a move: an object leaves the selection, or comes.
	counts objects.Selection
	event  watch.EventType
	// act makes the objects move, and returns how many move.
	act func(context.Context) (int, error)
	// before is the fingerprint of a set of shards among which the ring does not end.
	before string
}

// measure returns what the trial takes, once the ring has converged.
func (w *Ring) measure(ctx context.Context, t trial) (c Cost, err error) {
	var seen []time.Time // when objects moved

	b := w.bench

	watching, err := b.Objects.Watch(ctx, t.counts, func(event watch.EventType, _ *metav1.PartialObjectMetadata) {
		if event == t.event {
			seen = append(seen, b.Clock.Now())
		}
	})
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, watching.Stop()) }()

	if err := errors.Join(b.Local.Calm(ctx), b.Pause(ctx, quiet)); err != nil {
		return c, err
	}

	var moved []time.Time // the objects of the trial

	began := b.Clock.Now()

	used, err := b.Local.Usage().During(func() error {
		n, err := t.act(ctx)
		if err != nil {
			return err
		}

		if n == 0 {
			return errors.New("no object had to move: there are too few for so many shards")
		}

		return watching.Until(ctx, fmt.Sprintf("%d objects have moved", n), func() bool {
			moved = seen[:min(n, len(seen))]
			return len(moved) == n
		})
	})
	if err != nil {
		return c, err
	}

	after, err := b.Local.Usage().During(func() error { return w.AwaitConverged(ctx, t.before) })
	if err != nil {
		return c, err
	}

	n := float64(len(moved))

	return Cost{
		Moved: len(moved), Rate: n / moved[len(moved)-1].Sub(began).Seconds(), First: moved[0].Sub(began).Seconds(),
		APIServer: used[target.APIServer].Milliseconds() / n, Rebalancer: used[target.Rebalancer].Milliseconds() / n,
		Pass: Both(after) * 1000 / float64(w.made),
	}, nil
}

// Both returns the CPU time of API server and rebalancer, in milliseconds.
func Both(used map[string]usage.Usage) float64 {
	return used[target.APIServer].Milliseconds() + used[target.Rebalancer].Milliseconds()
}
