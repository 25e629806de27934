package simulation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/internal/takeover"
	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/move"
)

// steward plays the part of the rebalancer around an engine: it gives the engine its target, and writes the ring's
// status.
type steward struct {
	w      *Cluster
	client *apiserver.Client
	feed   *courier
	wake   chan struct{}

	mu       sync.Mutex
	ring     *v1alpha1.ClusterRing
	leases   map[types.NamespacedName]*coordinationv1.Lease
	teams    map[string]string
	known    *resources.Resolver
	revision int64
	// guarded are the Leases that the engine's guard has seen held by their shards.
	guarded map[types.NamespacedName]types.UID
	// looks counts the reconciles of the ring.
	looks int
	away  time.Time
	// engine works towards the target of the ring with this uid.
	engine *engine.Engine
	stop   func()
	uid    types.UID
}

// longest is the interval at which the steward reconciles a ring without news.
const longest = 10 * time.Minute

// moment is how long the steward waits before a reconcile: everything of the instant at which it was woken has then
// happened, in whatever order the goroutines of that instant have run.
const moment = 17 * time.Microsecond

func newSteward(w *Cluster) *steward {
	s := &steward{
		w: w, client: w.server.Client("rebalancer/0"), feed: newCourier(), wake: make(chan struct{}, 1),
		leases: map[types.NamespacedName]*coordinationv1.Lease{}, teams: map[string]string{},
		known: resources.NewResolver(discovery{w.server.Client("rebalancer/0")}.GroupsAndResources, clock.RealClock{},
			logr.Discard()),
	}
	s.known.Subscribe(s.changed)

	w.server.FollowLeases("rebalancer/0", func(id types.NamespacedName, l *coordinationv1.Lease, lag time.Duration) {
		s.feed.put(lag, func() {
			renewal := s.leases[id] != nil && l != nil && holderOf(s.leases[id]) == holderOf(l)
			s.learn(func() { keep(s.leases, id, l) }, !renewal)
		})
	})
	w.followRing("rebalancer/0", s.feed, func(r *v1alpha1.ClusterRing) { s.learn(func() { s.ring = r }, true) })
	w.followTeams("rebalancer/0", s.feed, func(name, team string) {
		s.learn(func() {
			before, known := s.teams[name]
			s.teams[name] = team

			if t := s.pursued(); known && t != nil &&
				t.Selector.Matches(labels.Set(namespaceLabels(name,
					before))) != t.Selector.Matches(labels.Set(namespaceLabels(name, team))) {
				s.revision++
			}
		}, true)
	})

	return s
}

// pursued returns the target of the engine. The lock is held.
func (s *steward) pursued() *engine.Target {
	if s.engine == nil {
		return nil
	}

	return s.engine.Target()
}

func (s *steward) learn(change func(), wake bool) {
	s.mu.Lock()
	change()
	s.mu.Unlock()

	if wake {
		s.changed()
	}
}

func (s *steward) changed() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Selects implements [engine.Namespaces].
func (s *steward) Selects(_ context.Context, namespace string, selector labels.Selector) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	team, ok := s.teams[namespace]

	return ok && selector.Matches(labels.Set(namespaceLabels(namespace, team))), nil
}

// restart makes another replica lead after a time.
func (s *steward) restart(after time.Duration) {
	s.mu.Lock()
	s.away = s.w.clock.Now().Add(after)
	s.mu.Unlock()
	s.changed()
}

func (s *steward) run(ctx context.Context) {
	s.w.group.Go(func() { _ = s.known.Start(ctx) })

	if s.known.Await(ctx) != nil {
		s.w.say("discovery does not answer")
	}

	for ctx.Err() == nil {
		s.mu.Lock()
		away := s.away.Sub(s.w.clock.Now())
		s.mu.Unlock()

		if away > 0 {
			s.halt()
			pause(ctx, s.w.clock, away, nil)

			continue
		}

		pause(ctx, s.w.clock, moment, nil)

		s.mu.Lock()
		s.looks++
		s.mu.Unlock()

		wait := longest
		if err := s.reconcile(ctx); err != nil {
			wait = time.Second
		}

		pause(ctx, s.w.clock, 50*time.Millisecond, nil)
		pause(ctx, s.w.clock, wait, s.wake)
	}

	s.halt()
}

// halt stops the engine, if one runs.
func (s *steward) halt() {
	s.mu.Lock()
	stop := s.stop
	s.stop, s.engine, s.guarded = nil, nil, nil
	s.mu.Unlock()

	if stop != nil {
		stop()
	}
}

// reconcile reconciles the ring once, as the rebalancer's reconciler does.
func (s *steward) reconcile(ctx context.Context) error {
	s.mu.Lock()
	ring, uid := s.ring, s.uid
	s.mu.Unlock()

	if ring == nil || s.engine != nil && uid != ring.UID {
		s.halt()

		if ring == nil {
			return nil
		}
	}

	if len(ring.Finalizers) == 0 {
		if ring.DeletionTimestamp != nil {
			s.halt()
			return nil
		}

		return s.write(ctx, ring, func(r *v1alpha1.ClusterRing) { r.Finalizers = []string{contract.FinalizerRebalancer} })
	}

	t, held := s.aimAt(ring)

	if s.engine == nil {
		s.begin(ctx, ring)
	}

	if !s.engine.Pursues(t) {
		s.engine.Observe(t.View)
		s.guard(held)

		report := s.engine.ReportBefore(t)

		if err := s.write(ctx, ring,
			func(r *v1alpha1.ClusterRing) { r.Status.Assignment = assignment(r, t, report) }); err != nil {
			return err
		}

		s.aim(ring, t)

		return nil
	}

	s.aim(ring, t)
	s.guard(held)

	report := s.engine.Report()
	if err := s.write(ctx, ring,
		func(r *v1alpha1.ClusterRing) { r.Status.Assignment = assignment(r, t, report) }); err != nil {
		return err
	}

	if ring.DeletionTimestamp != nil && report.Converged && !missing(t) {
		s.halt()
		return s.write(ctx, ring, func(r *v1alpha1.ClusterRing) { r.Finalizers = nil })
	}

	return nil
}

// aim gives the engine its target.
func (s *steward) aim(ring *v1alpha1.ClusterRing, t *engine.Target) {
	s.engine.SetTarget(t)
	s.w.pursues(ring, t.Set)
}

// begin starts an engine.
func (s *steward) begin(ctx context.Context, ring *v1alpha1.ClusterRing) {
	ctx, cancel := context.WithCancel(logr.NewContext(ctx, s.log()))
	ended := make(chan struct{})

	e := engine.New(engine.Config{
		Ring: ringName, Objects: feed.NewClient(s.client, labelKeys), Guard: takeover.New(ringName, s.client.Leases(),
			clock.RealClock{}),
		Namespaces: s, Limits: s.w.h.limits(), Clock: clock.RealClock{}, Changed: s.changed,
		Trouble: s.known.Ask,
		Late: func(id feed.ID, shard string, after time.Duration) {
			s.w.say("engine: shard %s has not released %s after %s", shard, id, after)
		},
	})

	s.mu.Lock()
	s.engine, s.uid = e, ring.UID
	s.stop = func() {
		cancel()
		<-ended
	}
	s.mu.Unlock()

	go func() {
		defer close(ended)
		e.Run(ctx)
	}()
}

// log returns a logger that detects findings of audits. In a verbose history, the trace contains the whole log.
func (s *steward) log() logr.Logger {
	verbosity := 0
	if s.w.h.Verbose {
		verbosity = 1
	}

	return funcr.New(func(_, args string) {
		if s.w.h.Verbose {
			s.w.say("engine: %s", args)
		}

		if _, found, ok := strings.Cut(args, `"msg"="The audit has found`); ok {
			_, found, _ = strings.Cut(found, `"object"="`)
			object, _, _ := strings.Cut(found, `"`)
			s.w.auditFound(object)
		}
	}, funcr.Options{Verbosity: verbosity})
}

// guard records the Leases that the guard has seen held.
func (s *steward) guard(held map[types.NamespacedName]types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.guarded = held
}

// guards reports whether the guard has seen this very Lease held by its shard.
func (s *steward) guards(id types.NamespacedName, l *coordinationv1.Lease) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.guarded[id] != "" && s.guarded[id] == l.UID
}

// aimAt returns the target of the engine, and the Leases that are held there.
func (s *steward) aimAt(ring *v1alpha1.ClusterRing) (*engine.Target, map[types.NamespacedName]types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()

	held := map[types.NamespacedName]types.UID{}

	for id, l := range s.leases {
		if lease.RecordOf(l).HeldBy(id.Name) {
			held[id] = l.UID
		}
	}

	spec, leaving := move.ScopeOf(ring)

	selector, err := metav1.LabelSelectorAsSelector(ring.Spec.EffectiveNamespaceSelector())
	if err != nil {
		panic("a selector that is not valid: " + err.Error())
	}

	covered := make(map[string]bool, len(s.teams))
	for name, team := range s.teams {
		covered[name] = selector.Matches(labels.Set(namespaceLabels(name, team)))
	}

	var before move.Narrowing
	if now := s.pursued(); now != nil {
		before = now.Narrow
	}

	return &engine.Target{
		Narrow: move.Narrow(before, covered),
		View:   viewOf(s.leases), Set: s.known.Resolve(spec), Leaving: leaving, Selector: selector, Revision: s.revision,
	}, held
}

// missing reports whether a resource of the ring is not served. A resource that has left the ring is not missing once
// it is gone.
func missing(t *engine.Target) bool {
	return slices.ContainsFunc(t.Set.Missing(), func(m resources.Missing) bool {
		return !t.Leaving[m.GroupResource] ||
			!m.Gone()
	})
}

// assignment returns the assignment for the status of the ring.
func assignment(ring *v1alpha1.ClusterRing, t *engine.Target, report engine.Report) *v1alpha1.AssignmentStatus {
	a := &v1alpha1.AssignmentStatus{
		LostShards: report.Lost, Resources: move.Remember(ring, t.Set, report.ConvergedFor, t.View.Fingerprint()),
	}

	if report.Converged && !missing(t) {
		a.Fingerprint = t.View.Fingerprint()
	}

	return a
}

// write changes the ring on the API server, if that changes anything and the ring has not changed since it was read.
func (s *steward) write(ctx context.Context, read *v1alpha1.ClusterRing, change func(r *v1alpha1.ClusterRing)) error {
	becomes := read.DeepCopy()
	if change(becomes); equality.Semantic.DeepEqual(becomes.Finalizers, read.Finalizers) &&
		equality.Semantic.DeepEqual(becomes.Status.Assignment, read.Status.Assignment) {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()

	return s.client.Call(ctx, "update", rings, func() error {
		s.w.mu.Lock()
		defer s.w.mu.Unlock()

		now := s.w.ring
		if now == nil || now.UID != read.UID || now.Generation != read.Generation {
			return fmt.Errorf("write ring %s: %w", ringName, errNotHeld)
		}

		next := now.DeepCopy()
		change(next)

		if len(next.Finalizers) == 0 && next.DeletionTimestamp != nil {
			next = nil
		}

		s.w.setRing(next)
		s.w.note("the status of the ring: %s", spoken(next))

		return nil
	})
}

func spoken(r *v1alpha1.ClusterRing) string {
	switch {
	case r == nil:
		return "gone"
	case fingerprintOf(r) != "":
		return "converged"
	}

	return "not converged"
}

// claim returns what the steward knows, and what the engine claims for it: about nothing if it has another target.
func (s *steward) claim() (f facts, claims engine.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()

	f = facts{ring: s.ring, view: viewOf(s.leases), teams: maps.Clone(s.teams), served: s.w.server.Resources()}
	if s.engine == nil || s.engine.Target() == nil || s.ring == nil ||
		s.engine.Target().View.Fingerprint() != f.view.Fingerprint() {
		return f, claims
	}

	return f, s.engine.Report()
}

// looked returns the number of reconciles of the ring.
func (s *steward) looked() int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.looks
}

// report returns the report of the engine; running is false if there is no engine.
func (s *steward) report() (r engine.Report, running bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.engine == nil {
		return engine.Report{}, false
	}

	return s.engine.Report(), true
}
