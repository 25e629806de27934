package resources

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

const (
	// lookEvery is how often discovery is queried in any case: what the API server serves may change, and watching
	// CustomResourceDefinitions and API services requires additional permissions.
	lookEvery = 15 * time.Second
	// missingEvery is how often discovery is queried while a ring misses a resource, after a few earlier attempts.
	missingEvery = 5 * time.Second
	// lookGap is the minimum time between the starts of two looks.
	lookGap = time.Second
	// lookTimeout ends a look without an answer.
	lookTimeout = 30 * time.Second
	// forgetAfter is how long a missed resource is remembered after it was last missed.
	forgetAfter = 10 * time.Minute
)

// errNotAsked is the reason why nothing is known before the first look.
var errNotAsked = errors.New("it has not been asked yet")

// Discovery returns what an API server serves. A partial answer comes with a [discovery.ErrGroupDiscoveryFailed].
type Discovery func(ctx context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error)

// Connect returns the discovery of an API server. An answer takes two requests; an API server before Kubernetes 1.27
// takes one more per group version. The client needs only the permissions that everybody has from the ClusterRole
// system:discovery.
func Connect(config *rest.Config, client *http.Client) (Discovery, error) {
	c, err := discovery.NewDiscoveryClientForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("prepare discovery: %w", err)
	}

	// The client's own method would query twice if a group fails.
	return func(ctx context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
		return discovery.ServerGroupsAndResourcesWithContext(ctx, c)
	}, nil
}

// Resolver tracks what the API server serves, and therefore what the resources of rings are. One Resolver serves all
// rings of a process. It queries discovery every 15 seconds, every 5 seconds while a ring misses a resource, and soon
// after a request, but at most once a second and never concurrently. It answers from memory. Create it with [Follow],
// or create it with [NewResolver] and let a manager start it: it needs no leader election. All its methods are safe for
// concurrent use at any time.
//
// # Invariants
//
//  1. A resource that was served counts as served until a successful look at its whole group did not show it: a group
//     whose discovery fails is unknown, never gone.
//  2. A resource is gone only after a look that began after the resource was first missed.
//  3. The same state of knowledge results in equal answers for all rings.
type Resolver struct {
	discovery Discovery
	clock     clock.WithTicker
	log       logr.Logger
	asked     chan struct{} // holds a value if another look is due
	looked    chan struct{} // closed after the first look

	mu          sync.Mutex
	known       *snapshot
	begun       int64 // the number of looks that have begun
	done        int64 // the number of the look that known comes from
	revision    int64
	missed      map[schema.GroupResource]*missed
	subscribers []func()
}

// missed is a resource that a ring names and that is not known to be served.
type missed struct {
	// since is how many looks had begun when the resource was first missed.
	since int64
	last  time.Time
	// gone is the answer that was last given, or could have been given.
	gone bool
}

// NewResolver returns a Resolver that knows nothing yet.
func NewResolver(d Discovery, clk clock.WithTicker, log logr.Logger) *Resolver {
	return &Resolver{
		discovery: d, clock: clk, log: log,
		asked: make(chan struct{}, 1), looked: make(chan struct{}),
		known:  &snapshot{err: errNotAsked},
		missed: map[schema.GroupResource]*missed{},
	}
}

// Follow returns a Resolver that queries the API server of a manager. The manager starts it in every replica.
func Follow(mgr manager.Manager, clk clock.WithTicker, log logr.Logger) (*Resolver, error) {
	d, err := Connect(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, err
	}

	r := NewResolver(d, clk, log)
	if err := mgr.Add(r); err != nil {
		return nil, fmt.Errorf("start discovery: %w", err)
	}

	return r, nil
}

// NeedLeaderElection makes the manager run the Resolver in every replica.
func (r *Resolver) NeedLeaderElection() bool { return false }

// Start queries discovery until ctx ends.
func (r *Resolver) Start(ctx context.Context) error {
	for attempts := 0; ctx.Err() == nil; {
		begun := r.clock.Now()
		r.look(ctx)

		next := lookEvery
		if attempts++; r.lacking() {
			next = min(lookGap<<min(attempts-1, 10), missingEvery)
		} else {
			attempts = 0
		}

		if r.await(ctx, begun.Add(next), true) {
			attempts = 0
			r.await(ctx, begun.Add(lookGap), false)
		}
	}

	return nil
}

// await waits until then, until ctx ends, or, if hurried is true, until somebody asks, which it reports.
func (r *Resolver) await(ctx context.Context, then time.Time, hurried bool) (asked bool) {
	timer := r.clock.NewTimer(then.Sub(r.clock.Now()))
	defer timer.Stop()

	var ask chan struct{}
	if hurried {
		ask = r.asked
	}

	select {
	case <-ctx.Done():
	case <-timer.C():
	case <-ask:
		return true
	}

	return false
}

// look queries discovery once, and notifies subscribers if that changes an answer.
func (r *Resolver) look(ctx context.Context) {
	select {
	case <-r.asked: // earlier requests get the answer of this look
	default:
	}

	r.mu.Lock()
	r.begun++
	number, before := r.begun, r.known
	r.mu.Unlock()

	limited, cancel := context.WithTimeout(ctx, lookTimeout)
	groups, lists, err := r.discovery(limited)

	cancel()

	if ctx.Err() != nil {
		return
	}

	after := before.after(groups, lists, err)
	r.tell(before, after)

	r.mu.Lock()
	r.known, r.done = after, number
	changed := r.review() || !after.same(before)

	if changed {
		r.revision++
	}

	subscribers := slices.Clone(r.subscribers)
	r.mu.Unlock()

	if number == 1 {
		close(r.looked)
	}

	if !changed {
		return
	}

	for _, told := range subscribers {
		told()
	}
}

// tell logs groups that begin or cease to fail.
func (r *Resolver) tell(before, after *snapshot) {
	if after.err != nil && (before.err == nil || before.err.Error() != after.err.Error()) {
		r.log.Error(after.err, "Discovery fails; the known state of resources remains valid")
	}

	switch groups := after.failing(); {
	case slices.Equal(groups, before.failing()):
	case len(groups) > 0:
		r.log.Info("Discovery of API groups fails; their known state remains valid", "groups", groups)
	default:
		r.log.Info("Discovery of all API groups works again")
	}
}

// review checks, after a look, what was missed. It reports whether an answer has changed. The caller holds mu.
func (r *Resolver) review() (changed bool) {
	maps.DeleteFunc(r.missed, func(gr schema.GroupResource, m *missed) bool {
		_, err := r.known.find(gr)
		if err == nil || r.clock.Since(m.last) > forgetAfter {
			return true
		}

		_, absent := errors.AsType[*NotServedError](err)
		if gone := absent && r.done > m.since; gone != m.gone {
			m.gone, changed = gone, true
		}

		return false
	})

	return changed
}

// lacking reports whether there is a reason to look again soon.
func (r *Resolver) lacking() bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.known.err != nil || len(r.missed) > 0
}

// Ask requests a look soon: immediately, or when a second has passed since the last look. It does not block. Call it
// when a resource was refused that should be served. Subscribers are notified if the answer has changed.
func (r *Resolver) Ask() {
	select {
	case r.asked <- struct{}{}:
	default: // a request is already pending
	}
}

// Await waits until discovery has been queried for the first time. It returns an error if ctx ends before, or if
// nothing is known yet.
func (r *Resolver) Await(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("wait for discovery: %w", ctx.Err())
	case <-r.looked:
	}

	return r.Known()
}

// Known returns an error while nothing is known at all.
func (r *Resolver) Known() error {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.known.resources == nil {
		return fmt.Errorf("ask the API server what it serves: %w", r.known.err)
	}

	return nil
}

// Resolve returns the resources of a ring, from memory. It does not fail as a whole: what is not served, lacks verbs,
// or is not known, is in [Set.Missing], and discovery is queried soon for what was not missing before. A resource that
// is listed as main and as controlled counts as main. The spec is not changed.
func (r *Resolver) Resolve(spec v1alpha1.ClusterRingSpec) *Set {
	r.mu.Lock()
	defer r.mu.Unlock()

	return newSet(spec, func(gr schema.GroupResource) (Resource, bool, error) {
		found, err := r.known.find(gr)

		switch {
		case err == nil && found.lacks != "": // known at once: discovery has shown it
			return Resource{}, true, &NotServedError{GroupResource: gr, Lacks: found.lacks}
		case err == nil:
			return found, false, nil
		}

		m, ok := r.missed[gr]
		if !ok {
			m = &missed{since: r.begun}
			r.missed[gr] = m

			r.Ask()
		}

		m.last = r.clock.Now()

		return Resource{}, m.gone, err
	})
}

// Find returns one resource, from memory, whether or not it is part of a ring. It returns a [NotServedError] if the
// resource is not served, and another error if that is not known. It does not cause a query of discovery.
func (r *Resolver) Find(gr schema.GroupResource) (Resource, error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.known.find(gr)
}

// OfKind returns the resource of a kind; otherwise, it is like [Resolver.Find].
func (r *Resolver) OfKind(gk schema.GroupKind) (Resource, error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.known.ofKind(gk)
}

// Revision returns a number that grows when an answer may have changed.
func (r *Resolver) Revision() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.revision
}

// Subscribe registers a function that is called, without a lock held, after a look that may have changed the answer for
// some ring. It should return quickly.
func (r *Resolver) Subscribe(changed func()) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.subscribers = append(r.subscribers, changed)
}

// Resolve returns the resources of a ring in a world that never changes and that a mapper knows completely, as in a
// model or a test. A resource that the mapper does not match is gone. Services use a [Resolver].
func Resolve(mapper meta.RESTMapper, spec v1alpha1.ClusterRingSpec) *Set {
	return newSet(spec, func(gr schema.GroupResource) (Resource, bool, error) {
		kind, err := mapper.KindFor(gr.WithVersion(""))
		if err != nil {
			return Resource{}, meta.IsNoMatchError(err), err
		}

		m, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return Resource{}, meta.IsNoMatchError(err), err
		}

		return Resource{
			GVR: m.Resource, Kind: m.GroupVersionKind, Namespaced: m.Scope == meta.RESTScopeNamespace,
		}, false, nil
	})
}
