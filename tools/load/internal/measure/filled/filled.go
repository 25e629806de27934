// Package filled has a ring of ConfigMaps with shards and objects, for measurements of moves and of rest: it fills a
// ring, lets shards die and join, and measures how fast their objects move and what that costs. The floor is the same
// number of raw patches.
package filled

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/store"
	"github.com/clusterring/clusterring/tools/load/internal/target"
	"github.com/clusterring/clusterring/tools/load/internal/usage"
)

// Ring is a ring with its shards and objects. Create it with [Open]; it is for one goroutine.
type Ring struct {
	*shards.Fleet

	bench *run.Bench
	// raw writes as the rebalancer does: with its rights, by one connection.
	raw   *objects.Client
	store *store.Store
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

	w := &Ring{bench: b, Fleet: fleet}

	config, err := b.Local.As(ctx, contract.SystemNamespace, target.Rebalancer)
	if err != nil {
		return nil, err
	}

	if w.raw, err = objects.New(config, 1); err != nil {
		return nil, err
	}

	if w.store, err = store.Open(b.Local.Etcd(), b.Objects); err != nil {
		return nil, err
	}
	b.Cleanup(func(context.Context) error {
		w.raw.Close()
		return w.store.Close()
	})
	// Without objects, nothing has to be drained when the ring is removed.
	b.Remove(func(ctx context.Context) error { return w.store.Clear(ctx, w.Ring.Namespace) })

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

// Grow creates objects until there are as many as given, each at the shard that the ring assigns it to. It writes them
// into etcd behind the API server's back, without calls of the webhook, which takes seconds instead of minutes.
func (w *Ring) Grow(ctx context.Context, total int) error {
	first := w.made
	if total <= first {
		return nil
	}

	batch := objects.Batch{Kind: objects.ConfigMaps, Namespace: w.Ring.Namespace, Prefix: "object", Count: total}

	owners, err := w.owners(ctx, batch, first)
	if err != nil {
		return fmt.Errorf("ask where objects belong: %w", err)
	}

	label := contract.ShardLabel(w.Ring.Name)
	batch.Labels = func(i int) map[string]string { return map[string]string{label: owners[i-first]} }
	w.made = total

	return w.store.Create(ctx, batch, first)
}

// owners asks the ring query service where the objects of the batch belong, from the first on.
func (w *Ring) owners(ctx context.Context, batch objects.Batch, first int) ([]string, error) {
	group, ctx := errgroup.WithContext(ctx)

	stream, err := w.bench.Local.Queries().LocateAll(ctx)
	if err != nil {
		return nil, err
	}

	owners := make([]string, batch.Count-first)

	group.Go(func() error {
		for i := range owners {
			err := stream.Send(&pb.LocateAllRequest{Id: strconv.Itoa(i), Question: &pb.LocateRequest{
				Ring: w.Ring.Name, NextShards: ptr.To[int32](0),
				Object: &pb.ObjectReference{
					Type: &pb.ObjectReference_Resource{Resource: batch.Kind.Resource}, Namespace: batch.Namespace,
					Name: batch.Name(first + i),
				},
			}})
			if err != nil {
				return err //nolint:wrapcheck // by the caller
			}
		}

		return stream.CloseSend()
	})
	group.Go(func() error {
		shared := map[string]string{} // one string for each shard

		for range owners {
			answer, err := stream.Recv()
			if err != nil {
				return err //nolint:wrapcheck // by the caller
			}

			i, err := strconv.Atoi(answer.GetId())

			locations := answer.GetAnswer().GetLocations()
			if err != nil || i >= len(owners) || len(locations) != 1 || locations[0].GetShard() == "" {
				return fmt.Errorf("unexpected answer %v", answer)
			}

			shard := locations[0].GetShard()
			if _, known := shared[shard]; !known {
				shared[shard] = shard
			}

			owners[i] = shared[shard]
		}

		return nil
	})

	return owners, group.Wait() //nolint:wrapcheck // by the caller
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
	if c := meta.FindStatusCondition(ring.Status.Conditions, v1alpha1.ConditionAssigned); c != nil {
		return c.LastTransitionTime
	}

	return metav1.Time{}
}

// metadataOnly is the type of response that the rebalancer asks for.
const metadataOnly = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// Die has so many shards declared dead, in the order of their names, and returns what it took to move their objects,
// once the ring has settled.
func (w *Ring) Die(ctx context.Context, n int) (Cost, error) {
	return w.lose(ctx, w.Held()[:n], trial{}, w.Lose)
}

// Leave lets one shard leave in the given way. The time is also taken when as many objects have moved as mark says.
func (w *Ring) Leave(ctx context.Context, way func(context.Context, string) error, mark int) (Cost, error) {
	return w.lose(ctx, w.Held()[:1], trial{mark: mark}, way)
}

// Least returns the floor of Die: raw patches of the objects of so many shards after two of each Lease, because a death
// is a write that takes the Lease, and one that labels it with its state, no matter who moves the objects.
func (w *Ring) Least(ctx context.Context, n int) (Cost, error) {
	return w.rawAfter(ctx, func(ctx context.Context, turn string) error {
		const writes = 2

		return objects.Each(ctx, writes*n, objects.Concurrency, func(ctx context.Context, i int) error {
			return w.Mark(ctx, w.Held()[i%n], turn+"-"+strconv.Itoa(i/n))
		})
	}, n, 0)
}

// lose measures a trial in which shards leave in the given way.
func (w *Ring) lose(
	ctx context.Context, leaving []string, t trial, way func(context.Context, string) error,
) (Cost, error) {
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
		return len(theirs), objects.Each(ctx, len(leaving), objects.Concurrency, func(ctx context.Context, i int) error {
			return way(ctx, leaving[i])
		})
	}

	return w.measure(ctx, t, shards.Fingerprint(before))
}

// Join lets so many shards join, and returns what it took until the other shards had given up their objects and these
// were theirs, once the ring has settled.
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

// Raw patches the objects of the first n shards, at most limit (0 means all), and returns what that took: the floor of
// moves without what a death writes to Leases. The objects are watched in the same way, so that the tool costs the API
// server as much.
func (w *Ring) Raw(ctx context.Context, n, limit int) (Cost, error) {
	return w.rawAfter(ctx, func(context.Context, string) error { return nil }, n, limit)
}

// rawAfter is Raw, after something else that counts too.
func (w *Ring) rawAfter(
	ctx context.Context, first func(ctx context.Context, turn string) error, n, limit int,
) (Cost, error) {
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

	return w.measure(ctx, trial{counts: theirs, event: watch.Deleted, mark: len(list),
		act: func(ctx context.Context) (int, error) {
			if err := first(ctx, turn); err != nil {
				return 0, err
			}

			return len(list), w.patch(ctx, list, turn)
		}}, "")
}

// measure measures a trial of this ring. It has settled when it has converged among other shards than the ones with the
// fingerprint before.
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

// Orphan has the first shard die that has objects, and returns how many seconds it took until the first of them had
// moved. Then it calls begun, unless that is nil. It returns when all have moved and the ring has converged.
func (w *Ring) Orphan(ctx context.Context, begun func(context.Context) error) (float64, error) {
	shard, _, err := w.firstUsed(ctx)
	if err != nil {
		return 0, err
	}

	c, err := w.lose(ctx, []string{shard}, trial{begun: begun, atOnce: true}, w.Lose)

	return c.First, err
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
	// First is the time until the first object had moved, and Mark until as many had as were asked for (0 if never), in
	// seconds.
	First, Mark float64
	// Pass is the CPU time of API server and rebalancer from then on until the rebalancer was at rest, in microseconds per
	// object of the ring: the cost of the pass over all of them that follows each change.
	Pass float64
}

// String returns the cost for progress lines.
func (c Cost) String() string {
	return fmt.Sprintf("%d objects, %.0f/s, API server %.2f ms, rebalancer %.3f ms, first after %.3f s",
		c.Moved, c.Rate, c.APIServer, c.Rebalancer, c.First)
}

// Plus returns the cost of one after the other with the same objects.
func (c Cost) Plus(next Cost) Cost {
	return Cost{
		Moved: c.Moved, Rate: 1 / (1/c.Rate + 1/next.Rate), First: c.First + next.First, Mark: c.Mark + next.Mark,
		APIServer: c.APIServer + next.APIServer, Rebalancer: c.Rebalancer + next.Rebalancer,
	}
}

// trial is a change that moves objects.
type trial struct {
	// counts is what is watched, and event the event that counts as a move: an object leaves the selection, comes to it,
	// or changes.
	counts objects.Selection
	event  watch.EventType
	// mark is the number of objects at which the time is also taken, ring the number of objects of the ring.
	mark, ring int
	// atOnce is true to begin without waiting until the API server is at rest: the costs are then not comparable with
	// others.
	atOnce bool
	// begun is called when the first object has moved, unless it is nil.
	begun func(context.Context) error
	// act makes the objects move, and returns how many move. settle waits until everything has settled.
	act    func(context.Context) (int, error)
	settle func(context.Context) error
}

// times are when objects were seen to move.
type times struct {
	clock             clock.PassiveClock
	seen, marked      int
	first, mark, last time.Time
}

func (t *times) add() {
	t.last = t.clock.Now()
	if t.seen++; t.seen == 1 {
		t.first = t.last
	}

	if t.seen == t.marked {
		t.mark = t.last
	}
}

// measure returns what the trial takes.
func (t trial) measure(ctx context.Context, b *run.Bench) (c Cost, err error) {
	now := times{clock: b.Clock, marked: t.mark}

	watching, err := b.Objects.Watch(ctx, func(event watch.EventType, _ objects.Kind, _ *metav1.PartialObjectMetadata) {
		if event == t.event {
			now.add()
		}
	}, t.counts)
	if err != nil {
		return c, err
	}
	defer watching.Stop()

	if !t.atOnce {
		if err := errors.Join(b.Local.Calm(ctx), b.Pause(ctx, quiet)); err != nil {
			return c, err
		}
	}

	reader := b.Local.Usage()

	before, err := reader.Read()
	if err != nil {
		return c, err
	}

	began := b.Clock.Now()

	n, err := t.act(ctx)
	if err != nil {
		return c, err
	}

	if n == 0 {
		return c, errors.New("no object had to move: there are too few for so many shards")
	}

	if t.begun != nil {
		if err := watching.Until(ctx, "an object has moved", func() bool { return now.seen > 0 }); err != nil {
			return c, err
		}

		if err := t.begun(ctx); err != nil {
			return c, err
		}
	}

	var moved times // at the moment of the last one

	err = watching.Until(ctx, fmt.Sprintf("%d objects have moved", n), func() bool {
		moved = now
		return now.seen >= n
	})
	if err != nil {
		return c, err
	}

	after, err := reader.Read()
	if err != nil {
		return c, err
	}

	if err := t.settle(ctx); err != nil {
		return c, err
	}

	end, err := reader.Read()
	if err != nil {
		return c, err
	}

	used := usage.Difference(before, after)

	c.Moved, c.Rate, c.First = n, float64(n)/moved.last.Sub(began).Seconds(), moved.first.Sub(began).Seconds()
	c.APIServer, c.Rebalancer = used[target.APIServer].Milliseconds()/float64(n),
		used[target.Rebalancer].Milliseconds()/float64(n)
	c.Pass = t.perObject(after, end)

	if !moved.mark.IsZero() {
		c.Mark = moved.mark.Sub(began).Seconds()
	}

	return c, nil
}

// perObject returns the CPU time of API server and rebalancer between two readings, in microseconds per object of the
// ring.
func (t trial) perObject(before, after map[string]usage.Usage) float64 {
	used := usage.Difference(before, after)
	return (used[target.APIServer].Milliseconds() + used[target.Rebalancer].Milliseconds()) * 1000 / float64(t.ring)
}

// Rest waits until the rebalancer has had nothing to do in so many looks, and returns the usage at that time.
func Rest(ctx context.Context, b *run.Bench, looks int) (map[string]usage.Usage, error) {
	// At rest it receives fewer than still bytes between two looks.
	const look, still = 200 * time.Millisecond, 8 << 10

	last, err := b.Local.Usage().Read()
	if err != nil {
		return nil, err
	}

	for n := 0; n < looks; n++ {
		if err := b.Pause(ctx, look); err != nil {
			return nil, err
		}

		now, err := b.Local.Usage().Read()
		if err != nil {
			return nil, err
		}

		if now[target.Rebalancer].Received-last[target.Rebalancer].Received > still {
			n = -1
		}

		last = now
	}

	return last, nil
}
