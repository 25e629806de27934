// Package load creates Websites at a steady rate, as users would, and measures the effect of sharding on these writes.
// If the shards cannot keep up, for example on a slow machine, it waits for them.
package load

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

const (
	// createTimeout limits the time of one create.
	createTimeout = 15 * time.Second
	// assignmentInterval is the interval between reads of an unassigned object, doneInterval that of an object whose work
	// is not done.
	assignmentInterval = 50 * time.Millisecond
	doneInterval       = time.Second
	// maxErrors is the number of errors to keep.
	maxErrors = 5
	// One of sampled objects is followed until its work is done. ahead limits how far the load may be ahead of the shards,
	// in seconds at its rate.
	sampled = 10
	ahead   = 5
	// late is the part of the creates that counts for [Result.Late].
	late = 0.99
)

// Result is the result of a load.
type Result struct {
	// Created counts successful creates, Admitted the objects that were assigned in admission.
	Created, Admitted int
	// Slowest is the longest time between the return of a create and the assignment, for objects that admission did not
	// assign. For objects that are unassigned at the end, it counts until the end.
	Slowest time.Duration
	// Late is the duration that 99 % of the creates did not exceed.
	Late time.Duration
	// Errors are the first few errors of creates.
	Errors []string
}

// AdmittedPercent returns the percentage of created objects that were assigned in admission, 0 without any.
func (r Result) AdmittedPercent() float64 {
	return 100 * float64(r.Admitted) / max(float64(r.Created), 1)
}

// Run is a running load. Create it with [Start].
type Run struct {
	client    client.Client
	ring      string
	perSecond int
	stop      context.CancelFunc
	group     sync.WaitGroup

	mu     sync.Mutex
	result Result
	took   []time.Duration
}

// Start creates Websites in the namespace of a ring, which has the name of the ring, until [Run.Stop] or the end of
// ctx: so many per second while the shards keep up. The client must not have a rate limit.
func Start(ctx context.Context, c client.Client, ring string, perSecond int) *Run {
	creating, stop := context.WithCancel(ctx)
	r := &Run{client: c, ring: ring, perSecond: perSecond, stop: stop}
	r.group.Go(func() { r.run(ctx, creating) })

	return r
}

// Stop stops the load, waits for pending creates and, for a limited time, until every object has a shard, and returns
// the result.
func (r *Run) Stop() Result {
	r.stop()
	r.group.Wait()

	r.mu.Lock()
	defer r.mu.Unlock()

	r.result.Late = continuity.Quantile(r.took, late)

	return r.result
}

// Rate returns the configured number of creates per second.
func (r *Run) Rate() int { return r.perSecond }

// Created returns the number of created objects so far.
func (r *Run) Created() int {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.result.Created
}

// run starts the creates. A slow create does not delay the next one. Started creates continue after creating ends,
// until ctx ends.
func (r *Run) run(ctx, creating context.Context) {
	limiter := rate.NewLimiter(rate.Limit(r.perSecond), r.perSecond) // it makes up for a second
	undone := make(chan struct{}, ahead*r.perSecond/sampled+1)

	for number := 0; limiter.Wait(creating) == nil; number++ {
		if number%sampled > 0 {
			r.group.Go(func() { r.create(ctx, number) })
			continue
		}

		select {
		case undone <- struct{}{}:
		case <-creating.Done():
			return
		}

		r.group.Go(func() {
			if site := r.create(ctx, number); site != nil {
				r.poll(creating, site, doneInterval, site.Done)
			}

			<-undone
		})
	}
}

// create returns a Website that has a shard, or nil.
func (r *Run) create(ctx context.Context, number int) *v1alpha1.Website {
	site := system.Website(r.ring, fmt.Sprintf("load-%d", number))

	limited, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()

	began := record.Now()
	err := r.client.Create(limited, site)
	returned := record.Now()
	assigned := func() bool { return site.Labels[contract.ShardLabel(r.ring)] != "" }
	r.count(returned-began, assigned(), err)

	if err != nil {
		return nil
	}

	if !assigned() {
		limited, cancel := context.WithTimeout(ctx, 2*createTimeout)
		defer cancel()

		r.poll(limited, site, assignmentInterval, assigned)
		r.mu.Lock()
		r.result.Slowest = max(r.result.Slowest, record.Now()-returned)
		r.mu.Unlock()
	}

	return site
}

// poll reads the Website until it is as wanted, or is gone, or ctx ends.
func (r *Run) poll(ctx context.Context, site *v1alpha1.Website, interval time.Duration, wanted func() bool) {
	_ = wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		err := r.client.Get(ctx, client.ObjectKeyFromObject(site), site)
		return apierrors.IsNotFound(err) || err == nil && wanted(), nil
	})
}

func (r *Run) count(took time.Duration, admitted bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.took = append(r.took, took)
	if err != nil {
		if len(r.result.Errors) < maxErrors {
			r.result.Errors = append(r.result.Errors, err.Error())
		}

		return
	}

	r.result.Created++
	if admitted {
		r.result.Admitted++
	}
}
