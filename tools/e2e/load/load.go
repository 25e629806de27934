// Package load creates Websites at a steady rate, as users would, and measures the effect of sharding on these writes. If the shards cannot
// keep up, for example on a slow machine, it waits for them.
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

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

const (
	// patience limits the time of one create.
	patience = 15 * time.Second
	// look is the interval between checks of an unassigned object.
	look = 50 * time.Millisecond
	// remembered is the number of errors to keep.
	remembered = 5
	// One of sampled objects is followed until its work is done. ahead limits how far the load may be ahead of the shards, as time at its
	// rate. lookAgain is the interval between checks of a followed object.
	sampled   = 10
	ahead     = 5 * time.Second
	lookAgain = time.Second
)

// Options configure a load.
type Options struct {
	// Client creates the Websites. It must not have a rate limit.
	Client client.Client
	// Namespace and Ring of the Websites.
	Namespace, Ring string
	// Prefix is the first part of their names; a number follows.
	Prefix string
	// Rate is the number of creates per second while the shards keep up; it must be positive.
	Rate int
	// Clock measures durations.
	Clock clock.WithTicker
}

// Result is the result of a load.
type Result struct {
	// Created counts successful creates, Failed failed ones.
	Created, Failed int
	// Admitted counts the objects that were assigned in admission.
	Admitted int
	// Slowest is the longest time between the return of a create and the assignment, for objects that admission did not assign. For objects
	// that are unassigned at the end, it counts until the end.
	Slowest time.Duration
	// Typical and Late are the median and the 99th percentile of the duration of creates.
	Typical, Late time.Duration
	// Took is the duration of the load, Held the part of it in which the load waited for the shards.
	Took, Held time.Duration
	// Errors are the first few errors of creates.
	Errors []string
}

// Rate returns the number of created objects per second.
func (r Result) Rate() float64 { return float64(r.Created) / max(r.Took.Seconds(), 1e-9) }

// AdmittedPercent returns the percentage of created objects that were assigned in admission.
func (r Result) AdmittedPercent() float64 {
	if r.Created == 0 {
		return 0
	}

	return 100 * float64(r.Admitted) / float64(r.Created)
}

// Run is a running load. Create it with [Start].
type Run struct {
	options Options
	label   string
	stop    context.CancelFunc
	group   sync.WaitGroup
	began   time.Time

	mu     sync.Mutex
	result Result
	took   []time.Duration
	// undone is the number of followed objects whose work is not done. behind reports whether the last look found too many of them.
	undone int
	behind bool
}

// Start creates Websites until [Run.Stop] or the end of ctx.
func Start(ctx context.Context, o Options) *Run {
	creating, stop := context.WithCancel(ctx)
	r := &Run{options: o, label: contract.ShardLabel(o.Ring), stop: stop, began: o.Clock.Now()}
	r.group.Go(func() { r.tick(ctx, creating) })

	return r
}

// Stop stops the load, waits for pending creates and, for a limited time, until every object has a shard, and returns the result.
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

// Rate returns the configured number of creates per second.
func (r *Run) Rate() int { return r.options.Rate }

// Created returns the number of created objects so far.
func (r *Run) Created() int {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.result.Created
}

// tick starts the creates that are due. A slow create does not delay the next one. A late tick also starts the missed creates, except those
// that were due while the shards were behind. Started creates continue after creating ends, until ctx ends.
func (r *Run) tick(ctx, creating context.Context) {
	ticker := r.options.Clock.NewTicker(time.Second / time.Duration(r.options.Rate))
	defer ticker.Stop()

	for begun, since := 0, r.began; ; { // since is the time of the last tick
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

// hold counts the passed time as held if the shards were too far behind at its beginning or are at its end. It returns the total held
// time.
func (r *Run) hold(passed time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()

	before := r.behind
	r.behind = r.undone*sampled >= int(ahead.Seconds()*float64(r.options.Rate))

	if before || r.behind {
		r.result.Held += passed
	}

	return r.result.Held
}

// follow checks an object until its work is done or the load ends. A deleted object counts as done.
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

// wait checks an object until it has a shard, and records how long that took.
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
