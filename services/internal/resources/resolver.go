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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

const (
	// lookEvery is how often discovery is asked in any case: what the API server serves may change, and nobody says so
	// without the right to watch CustomResourceDefinitions and API services.
	lookEvery = 15 * time.Second
	// missingEvery is how often it is asked while some ring misses a resource, after a few earlier attempts.
	missingEvery = 5 * time.Second
	// lookGap is the least time between the beginnings of two looks.
	lookGap = time.Second
	// lookTimeout ends a look that gets no answer.
	lookTimeout = 30 * time.Second
	// forgetAfter is how long it is remembered that a resource was missed, if nobody misses it any more.
	forgetAfter = 10 * time.Minute
)

// errNotAsked is why nothing is known before the first look.
var errNotAsked = errors.New("it has not been asked yet")

// Discovery tells what an API server serves. A partial answer comes with a [discovery.ErrGroupDiscoveryFailed].
type Discovery interface {
	GroupsAndResources(ctx context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error)
}

// Connect returns the discovery of an API server. An answer takes two requests; an API server before Kubernetes 1.27 takes one
// more per group version. The client needs no more rights than everybody has by the ClusterRole system:discovery.
func Connect(config *rest.Config, client *http.Client) (Discovery, error) {
	c, err := discovery.NewDiscoveryClientForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("prepare discovery: %w", err)
	}

	return connected{c}, nil
}

type connected struct{ client *discovery.DiscoveryClient }

// GroupsAndResources asks once; the client's own method of that name would ask twice if a group fails.
func (c connected) GroupsAndResources(ctx context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	return discovery.ServerGroupsAndResourcesWithContext(ctx, c.client) //nolint:wrapcheck // looked at by its type
}

// Resolver knows what the API server serves, and so what the resources of rings are. One serves all rings of a process. It
// asks discovery every 15 seconds, every 5 while a ring misses a resource, and soon after somebody told it to, at most once a
// second and never twice at a time; it answers from memory. Create it with [Follow], or with [NewResolver] and let a manager
// start it: it needs no leader election. All its methods may be called at any time by several goroutines.
//
// # Invariants
//
//  1. A resource that was served is so for the Resolver until a look at its whole group, which succeeded, did not show it: a
//     group whose discovery fails is not known, never gone.
//  2. A resource is gone only after a look that began after the resource was first missed.
//  3. The same state of knowledge gives equal answers to all rings.
type Resolver struct {
	discovery Discovery
	clock     clock.WithTicker
	log       logr.Logger
	asked     chan struct{} // holds a token if there is to be another look
	looked    chan struct{} // closed when the first look has ended

	mu          sync.Mutex
	known       *snapshot
	begun       int64 // the number of looks that have begun
	done        int64 // the number of the look that known is from
	revision    int64
	missed      map[schema.GroupResource]*missed
	subscribers []func()
}

// missed is a resource that a ring names and that is not known to be served.
type missed struct {
	// since is how many looks had begun when it was first missed.
	since int64
	last  time.Time
	// gone is the answer that was last given, or could have been.
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

// Follow returns a Resolver that asks the API server of a manager, which starts it in every replica.
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

// NeedLeaderElection tells the manager to run it in every replica.
func (r *Resolver) NeedLeaderElection() bool { return false }

// Start asks discovery until ctx ends.
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

// await waits until then, for the end of ctx or, if it may be hurried, until somebody asks, which it reports.
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

// look asks discovery once, and tells those who have subscribed if that makes a difference.
func (r *Resolver) look(ctx context.Context) {
	select {
	case <-r.asked: // whoever has asked until now gets the answer
	default:
	}

	r.mu.Lock()
	r.begun++
	number, before := r.begun, r.known
	r.mu.Unlock()

	limited, cancel := context.WithTimeout(ctx, lookTimeout)
	groups, lists, err := r.discovery.GroupsAndResources(limited)

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

// tell logs what begins or ceases to fail.
func (r *Resolver) tell(before, after *snapshot) {
	if after.err != nil && (before.err == nil || before.err.Error() != after.err.Error()) {
		r.log.Error(after.err, "Discovery fails; what is known of resources stays as it is")
	}

	switch groups := after.failing(); {
	case slices.Equal(groups, before.failing()):
	case len(groups) > 0:
		r.log.Info("Discovery of API groups fails; what is known of them stays as it is", "groups", groups)
	default:
		r.log.Info("Discovery of all API groups works again")
	}
}

// review goes over what was missed, after a look. It reports whether an answer is another one than before. The caller holds mu.
func (r *Resolver) review() (changed bool) {
	maps.DeleteFunc(r.missed, func(gr schema.GroupResource, m *missed) bool {
		_, err := r.known.find(gr)

		return err == nil || r.clock.Since(m.last) > forgetAfter
	})

	for gr, m := range r.missed {
		if gone := r.gone(gr, m); gone != m.gone {
			m.gone, changed = gone, true
		}
	}

	return changed
}

// gone reports whether a resource that is not found is gone. The caller holds mu.
func (r *Resolver) gone(gr schema.GroupResource, m *missed) bool {
	_, err := r.known.find(gr)
	_, absent := errors.AsType[*NotServedError](err)

	return absent && r.done > m.since
}

// lacking reports whether there is a reason to look again soon.
func (r *Resolver) lacking() bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.known.err != nil || len(r.missed) > 0
}

// Ask has discovery asked soon: at once, but for the second that is between two looks. It returns at once. Ask when a resource was
// refused that should be served; those who have subscribed are told if the answer is news.
func (r *Resolver) Ask() {
	select {
	case r.asked <- struct{}{}:
	default: // somebody has asked already
	}
}

// Await waits until discovery has been asked for the first time. It returns an error if ctx ends before, or if as yet nothing
// is known at all.
func (r *Resolver) Await(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("wait for discovery: %w", ctx.Err())
	case <-r.looked:
	}

	return r.Known()
}

// Known returns an error as long as nothing is known at all.
func (r *Resolver) Known() error {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.known.groups == nil {
		return fmt.Errorf("ask the API server what it serves: %w", r.known.err)
	}

	return nil
}

// Resolve returns what a ring's resources are, from memory. It does not fail as a whole: what is not served, or not known, is
// in [Set.Missing], and discovery is asked soon for what was not missing before. A resource that is listed as main and as controlled
// is taken as main. The spec is not changed.
func (r *Resolver) Resolve(spec v1alpha1.ClusterRingSpec) *Set {
	r.mu.Lock()
	defer r.mu.Unlock()

	return newSet(spec, func(gr schema.GroupResource) (Resource, bool, error) {
		found, err := r.known.find(gr)
		if err == nil {
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

// Find returns one resource, from memory, whether or not a ring has it. It returns a [NotServedError] if it is not served, any
// other error if that is not known. Discovery is not asked for it.
func (r *Resolver) Find(gr schema.GroupResource) (Resource, error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.known.find(gr)
}

// OfKind returns the resource whose objects are of a kind; else as [Resolver.Find].
func (r *Resolver) OfKind(gk schema.GroupKind) (Resource, error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.known.ofKind(gk)
}

// Revision returns a number that grows when an answer may be another one than before.
func (r *Resolver) Revision() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.revision
}

// Subscribe registers a function to be called, with no lock held, after a look that may have changed the answer for some ring.
// It should return quickly.
func (r *Resolver) Subscribe(changed func()) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.subscribers = append(r.subscribers, changed)
}
