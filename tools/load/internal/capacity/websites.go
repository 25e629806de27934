package capacity

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/testkit/metrics"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// Load changes Websites, as users do, and follows the work of shards on them. Except Tracker, it is for one goroutine.
type Load struct {
	Clock   clock.Clock
	Tracker *continuity.Tracker
	// Objects changes the Websites, which are Sites.
	Objects *objects.Client
	Sites   objects.Batch
	// Pause waits for a time, or until the context ends.
	Pause func(ctx context.Context, d time.Duration) error
	// Metrics returns what each shard serves at /metrics, in the same order each time.
	Metrics func(ctx context.Context) ([]string, error)
	// Sample returns the counts of the shards: [Load.Counts], or what takes its place where shards come and go.
	Sample func(ctx context.Context) (Sample, error)
	Rng    *rand.Rand
	// Every is the time between samples: as often as they cost shards little. Beyond is how long a rate continues to grow
	// after the objectives were last kept.
	Every, Beyond time.Duration
	// Offered are the loads so far.
	Offered []Offered
}

// Follow tells the tracker which changes have been worked on, until the context ends. After that, wait returns.
func (l *Load) Follow(ctx context.Context, config *rest.Config, fail func(error)) (wait func(), err error) {
	websites, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}

	return record.Follow(ctx, websites.Resource(l.Sites.Kind.GroupVersionResource).Namespace(l.Sites.Namespace), "",
		record.Observer[*unstructured.Unstructured]{
			See: func(event watch.EventType, o *unstructured.Unstructured) {
				if seen, ok, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration"); ok {
					l.Tracker.Observed(o.GetUID(), seen, record.Now())
				}

				if event == watch.Deleted {
					l.Tracker.Deleted(o.GetUID())
				}
			},
			Fail: fail,
		})
}

// Changes are changes that users make at a rate.
type Changes struct {
	Rate Rate
	// Make makes one of them. It is called concurrently.
	Make func(ctx context.Context) error
}

// Any returns one of all Websites.
func (l *Load) Any() int { return rand.IntN(l.Sites.Count) } //nolint:gosec // no secret

// Edits returns changes of Websites that pick returns: -1 for none.
func (l *Load) Edits(rate Rate, pick func() int) Changes {
	return Changes{rate, func(ctx context.Context) error {
		i := pick()
		if i < 0 {
			return nil
		}

		body := strconv.FormatUint(rand.Uint64(), 36) //nolint:gosec,mnd // no secret

		changed, err := l.Objects.Change(context.WithoutCancel(ctx), l.Sites.Ref(i),
			map[string]any{"spec": map[string]any{"body": body}})
		if err == nil {
			l.Tracker.Changed(changed.UID, changed.Generation, record.Now())
		}

		return err
	}}
}

// Under makes changes while do runs, and waits until the work on them is done.
func (l *Load) Under(ctx context.Context, do func() error, all ...Changes) error {
	loading, stop := context.WithCancel(ctx)
	offered := make([]Offered, len(all))

	var running sync.WaitGroup

	for i, c := range all {
		g, rng := Generator{Clock: l.Clock, Change: c.Make}, rand.New(rand.NewPCG(l.Rng.Uint64(), 0)) //nolint:gosec // no secret
		running.Go(func() { offered[i] = g.Run(loading, c.Rate.Arrivals(rng, longest)) })
	}

	err := do()

	stop()
	running.Wait()

	l.Offered = append(l.Offered, offered...)

	return errors.Join(err, l.Rest(ctx))
}

// longest is longer than any load.
const longest = 24 * time.Hour

// Rest waits until the work on all changes is done, and nothing waits for a worker.
func (l *Load) Rest(ctx context.Context) error {
	return objects.Until(ctx, "the work on all changes is done", func(ctx context.Context) (bool, error) {
		// Shards are asked last: the answer costs them CPU time.
		if _, pending, _ := l.Tracker.Totals(); pending > 0 {
			return false, nil
		}

		waiting, err := l.Sum(ctx, "workqueue_depth", website)
		busy, more := l.Sum(ctx, "controller_runtime_active_workers", `controller="website"`)

		return waiting+busy == 0, errors.Join(err, more)
	})
}

// Refused returns how many requests of the shards the API server has refused, to be sent again later.
func (l *Load) Refused(ctx context.Context) (float64, error) {
	return l.Sum(ctx, "rest_client_requests_total", `code="429"`)
}

// website is the label of the metrics of the queue of changes.
const website = `name="website"`

// Sum returns the sum of a metric of all shards.
func (l *Load) Sum(ctx context.Context, metric string, labels ...string) (sum float64, err error) {
	texts, err := l.Metrics(ctx)
	for _, text := range texts {
		n, more := metrics.Sum(text, metric, labels...)
		sum, err = sum+n, errors.Join(err, more)
	}

	return sum, err
}

// Counts returns the counts since the start of the shards.
func (l *Load) Counts(ctx context.Context) (s Sample, err error) {
	s.At = record.Now()
	s.Done, _, _ = l.Tracker.Totals()

	texts, err := l.Metrics(ctx)
	for _, text := range texts {
		begun, more := Begun(text)
		s.Begun, err = append(s.Begun, begun), errors.Join(err, more)
	}

	return s, err
}

// Begun returns the counts of the first objective of a shard, from its metrics.
func Begun(text string) (continuity.Counts, error) {
	all, err := metrics.Sum(text, "workqueue_queue_duration_seconds_count", website)
	within, more := metrics.Sum(text, "workqueue_queue_duration_seconds_bucket", website, `le="1"`)

	return continuity.Counts{All: int(all), Within: int(within)}, errors.Join(err, more)
}

// Saturate returns how many changes per second the shards work on in a window, after a warm-up, under a rate that is
// more than they can do.
func (l *Load) Saturate(ctx context.Context, rate float64, warmUp, window time.Duration) (done float64, err error) {
	err = l.Under(ctx, func() error {
		err := l.Pause(ctx, warmUp)
		_, more := l.Sample(ctx)
		_, _, before := l.Tracker.Totals()
		from := record.Now()
		err = errors.Join(err, more, l.Pause(ctx, window))
		_, _, after := l.Tracker.Totals()
		done = float64(after-before) / (record.Now() - from).Seconds()
		_, more = l.Sample(ctx)

		return errors.Join(err, more)
	}, l.Edits(Rate{Base: rate}, l.Any))

	return done, err
}

// Rise returns the rate up to which the shards keep the objectives, while it grows by a slope. At the rate full, there
// is more than they can do.
func (l *Load) Rise(ctx context.Context, slope, full float64) (float64, error) {
	grows := Rate{Slope: slope}

	before, err := l.Sample(ctx)
	if err != nil {
		return 0, err
	}

	var samples []Sample

	err = l.Under(ctx, func() error {
		// At first, chance decides: one of few changes may be late.
		until := time.Duration(full / slope * float64(time.Second))
		for at := time.Duration(0); at < until || at-Knee(samples) < l.Beyond; {
			err := l.Pause(ctx, l.Every)
			s, more := l.Sample(ctx)

			if err := errors.Join(err, more); err != nil {
				return err
			}

			samples = append(samples, s.Minus(before))
			at = s.At - before.At
		}

		return nil
	}, l.Edits(grows, l.Any))

	return grows.At(Knee(samples)), err
}
