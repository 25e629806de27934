package rings

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

const (
	// firstLook and longestLook limit the time from one look for the objects of relabelled namespaces to the next. It
	// doubles with each look, until no namespace was relabelled for longestLook.
	firstLook, longestLook = time.Second, time.Minute
	// longestPace limits the wait for the next target, see [Reconciler.redirect].
	longestPace = time.Second
)

// fleet runs one engine per ring while this replica is the leader. Its methods are safe for concurrent use.
type fleet struct {
	// create returns an engine that does not run yet.
	create func(ring string, keys contract.LabelKeys) *engine.Engine

	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // the context of Start, in which the engines run
	engines map[string]*running
}

// running is the engine of a ring. Only the reconciler uses the fields below stop, except relabelled.
type running struct {
	*engine.Engine
	keys contract.LabelKeys
	stop func()
	// relabelled is set when a namespace was relabelled. looks are the pauses between the looks for its objects, and
	// looked is when the last of these pauses ends. Each look gives the target another revision.
	relabelled atomic.Bool
	looks      wait.Backoff
	looked     time.Time
	revision   int64
	// refused is true while another target could not be set, because the API server refused a request. If the shards
	// change back meanwhile, somebody else may have acted on the change.
	refused bool
	// paced is when the next target may be set.
	paced time.Time
	// reported is what the reconciler last wrote. announced is the problem that the last event was about; empty if it is
	// solved.
	reported  lastReport
	announced string
	// since is since when objects of a resource have had a problem, by its name.
	since map[string]time.Time
}

// Start runs the engines until ctx ends, and returns when all of them have stopped.
func (f *fleet) Start(ctx context.Context) error {
	f.mu.Lock()
	f.ctx, f.engines = ctx, map[string]*running{}
	f.mu.Unlock()

	<-ctx.Done()

	f.mu.Lock() // no engine starts anymore
	defer f.mu.Unlock()

	for _, r := range f.engines {
		r.stop()
	}

	return nil
}

// runs reports whether the ring has an engine that uses these keys.
func (f *fleet) runs(ring string, keys contract.LabelKeys) bool {
	f.mu.Lock()
	defer f.mu.Unlock()

	r := f.engines[ring]

	return r != nil && r.keys == keys
}

// engine returns the engine of a ring, and starts it if there is none. It returns nil while the fleet does not run.
func (f *fleet) engine(ring string, keys contract.LabelKeys) *running {
	if !f.runs(ring, keys) {
		f.stop(ring) // the ring was deleted and created again with other keys
	}

	f.mu.Lock()
	defer f.mu.Unlock()

	if f.ctx == nil || f.ctx.Err() != nil {
		return nil
	}

	if r := f.engines[ring]; r != nil {
		return r
	}

	ctx, cancel := context.WithCancel(log.IntoContext(f.ctx, log.FromContext(f.ctx).WithValues("ring", ring)))
	r := &running{Engine: f.create(ring, keys), keys: keys}

	var ended sync.WaitGroup

	ended.Go(func() { r.Run(ctx) })

	r.stop = func() {
		cancel()
		ended.Wait()
	}
	f.engines[ring] = r

	return r
}

// stop stops the engine of a ring, if there is one, and drops its metrics.
func (f *fleet) stop(ring string) {
	f.mu.Lock()
	r := f.engines[ring]
	delete(f.engines, ring)
	f.mu.Unlock()

	if r != nil {
		r.stop()
		engine.Forget(ring)
	}
}

// concerned returns the rings that a change of a namespace concerns. before is nil if it was created, and after if it
// was deleted.
//
// A change of its labels concerns the rings that selected it before or after, but not both. Their engines will look for
// misplaced objects. Otherwise, it concerns the rings that cover it, and that watch the namespaces they cover one by
// one, or exclude this one because they did not cover an earlier one of its name, or whose shards do not watch all
// namespaces.
func (f *fleet) concerned(before, after client.Object) (rings []string) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for ring, r := range f.engines {
		t := r.Target()
		if t == nil {
			continue
		}

		covers := func(o client.Object) bool { return t.Selector.Matches(labels.Set(o.GetLabels())) }
		relabelled := before != nil && after != nil && covers(before) != covers(after)

		switch one := cmp.Or(before, after); {
		case relabelled:
			r.relabelled.Store(true)
		case before != nil && after != nil, !covers(one),
			!t.View.Restricted() && !t.Narrow.Single && !slices.Contains(t.Narrow.Except, one.GetName()):
			continue
		}

		rings = append(rings, ring)
	}

	return rings
}

// look makes the engine look for misplaced objects if a namespace was relabelled, or returns how long that has to
// wait. Each look is a pass over all objects. The label of a namespace may flap, as when two tools write it.
func (r *running) look(now time.Time) (wait time.Duration) {
	if !r.relabelled.Load() {
		return 0
	}

	if wait = r.looked.Sub(now); wait > 0 {
		return wait
	}

	if now.Sub(r.looked) > longestLook {
		r.looks = feed.Pauses("namespaces of "+r.Ring, firstLook, longestLook)
	}

	r.relabelled.Store(false)
	r.looked = now.Add(r.looks.Step())
	r.revision++

	return 0
}
