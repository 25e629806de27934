package rings

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/takeover"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
)

// firstLook and longestLook limit the time from one look for the objects of relabelled namespaces to the next. It doubles with each look, until no
// namespace was relabelled for longestLook.
const firstLook, longestLook = time.Second, time.Minute

// fleet runs one engine per ring while this replica is the leader. Its methods are safe for concurrent use.
type fleet struct {
	api        feed.Server
	live       client.Reader
	namespaces namespaces
	limits     engine.Limits
	clock      clock.WithTicker
	// ask requests a query of discovery. It is called when the API server refuses a resource that it should serve.
	ask func()
	// changed is called when an engine has something to report.
	changed func(ring string)
	// late is called when a drain was not acknowledged in time.
	late func(ring string, id feed.ID, shard string, after time.Duration)

	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // the context of Start, in which the engines run
	engines map[string]*running
}

type running struct {
	*engine.Engine
	keys     contract.LabelKeys
	revision int64
	stop     func()
	// reported is what the reconciler last wrote. Only the reconciler uses it, and the next fields.
	reported lastReport
	pace     pace
	// refused reports whether another target could not be set, because the API server refused a request. If the shards change back meanwhile,
	// somebody else may have acted on the change.
	refused bool
	// relabelled reports whether a namespace was relabelled since the engine last looked for that. looks are the pauses between these looks, and
	// looked is when the last of these pauses ends. The fleet guards them.
	relabelled bool
	looks      feed.Pauses
	looked     time.Time
	// failures are the failures that it last reported. stuck is the last announced reason why a deleted ring waits.
	failures []string
	stuck    string
	// since is since when objects of a resource have had a problem.
	since map[schema.GroupResource]time.Time
}

// Start runs the engines until ctx ends, and returns when all of them have stopped.
func (f *fleet) Start(ctx context.Context) error {
	f.mu.Lock()
	f.ctx = ctx
	f.mu.Unlock()

	<-ctx.Done()

	f.mu.Lock()
	all := f.engines
	f.engines = nil
	f.mu.Unlock()

	for _, r := range all {
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

// engine returns the engine of a ring, and starts it if there is none. It returns nil while the fleet does not run. If a ring has been deleted
// and created again with other keys, its former engine stops first.
func (f *fleet) engine(ring string, keys contract.LabelKeys) *running {
	f.stopOther(ring, keys)

	f.mu.Lock()
	defer f.mu.Unlock()

	if f.ctx == nil || f.ctx.Err() != nil {
		return nil
	}

	if r, ok := f.engines[ring]; ok {
		return r
	}

	ctx, cancel := context.WithCancel(log.IntoContext(f.ctx, log.FromContext(f.ctx).WithValues("ring", ring)))
	ended := make(chan struct{})
	r := &running{
		keys:  keys,
		looks: feed.NewPauses("namespaces of "+ring, firstLook, longestLook),
		Engine: engine.New(engine.Config{
			Ring:       ring,
			Objects:    feed.NewClient(f.api, keys),
			Guard:      takeover.New(ring, f.live, f.clock),
			Namespaces: f.namespaces,
			Limits:     f.limits,
			Clock:      f.clock,
			Changed:    func() { f.changed(ring) },
			Trouble:    f.ask,
			Late: func(id feed.ID, shard string, after time.Duration) {
				f.late(ring, id, shard, after)
			},
		}),
		stop: func() {
			cancel()
			<-ended
		},
	}

	go func() {
		defer close(ended)
		r.Run(ctx)
	}()

	if f.engines == nil {
		f.engines = map[string]*running{}
	}

	f.engines[ring] = r

	return r
}

// stopOther stops the engine of a ring if it uses other keys.
func (f *fleet) stopOther(ring string, keys contract.LabelKeys) {
	f.mu.Lock()
	r := f.engines[ring]
	f.mu.Unlock()

	if r != nil && r.keys != keys {
		f.stop(ring)
	}
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

// relabelled returns the rings whose selector selects exactly one of the two label sets of a namespace. Their engines will look for misplaced
// objects.
func (f *fleet) relabelled(before, after labels.Set) []string {
	f.mu.Lock()
	defer f.mu.Unlock()

	var rings []string

	for ring, r := range f.engines {
		if t := r.Target(); t != nil && t.Selector.Matches(before) != t.Selector.Matches(after) {
			r.relabelled = true

			rings = append(rings, ring)
		}
	}

	return rings
}

// revisit makes the engine of a ring look for misplaced objects, although its target is the same.
func (f *fleet) revisit(r *running) {
	f.mu.Lock()
	defer f.mu.Unlock()

	r.revision++
}

// narrowed returns the rings that cover a namespace which was created or deleted, and that watch the namespaces they cover one by one, or exclude
// this one because they did not cover an earlier one of its name, or whose shards do not watch all namespaces.
func (f *fleet) narrowed(namespace client.Object) []string {
	f.mu.Lock()
	defer f.mu.Unlock()

	var rings []string

	for ring, r := range f.engines {
		t := r.Target()
		if t != nil && (t.View.Restricted() || t.Narrow.Single || slices.Contains(t.Narrow.Except, namespace.GetName())) && t.Selector.Matches(labels.Set(namespace.GetLabels())) {
			rings = append(rings, ring)
		}
	}

	return rings
}

// revise completes a target with its revision, which depends on relabelled namespaces, and with the namespaces that do not
// have to be watched. Call it before the engine gets the target. If a namespace was relabelled so soon after another one that its objects have to
// wait, wait is how long.
func (f *fleet) revise(ctx context.Context, r *running, t *engine.Target) (wait time.Duration, err error) {
	covered, err := f.namespaces.Covered(ctx, t.Selector)
	if err != nil {
		return 0, err
	}

	var before placement.Narrowing
	if now := r.Target(); now != nil {
		before = now.Narrow
	}

	t.Narrow = placement.Narrow(before, covered)

	f.mu.Lock()
	defer f.mu.Unlock()

	wait = r.look(f.clock.Now())
	t.Revision = r.revision

	return wait, nil
}

// look makes the engine look for misplaced objects if a namespace was relabelled, or returns how long that has to wait. Each look is a pass over all
// objects. The label of a namespace may flap, as when two tools write it.
func (r *running) look(now time.Time) (wait time.Duration) {
	if !r.relabelled {
		return 0
	}

	if wait = r.looked.Sub(now); wait > 0 {
		return wait
	}

	if -wait > longestLook {
		r.looks.Reset()
	}

	r.relabelled, r.looked = false, now.Add(r.looks.Next())
	r.revision++

	return 0
}
