// Package rings reconciles the rings: it runs one engine per ring, gives it its target, and writes its report into the
// status of the ring.
//
// It reads ClusterRings, namespaces, and what other packages know about Leases and resources. It writes the finalizer
// of each ring, status.assignment, the condition Assigned, and events. The engines do everything else; see package
// engine.
package rings

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/internal/takeover"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/move"
)

const (
	// askAgain is when the rebalancer asks again for a permission that it does not have.
	askAgain = 5 * time.Second
	// countsEvery is the interval at which the status reports how many objects are on the move while nothing else
	// changes: every service reads each write, and a write to a ring costs the API server as much as ten writes to an
	// object.
	countsEvery = time.Second
	// countsPerSecond limits these writes for all rings together: if many rings move objects at once, the writes would
	// cost as much as the moves.
	countsPerSecond = 5
	// ringsAtOnce limits how many rings are reconciled at a time, so that a slow one delays only few others.
	ringsAtOnce = 4
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Config configures a reconciler. All fields are required.
type Config struct {
	// Tenure takes rings and gives them up. [New] sets its functions.
	*clusterring.Tenure
	// Name is the field manager of the status, and the name of the controller.
	Name string
	// Objects reads and writes the sharded objects of all rings.
	Objects feed.Server
	// Resources knows what the API server serves.
	Resources *resources.Resolver
	// Index contains the Leases of shards.
	Index *membership.Index
	// Limits apply to each engine.
	Limits engine.Limits
	// Clock is that of the engines.
	Clock clock.WithTickerAndDelayedExecution
}

// Reconciler gives the engine of every ring its target, and writes the reports of the engine into the status of the
// ring. Create it with [New].
type Reconciler struct {
	Config
	namespaces clusterring.Namespaces
	fleet      *fleet
	// enqueue requests another reconcile of a ring. The controller sets it before the first one.
	enqueue func(ring string)
	status  clusterring.StatusWriter
	// counts limits writes that change only numbers, by the clock of status.
	counts *rate.Limiter
}

// New returns a reconciler without engines. ctx ends when the service stops.
func New(ctx context.Context, c Config) *Reconciler {
	r := &Reconciler{
		Config: c, namespaces: clusterring.Namespaces{Cached: c.Client, Live: c.Live},
		status: clusterring.StatusWriter{Client: c.Client, Owner: c.Name, Clock: c.Clock},
		counts: rate.NewLimiter(countsPerSecond, countsPerSecond),
	}
	r.fleet = &fleet{create: func(ring string, keys contract.LabelKeys) *engine.Engine {
		return engine.New(engine.Config{
			Ring:       ring,
			Objects:    feed.NewClient(c.Objects, keys),
			Guard:      takeover.New(ring, c.Live, c.Clock),
			Namespaces: r.namespaces,
			Limits:     c.Limits,
			Clock:      c.Clock,
			Changed:    func() { r.enqueue(ring) },
			Trouble:    c.Resources.Ask,
			Late: func(id feed.ID, shard string, after time.Duration) {
				obj := &v1alpha1.ClusterRing{}
				if err := c.Client.Get(ctx, types.NamespacedName{Name: ring}, obj); err == nil {
					c.Recorder.Eventf(obj, nil, "Warning", v1alpha1.ReasonDrainsLate, "Drain",
						"shard %s has not released %s within %s", shard, id, after)
				}
			},
		})
	}}
	c.Works = func(ring *v1alpha1.ClusterRing) bool { return r.fleet.runs(ring.Name, ring.LabelKeys()) }
	c.Stop, c.Release = r.fleet.stop, r.release

	return r
}

// SetupWithManager adds the engines and a controller to the manager. It calls the reconciler for every ring that
// changes, and whenever a dependency of the ring changes. It starts when the Leases of shards have been read.
func (r *Reconciler) SetupWithManager(mgr manager.Manager, leases toolscache.DoneChecker) error {
	if err := mgr.Add(r.fleet); err != nil {
		return fmt.Errorf("set up the engines: %w", err)
	}

	err := builder.ControllerManagedBy(mgr).Named(r.Name).
		For(&v1alpha1.ClusterRing{}).
		Watches(&v1alpha1.ClusterRing{}, clusterring.Rivals(r.Client)).
		Watches(&corev1.Namespace{}, concerned(r.fleet)).
		WatchesRawSource(clusterring.Source(r.Client, func(ctx context.Context, one func(ring string), all func()) error {
			r.enqueue = one
			r.Index.Subscribe(one)
			r.Resources.Subscribe(all)

			toolscache.WaitFor(ctx, "", leases)

			_ = r.Resources.Await(ctx) // the conditions of rings report a failure

			return ctx.Err()
		})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: ringsAtOnce, RateLimiter: kit.RateLimiter[reconcile.Request](),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of rings: %w", err)
	}

	return nil
}

// concerned reconciles the rings that a change of a namespace concerns.
func concerned(f *fleet) handler.EventHandler {
	add := func(q queue, before, after client.Object) {
		for _, ring := range f.concerned(before, after) {
			q.Add(clusterring.Request(ring))
		}
	}

	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { add(q, nil, e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { add(q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { add(q, e.Object, nil) },
	}
}

// Reconcile implements [reconcile.Reconciler] for rings.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	result, err := r.reconcile(ctx, req)

	if stopping := ctx.Err() != nil; stopping {
		err = nil // requests that were cancelled by the stop have failed
	} else if apierrors.IsConflict(err) {
		result, err = reconcile.Result{RequeueAfter: clusterring.CatchUp}, nil // the cache was out of date
	}

	return result, err
}

func (r *Reconciler) reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	ring := &v1alpha1.ClusterRing{}
	if err := r.Client.Get(ctx, req.NamespacedName, ring); err != nil {
		if apierrors.IsNotFound(err) {
			r.Gone(req.Name)
			r.Index.Rule(req.Name, membership.Rules{})

			return reconcile.Result{}, nil
		}

		return reconcile.Result{}, fmt.Errorf("read ring %s: %w", req.Name, err)
	}

	reason, message, err := r.MayUseLabel(ctx, ring)
	if err != nil {
		return reconcile.Result{}, err
	}

	if reason != "" { // the ring is not claimed: it can be deleted at once
		return r.refuse(ctx, ring, notAssigned(reason, message))
	}

	if holds, wait, err := r.Hold(ctx, ring); !holds || err != nil {
		return reconcile.Result{RequeueAfter: wait}, err
	}

	t, err := targetOf(ring, r.Resources, r.Index.ViewOf(ring))
	if err != nil {
		// The engine, if there is one, keeps its last target.
		remembered := &v1alpha1.AssignmentStatus{Resources: move.Remember(ring, t.Set, engine.Report{}.ConvergedFor, "")}

		return reconcile.Result{}, r.explain(ctx, ring, remembered, notAssigned(v1alpha1.ReasonAssignmentFailed, err.Error()))
	}

	return r.pursue(ctx, t)
}

// target is the target of a ring's engine, with the data that only the reconciler needs.
type target struct {
	*engine.Target

	// ring is the copy of the ring that this is the target of.
	ring *v1alpha1.ClusterRing
	// covered says of each namespace whether the ring's selector selects it.
	covered map[string]bool
	// invalid is the reason why the ring is invalid; the target then contains what can be done anyway. It is nil if the
	// ring is valid.
	invalid error
}

// targetOf returns the target of a ring. It returns an error if a selector of the ring is invalid, unless the ring is
// being deleted: a deletion needs no selector.
func targetOf(ring *v1alpha1.ClusterRing, known *resources.Resolver, view *membership.View) (*target, error) {
	spec, leaving := move.ScopeOf(ring)

	selector, err := metav1.LabelSelectorAsSelector(ring.Spec.EffectiveNamespaceSelector())
	if err != nil {
		err, selector = fmt.Errorf("spec.namespaceSelector: %w", err), labels.Nothing()
	}

	_, other := ring.Spec.ObjectRequirements()
	t := &target{
		ring: ring, invalid: errors.Join(err, other),
		Target: &engine.Target{View: view, Set: known.Resolve(spec), Leaving: leaving, Selector: selector},
	}

	if ring.DeletionTimestamp.IsZero() {
		return t, t.invalid
	}

	return t, nil
}

// missing returns the resources that are not served and have, or may have, labeled objects. A resource that has left
// the ring is not missing once it is gone: its objects are gone too, and so are their labels.
func (t *target) missing() []resources.Missing {
	return slices.DeleteFunc(slices.Clone(t.Set.Missing()), func(m resources.Missing) bool {
		return t.Leaving[m.GroupResource] && m.Gone()
	})
}

// notAssigned returns the condition Assigned, False.
func notAssigned(reason, message string) metav1.Condition {
	return metav1.Condition{
		Type: v1alpha1.ConditionAssigned, Status: metav1.ConditionFalse, Reason: reason, Message: message,
	}
}

// explain writes the condition of a ring that is not pursued, and what to remember of its objects.
func (r *Reconciler) explain(
	ctx context.Context, ring *v1alpha1.ClusterRing, remembered *v1alpha1.AssignmentStatus, c metav1.Condition,
) error {
	return r.status.Write(ctx, ring, clusterring.StatusPart{Assignment: remembered, Conditions: []metav1.Condition{c}})
}

// refuse leaves a ring alone whose label the rebalancer must not use. If another ring uses it, the labels on objects
// are those of the other ring.
func (r *Reconciler) refuse(
	ctx context.Context, ring *v1alpha1.ClusterRing, c metav1.Condition,
) (reconcile.Result, error) {
	if c.Reason != v1alpha1.ReasonShardLabelInUse {
		return reconcile.Result{RequeueAfter: askAgain}, r.explain(ctx, ring, ring.Status.Assignment, c)
	}

	r.fleet.stop(ring.Name)

	if !ring.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, r.Finish(ctx, ring)
	}

	return reconcile.Result{}, r.explain(ctx, ring, nil, c)
}

// release writes the status of a ring whose engine has stopped. Until the next holder has looked at all objects, the
// status does not say that they are in their places, and the Leases of lost shards are kept from them.
func (r *Reconciler) release(ctx context.Context, ring *v1alpha1.ClusterRing, next clusterring.Identity) error {
	assignment := ring.Status.Assignment.DeepCopy()
	if assignment != nil {
		assignment.Fingerprint = ""

		for i := range assignment.Resources {
			assignment.Resources[i].Fingerprint = ""
		}
	}

	return r.explain(ctx, ring, assignment, notAssigned(v1alpha1.ReasonHandedOver, fmt.Sprintf(
		"spec.sharder is %s: %s have stopped, and the ring waits for %s; objects keep the shard they have",
		ring.Spec.Sharder, r.Sharder, next)))
}

// pursue gives the engine of the ring its target, or reports its progress towards it.
func (r *Reconciler) pursue(ctx context.Context, t *target) (reconcile.Result, error) {
	e := r.fleet.engine(t.ring.Name, t.ring.LabelKeys())
	if e == nil {
		return reconcile.Result{}, errors.New("the rebalancer is stopping")
	}

	look, err := r.revise(ctx, e, t)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("find the namespaces of ring %s: %w", t.ring.Name, err)
	}

	var wait time.Duration

	if e.Pursues(t.Target) {
		e.SetTarget(t.Target) // what it knows of the shards may be newer

		report := e.Report()

		wait, err = r.report(ctx, e, t, report)
		if err == nil && !t.ring.DeletionTimestamp.IsZero() && report.Converged && len(t.missing()) == 0 {
			return reconcile.Result{}, r.Finish(ctx, t.ring) // nothing carries its labels anymore
		}
	} else {
		e.Observe(t.View) // immediately, even if the target has to wait, or the status cannot be written

		if wait = e.paced.Sub(r.status.Clock.Now()); wait <= 0 {
			wait, err = r.redirect(ctx, e, t)
		}
	}

	return reconcile.Result{RequeueAfter: kit.Sooner(wait, look)}, err
}

// revise completes a target with its revision, which depends on relabelled namespaces and refused targets, and with
// the namespaces that do not have to be watched. If a namespace was relabelled so soon after another one that its
// objects have to wait, wait is how long.
func (r *Reconciler) revise(ctx context.Context, e *running, t *target) (wait time.Duration, err error) {
	if t.covered, err = r.namespaces.Covered(ctx, t.Selector); err != nil {
		return 0, err
	}

	var before move.Narrowing
	if now := e.Target(); now != nil {
		before = now.Narrow
	}

	t.Narrow = move.Narrow(before, t.covered)
	wait = e.look(r.status.Clock.Now())
	t.Revision = e.revision

	if e.refused && e.Pursues(t.Target) {
		e.revision++
		t.Revision = e.revision
	}

	return wait, nil
}

// redirect gives the engine another target. Before that, it writes into the status that not all objects are in their
// places, and which resources may carry labels from now on. The assigner relies on the former to know that objects
// move. A restarted rebalancer relies on the latter to clean up. Until the status is written, the engine keeps its
// target.
//
// An outdated copy of the ring does not show what the status already contains. redirect therefore does nothing with
// such a copy: the newer one is on its way into the cache. A copy is not outdated if only other services have written
// since, as the lease monitor does whenever a shard joins or leaves.
//
// The first change of the shards counts at once. The next one waits for twice the time that the last target took, so
// that targets take at most a third of the time as long as one takes half a second or less: when hundreds of a
// thousand shards join or die, their Leases change for a second, and each target takes a tenth of a second for a
// table, a list, a watch, and writes of a large status.
func (r *Reconciler) redirect(ctx context.Context, e *running, t *target) (wait time.Duration, err error) {
	began := r.status.Clock.Now()
	e.refused = true // until the target is set

	latest, err := clusterring.Latest(ctx, r.Live, t.ring)
	if err != nil {
		return 0, err
	}

	if was := t.ring; latest.UID != was.UID || latest.Generation != was.Generation ||
		latest.DeletionTimestamp.IsZero() != was.DeletionTimestamp.IsZero() ||
		!equality.Semantic.DeepEqual(latest.Status.Assignment, was.Status.Assignment) {
		return clusterring.CatchUp, nil
	}

	t.ring = latest

	e.reported = lastReport{}

	if _, err := r.report(ctx, e, t, e.ReportBefore(t.Target)); err != nil {
		return 0, err
	}

	e.SetTarget(t.Target)
	e.refused = false

	ended := r.status.Clock.Now()
	e.paced = ended.Add(min(2*ended.Sub(began), longestPace)) //nolint:mnd // twice

	return 0, nil // the engine will soon report
}

// report publishes the metrics, and writes the status, and an event when a problem begins. If only numbers have
// changed since a recent write, it writes nothing and returns how long to wait.
func (r *Reconciler) report(ctx context.Context, e *running, t *target, report engine.Report) (time.Duration, error) {
	ring := t.ring
	report.Publish(ring.Name)

	e.since = began(e.since, r.status.Clock.Now(), report.Problems)
	is := situation{
		Report:    report,
		since:     e.since,
		deleting:  !ring.DeletionTimestamp.IsZero(),
		shards:    len(t.View.AvailableShards()),
		missing:   resources.Message(t.missing()),
		unwatched: unwatched(t),
		invalid:   t.invalid,
	}

	// The policy about the rebalancer refuses writes in which others have changed more.
	if feed.MentionsPolicy(report.FailingExample) {
		is.mutating = clusterring.Mutating(ctx, r.Live, t.Set)
	}

	c, problem := assigned(is)
	part := clusterring.StatusPart{Assignment: assignment(t, report), Conditions: []metav1.Condition{c}}

	if keys := keysFound(t, report); keys != nil {
		part.Conditions = append(part.Conditions, *keys)
	}

	if ring.Spec.Paused {
		part.Conditions = append(part.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionPaused, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonMovesPaused,
			Message: "spec.paused lets objects stay at their shards; new objects, and those of shards that are lost or stop, " +
				"get a shard as usual",
		})
	}

	now := r.status.Clock.Now()
	if e.reported.justCounts(ring, c, part.Assignment) {
		if wait := e.reported.at.Add(countsEvery).Sub(now); wait > 0 {
			return wait, nil
		}

		if !r.status.Shown(ring, part) && !r.counts.AllowN(now, 1) {
			return countsEvery, nil
		}
	}

	r.announce(e, ring, c, problem)

	if err := r.status.Write(ctx, ring, part); err != nil {
		return 0, err
	}

	e.reported = lastReport{at: now, generation: ring.Generation, condition: c, assignment: part.Assignment}

	return 0, nil
}

// announce emits an event when a problem begins that somebody has to act on.
func (r *Reconciler) announce(e *running, ring *v1alpha1.ClusterRing, c metav1.Condition, problem string) {
	if problem != "" && problem != e.announced {
		r.Recorder.Eventf(ring, nil, "Warning", c.Reason, "Assign", "%s", clip(c.Message, maxNote))
	}

	e.announced = problem
}

// lastReport is the last written status of a ring. The cache may not contain it yet.
type lastReport struct {
	at         time.Time
	generation int64
	condition  metav1.Condition
	assignment *v1alpha1.AssignmentStatus
}

// justCounts reports whether the condition and the assignment differ from the last report only in numbers of objects,
// and in examples. It is false if there is no last report.
func (o lastReport) justCounts(ring *v1alpha1.ClusterRing, c metav1.Condition, a *v1alpha1.AssignmentStatus) bool {
	return o.assignment != nil && o.generation == ring.Generation &&
		o.condition.Status == c.Status && o.condition.Reason == c.Reason &&
		o.assignment.Fingerprint == a.Fingerprint && equality.Semantic.DeepEqual(o.assignment.Resources, a.Resources) &&
		sets.New(o.assignment.LostShards...).HasAll(a.LostShards...)
}
