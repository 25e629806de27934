package scaleout

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/load/internal/capacity"
	"github.com/clusterring/clusterring/tools/load/internal/crew"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/usage"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// fleet is a ring whose shards are under load.
type fleet struct {
	*crew.Crew // nil until something is to be measured

	bench   *run.Bench
	sharder string
	tracker *continuity.Tracker
	rng     *rand.Rand
	// pods are those that run. In lives is what each process has begun, also of those that are gone.
	pods  []string
	lives []life
	// offered are the loads of a trial.
	offered []capacity.Offered
	// used is what all processes had used when a sample was taken last, or a while ago, and busiest the most cores that they
	// have used since a trial began.
	used    map[string]usage.Usage
	usedAt  time.Duration
	busiest float64
}

type life struct {
	of    *process.Process
	begun continuity.Counts
}

// newFleet returns a fleet that has not formed yet. Rounds differ by what chance decides.
func newFleet(b *run.Bench, sharder string, round int) fleet {
	return fleet{
		bench: b, sharder: sharder, tracker: continuity.NewTracker(capacity.DoneWithin),
		rng: rand.New(rand.NewPCG(1, uint64(round))), //nolint:gosec // no secret, and not negative
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
		See: func(event watch.EventType, o *unstructured.Unstructured) {
			if seen, ok, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration"); ok {
				f.tracker.Observed(o.GetUID(), seen, record.Now())
			}

			if event == watch.Deleted {
				f.tracker.Deleted(o.GetUID())
			}
		},
		Fail: func(err error) { f.bench.Progress("watch Websites: %s", err) },
	})
}

// load is changes that users make at a rate.
type load struct {
	rate capacity.Rate
	// change makes one of them. It is called concurrently.
	change func(ctx context.Context) error
}

// longest is longer than any load.
const longest = 24 * time.Hour

// under makes changes while do runs, and waits until the work on them is done.
func (f *fleet) under(ctx context.Context, do func() error, loads ...load) error {
	loading, stop := context.WithCancel(ctx)
	offered := make([]capacity.Offered, len(loads))

	var running sync.WaitGroup

	for i, l := range loads {
		rng := rand.New(rand.NewPCG(f.rng.Uint64(), 0)) //nolint:gosec // no secret
		g := capacity.Generator{Clock: f.bench.Clock, Change: l.change}
		running.Go(func() { offered[i] = g.Run(loading, l.rate.Arrivals(rng, longest)) })
	}

	err := do()

	stop()
	running.Wait()

	f.offered = append(f.offered, offered...)

	return errors.Join(err, f.rest(ctx))
}

// any returns one of all Websites.
func (f *fleet) any() int { return rand.IntN(f.Sites.Count) } //nolint:gosec // no secret

// edits returns a load of changes of Websites that pick returns: -1 for none.
func (f *fleet) edits(rate capacity.Rate, pick func() int) load {
	return load{rate, func(ctx context.Context) error {
		i := pick()
		if i < 0 {
			return nil
		}

		body := strconv.FormatUint(rand.Uint64(), 36) //nolint:gosec,mnd // no secret

		changed, err := f.bench.Objects.Change(context.WithoutCancel(ctx), f.Sites.Ref(i),
			map[string]any{"spec": map[string]any{"body": body}})
		if err == nil {
			f.tracker.Changed(changed.UID, changed.Generation, record.Now())
		}

		return err
	}}
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
	for _, pod := range f.pods {
		n, more := f.bench.Local.Metric(ctx, f.Full(pod), metric, labels...)
		sum, err = sum+n, errors.Join(err, more)
	}

	return sum, err
}

// sample returns the counts of the changes so far: of those that have begun by process.
func (f *fleet) sample(ctx context.Context) (s capacity.Sample, err error) {
	s.At = record.Now()
	s.Done, _, _ = f.tracker.Totals()

	if err := f.look(s.At); err != nil {
		return s, err
	}

	for _, pod := range f.pods {
		all, err := f.bench.Local.Metric(ctx, f.Full(pod), "workqueue_queue_duration_seconds_count", website)

		within, more := f.bench.Local.Metric(ctx, f.Full(pod), "workqueue_queue_duration_seconds_bucket", website, `le="1"`)
		if err := errors.Join(err, more); err != nil {
			return s, err
		}

		of := f.bench.Local.Process(f.Full(pod))

		i := slices.IndexFunc(f.lives, func(l life) bool { return l.of == of })
		if i < 0 {
			i, f.lives = len(f.lives), append(f.lives, life{of: of})
		}
		// What came between both reads is not known to be late.
		f.lives[i].begun = continuity.Counts{All: max(int(all), int(within)), Within: int(within)}
	}

	for _, l := range f.lives {
		s.Begun = append(s.Begun, l.begun)
	}

	return s, nil
}

// look notes how many cores were busy since the last look, unless that was just now.
func (f *fleet) look(now time.Duration) error {
	if f.used != nil && now-f.usedAt < tick/2 {
		return nil
	}

	used, err := f.bench.Local.Usage().Read()
	busy := 0.0

	for _, u := range usage.Difference(f.used, used) {
		busy += u.CPU.Seconds() / (now - f.usedAt).Seconds()
	}

	f.used, f.usedAt, f.busiest = used, now, max(f.busiest, busy)

	return err
}

// mostBusy is the part of the machine that all processes may use: beyond it, they wait for each other.
const mostBusy = 0.65

// judged measures something, and returns why nothing can be concluded from it.
func (f *fleet) judged(ctx context.Context, measure func() error) (why []string, err error) {
	if err := errors.Join(f.rest(ctx), f.bench.Local.Calm(ctx)); err != nil {
		return nil, err
	}

	const refused, because = "rest_client_requests_total", `code="429"`

	before, err := f.sum(ctx, refused, because)
	if err != nil {
		return nil, err
	}

	f.offered, f.used, f.busiest = nil, nil, 0

	if err := errors.Join(f.look(record.Now()), measure()); err != nil {
		return nil, err
	}

	after, err := f.sum(ctx, refused, because)

	return invalid(f.offered, f.busiest, after-before), err
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
