// Package load creates Websites at a steady rate, as users would, and measures what sharding did to their writes. It creates no more than
// the shards can do: where they are slow, on a machine that is slow, it waits for them.
package load

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	shardingv1alpha1 "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

const (
	// patience is how long one create may take before it has failed.
	patience = 15 * time.Second
	// look is how often an object without a shard is looked at.
	look = 50 * time.Millisecond
	// remembered is how many errors are kept.
	remembered = 5
	// sampled is how many objects stand for one that is followed until the work on it is done; ahead is for how long the load may be ahead
	// of the shards, at its rate; lookAgain is how often an object is looked at.
	sampled   = 10
	ahead     = 5 * time.Second
	lookAgain = time.Second
)

// Options say what to create.
type Options struct {
	// Client creates the Websites; it must not limit its own rate.
	Client client.Client
	// Namespace and Ring of the Websites.
	Namespace, Ring string
	// Prefix begins their names; a number follows.
	Prefix string
	// Rate is how many are created per second, unless the shards are behind; it must be positive.
	Rate int
	// Clock measures.
	Clock clock.WithTicker
}

// Result is what happened to the creates.
type Result struct {
	// Created counts creates that succeeded, Failed those that did not.
	Created, Failed int
	// Admitted counts objects that had a shard when the create returned.
	Admitted int
	// Slowest is the longest time between the return of a create and a shard, for the objects that had none then. An object that has
	// none at the end counts until the end.
	Slowest time.Duration
	// Typical and Late are the median and the 99th percentile of how long creates took.
	Typical, Late time.Duration
	// Took is how long the load lasted, Held for how long of that it has waited for the shards.
	Took, Held time.Duration
	// Errors are the first few errors of creates.
	Errors []string
}

// Rate returns how many were created per second.
func (r Result) Rate() float64 { return float64(r.Created) / max(r.Took.Seconds(), 1e-9) }

// AdmittedPercent returns the share of the created objects that had a shard when the create returned, 0 to 100.
func (r Result) AdmittedPercent() float64 {
	if r.Created == 0 {
		return 0
	}
	return 100 * float64(r.Admitted) / float64(r.Created)
}

// Run is a load that is going on. Make it with [Start].
type Run struct {
	options Options
	label   string
	stop    context.CancelFunc
	group   sync.WaitGroup
	began   time.Time

	mu     sync.Mutex
	result Result
	took   []time.Duration
	// undone is how many of the objects that are followed are not done.
	undone int
}

// Start begins to create Websites, until [Run.Stop] is called or the context ends.
func Start(ctx context.Context, o Options) *Run {
	creating, stop := context.WithCancel(ctx)
	r := &Run{options: o, label: shardingv1alpha1.ShardLabel(o.Ring), stop: stop, began: o.Clock.Now()}
	r.group.Go(func() { r.tick(ctx, creating) })
	return r
}

// Stop ends the load, waits for the creates under way and until every object has a shard or the time that one may take is over, and
// returns what has happened.
func (r *Run) Stop() Result {
	r.stop()
	took := r.options.Clock.Since(r.began)
	r.group.Wait()

	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Took = took
	r.result.Held = min(r.result.Held, took)
	slices.Sort(r.took)
	if n := len(r.took); n > 0 {
		r.result.Typical, r.result.Late = r.took[n/2], r.took[min(n-1, n*99/100)]
	}
	return r.result
}

// Rate returns how many creates are begun per second.
func (r *Run) Rate() int { return r.options.Rate }

// Created returns how many objects have been created so far.
func (r *Run) Created() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.result.Created
}

// tick starts the creates that are due; one that is slow does not hold up the next, and a late tick starts those that were missed, but for
// those that were due while the shards were behind. What has begun outlives creating, not ctx.
func (r *Run) tick(ctx, creating context.Context) {
	ticker := r.options.Clock.NewTicker(time.Second / time.Duration(r.options.Rate))
	defer ticker.Stop()
	for begun, since := 0, r.began; ; { // since the last look, whatever came of it
		select {
		case <-creating.Done():
			return
		case <-ticker.C():
		}
		now := r.options.Clock.Now()
		held := r.hold(now.Sub(since))
		since = now
		due := int((now.Sub(r.began) - held).Seconds() * float64(r.options.Rate))
		for number := begun; number < due; number++ {
			r.group.Go(func() { r.create(ctx, creating, number) })
		}
		begun = max(begun, due)
	}
}

// hold lets the load wait for a time that has passed, if the shards have as much to do as they may. It returns how long it has waited in all.
func (r *Run) hold(passed time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.undone*sampled >= int(ahead.Seconds()*float64(r.options.Rate)) {
		r.result.Held += passed
	}
	return r.result.Held
}

// follow looks at an object until the work on it is done, or the load ends. One that is deleted counts as done.
func (r *Run) follow(creating context.Context, key client.ObjectKey) {
	defer r.more(-1)
	ticker := r.options.Clock.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		select {
		case <-creating.Done():
			return
		case <-ticker.C():
		}
		site := &v1alpha1.Website{}
		if err := r.options.Client.Get(creating, key, site); apierrors.IsNotFound(err) || err == nil && site.Done() {
			return
		}
	}
}

func (r *Run) more(undone int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.undone += undone
}

func (r *Run) create(ctx, creating context.Context, number int) {
	site := &v1alpha1.Website{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.options.Namespace, Name: fmt.Sprintf("%s-%d", r.options.Prefix, number)},
		Spec:       v1alpha1.WebsiteSpec{Title: "Load"},
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := r.options.Clock.Now()
	err := r.options.Client.Create(limited, site)
	returned := r.options.Clock.Now()
	admitted := err == nil && site.Labels[r.label] != ""
	if err == nil && number%sampled == 0 {
		r.more(1)
		key := client.ObjectKeyFromObject(site)
		r.group.Go(func() { r.follow(creating, key) })
	}
	r.count(returned.Sub(began), admitted, err)
	if err == nil && !admitted {
		r.wait(ctx, site, returned)
	}
}

func (r *Run) count(took time.Duration, admitted bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took = append(r.took, took)
	if err != nil {
		r.result.Failed++
		if len(r.result.Errors) < remembered {
			r.result.Errors = append(r.result.Errors, err.Error())
		}
		return
	}
	r.result.Created++
	if admitted {
		r.result.Admitted++
	}
}

// wait looks at an object until it has a shard, and notes how long that took.
func (r *Run) wait(ctx context.Context, site *v1alpha1.Website, since time.Time) {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	ticker := r.options.Clock.NewTicker(look)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if err := r.options.Client.Get(ctx, client.ObjectKeyFromObject(site), site); err == nil && site.Labels[r.label] != "" {
			break
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Slowest = max(r.result.Slowest, r.options.Clock.Since(since))
}
