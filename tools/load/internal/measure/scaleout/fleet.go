package scaleout

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/load/internal/capacity"
	"github.com/clusterring/clusterring/tools/load/internal/crew"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/points"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// fleet is a ring whose shards are under load.
type fleet struct {
	*crew.Crew // nil until something is to be measured

	bench   *run.Bench
	sharder string
	tracker *continuity.Tracker
	rng     *rand.Rand
	shards  int
	// dealt are the Websites as they were before they were dealt; nil if they are where the sharder wants them.
	dealt []metav1.PartialObjectMetadata
	// offered are the loads of a trial.
	offered []capacity.Offered

	// warmUp is the time until all workers are busy, and window how long busy shards are observed.
	warmUp, window time.Duration
	// slope is by how much the rate of each shard grows in a second, pace by how much that of all does if it is the same
	// for any number of shards. Both continue to grow for the time beyond after the objectives were last kept. Every is
	// the time between samples: as often as they cost little.
	slope, pace   float64
	beyond, every time.Duration
	// changes is the number of changes in a window at a steady rate, and steps the number of rates that are tried.
	changes, steps int
}

func newFleet(b *run.Bench, sharder string) *fleet {
	return &fleet{
		bench: b, sharder: sharder, tracker: continuity.NewTracker(capacity.DoneWithin), shards: 1,
		rng:    rand.New(rand.NewPCG(1, 1)), //nolint:gosec // no secret
		warmUp: run.Pick(b, 2*time.Second, 5*time.Second), window: run.Pick(b, 6*time.Second, 2*time.Minute),
		beyond: run.Pick(b, 3*time.Second, time.Minute), every: run.Pick(b, time.Second, 2*time.Second),
		changes: run.Pick(b, 60, 10_000), steps: run.Pick(b, 2, 6), //nolint:mnd // small: in seconds
		slope: run.Pick(b, workers/8.0, slope), pace: run.Pick(b, workers/4.0, slope), //nolint:mnd // the same
	}
}

// watch tells the tracker which changes have been worked on, until the context ends. After that, wait returns.
func (f *fleet) watch(ctx context.Context) (wait func(), err error) {
	websites, err := dynamic.NewForConfig(f.bench.Local.Config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}

	return record.Follow(ctx, websites.Resource(objects.Websites.GroupVersionResource).
		Namespace(f.Fleet.Ring.Namespace), "", record.Observer[*unstructured.Unstructured]{
		See: func(_ watch.EventType, o *unstructured.Unstructured) {
			if seen, ok, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration"); ok {
				f.tracker.Observed(o.GetUID(), seen, record.Now())
			}
		},
		Fail: func(err error) { f.bench.Progress("watch Websites: %s", err) },
	})
}

// most returns how many changes per second all workers can do.
func (f *fleet) most() float64 { return float64(workers*f.shards) / work.Seconds() }

// under makes changes at a rate while do runs, and waits until the work on them is done.
func (f *fleet) under(ctx context.Context, rate capacity.Rate, do func() error) error {
	loading, stop := context.WithCancel(ctx)
	offered := make(chan capacity.Offered, 1)

	go func() {
		g := capacity.Generator{Clock: f.bench.Clock, Change: f.change}
		offered <- g.Run(loading, rate.Arrivals(f.rng, time.Hour))
	}()

	err := do()

	stop()

	f.offered = append(f.offered, <-offered)

	return errors.Join(err, f.rest(ctx))
}

// change changes a Website, as a user.
func (f *fleet) change(ctx context.Context) error {
	site := f.Sites.Ref(rand.IntN(f.Sites.Count)) //nolint:gosec // no secret
	body := strconv.FormatUint(rand.Uint64(), 36) //nolint:gosec,mnd // no secret

	changed, err := f.bench.Objects.Change(context.WithoutCancel(ctx), site,
		map[string]any{"spec": map[string]any{"body": body}})
	if err == nil {
		f.tracker.Changed(changed.UID, changed.Generation, record.Now())
	}

	return err
}

// rest waits until the work on all changes is done, and nothing waits for a worker.
func (f *fleet) rest(ctx context.Context) error {
	return objects.Until(ctx, "the work on all changes is done", func(ctx context.Context) (bool, error) {
		waiting, err := f.sum(ctx, "workqueue_depth", website)
		busy, more := f.sum(ctx, "controller_runtime_active_workers", `controller="website"`)

		_, pending, _ := f.tracker.Totals()

		return pending == 0 && waiting+busy == 0, errors.Join(err, more)
	})
}

// website is the label of the metrics of the queue of changes.
const website = `name="website"`

// sum returns the sum of a metric of all shards.
func (f *fleet) sum(ctx context.Context, metric string, labels ...string) (sum float64, err error) {
	for _, shard := range f.processes() {
		n, more := f.bench.Local.Metric(ctx, shard, metric, labels...)
		sum, err = sum+n, errors.Join(err, more)
	}

	return sum, err
}

// sample returns the counts since the start of the shards.
func (f *fleet) sample(ctx context.Context) (s capacity.Sample, err error) {
	s.At = record.Now()
	s.Done, _, _ = f.tracker.Totals()

	for _, shard := range f.processes() {
		all, err := f.bench.Local.Metric(ctx, shard, "workqueue_queue_duration_seconds_count", website)
		within, more := f.bench.Local.Metric(ctx, shard, "workqueue_queue_duration_seconds_bucket", website, `le="1"`)

		if err := errors.Join(err, more); err != nil {
			return s, err
		}

		// What came between both reads is not known to be late.
		s.Begun = append(s.Begun, continuity.Counts{All: max(int(all), int(within)), Within: int(within)})
	}

	return s, nil
}

// mostBusy is the part of the machine that all processes may use: beyond it, they wait for each other.
const mostBusy = 0.65

// trial measures with a method, and judges whether the result counts.
func (f *fleet) trial(ctx context.Context, m method) (p points.Point, err error) {
	if err := errors.Join(f.rest(ctx), f.bench.Local.Calm(ctx)); err != nil {
		return p, err
	}

	const refused, because = "rest_client_requests_total", `code="429"`

	before, err := f.sum(ctx, refused, because)
	if err != nil {
		return p, err
	}

	f.offered = nil
	began := record.Now()

	used, err := f.bench.Local.Usage().During(func() (err error) {
		p.Values, err = m.of(f, ctx)
		return err
	})
	if err != nil {
		return p, err
	}

	busy := time.Duration(0)
	for _, u := range used {
		busy += u.CPU
	}

	p.Values[cores] = busy.Seconds() / (record.Now() - began).Seconds()

	after, err := f.sum(ctx, refused, because)
	p.Invalid = invalid(f.offered, p.Values[cores], after-before)

	return p, errors.Join(err, f.simulate(ctx, m, p.Values))
}

// invalid returns why nothing can be concluded from a trial.
func invalid(offered []capacity.Offered, busy, refused float64) (why []string) {
	for _, o := range offered {
		if err := o.Check(); err != nil {
			why = append(why, err.Error())
		}
	}

	if most := mostBusy * float64(runtime.NumCPU()); busy > most {
		why = append(why, fmt.Sprintf("%.2f of %d cores were busy", busy, runtime.NumCPU()))
	}

	if refused > 0 {
		why = append(why, fmt.Sprintf("%.0f requests of shards were refused, to be sent again later", refused))
	}

	return why
}

// simulations is how often shards that cost nothing are simulated: chance moves one result by several percent.
const simulations = 50

// simulate adds the means of what a method says of shards that cost nothing, and have the shares of the objects that
// the ring's shards have.
func (f *fleet) simulate(ctx context.Context, m method, to map[string]float64) error {
	has, err := f.shares(ctx, f.Crew)
	if err != nil {
		return err
	}

	s := capacity.Shards{Workers: workers * f.shards / len(has), Work: work}
	for _, n := range has {
		s.Shares = append(s.Shares, float64(n)/float64(f.Sites.Count))
	}

	to[fullest] = slices.Max(s.Shares) * float64(len(s.Shares))

	for range simulations {
		for name, v := range m.ideal(f, s) {
			to[name] += v / simulations
		}
	}

	return nil
}
