package filled

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/target"
	"github.com/clusterring/clusterring/tools/load/internal/usage"
)

// quiet is how long the API server is left alone before something is measured. To list what has not changed, it asks etcd for its
// latest revision, at most every 100 ms; and the tool has just listed the objects.
const quiet = 300 * time.Millisecond

// Cost is what it took to move objects.
type Cost struct {
	// Moved is the number of moved objects.
	Moved int
	// Rate is objects per second: from the change of a Lease, or the first patch, until the tool saw the last one.
	Rate float64
	// APIServer and Rebalancer are their CPU time per object, in milliseconds, until the tool saw the last one.
	APIServer, Rebalancer float64
	// First is the time until the first object had moved, and Mark until as many had as were asked for (0 if never), in seconds.
	First, Mark float64
	// Pass is the CPU time of API server and rebalancer from then on until the rebalancer was at rest, in microseconds per object of the
	// ring: the cost of the pass over all of them that follows each change.
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
	// counts is what is watched, and event the event that counts as a move: an object leaves the selection, comes to it, or changes.
	counts objects.Selection
	event  watch.EventType
	// mark is the number of objects at which the time is also taken, ring the number of objects of the ring.
	mark, ring int
	// atOnce is true to begin without waiting until the API server is at rest: the costs are then not comparable with others.
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
	c.APIServer, c.Rebalancer = used[target.APIServer].Milliseconds()/float64(n), used[target.Rebalancer].Milliseconds()/float64(n)
	c.Pass = t.perObject(after, end)

	if !moved.mark.IsZero() {
		c.Mark = moved.mark.Sub(began).Seconds()
	}

	return c, nil
}

// perObject returns the CPU time of API server and rebalancer between two readings, in microseconds per object of the ring.
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
