// Package rings reconciles the rings: it runs one engine per ring, gives it its target, and writes its report into the status of the
// ring.
//
// It reads ClusterRings, namespaces, and what other packages know about Leases and resources. It writes the finalizer of each ring,
// status.assignment, the condition Assigned, and events. The engines do everything else; see package engine.
package rings

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/internal/sharder"
	"github.com/clusterring/clusterring/services/internal/status"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

const (
	// catchUp is how long the cache gets to receive concurrent writes.
	catchUp = 50 * time.Millisecond
	// countsEvery is the interval at which the status reports how many objects are on the move while nothing else changes:
	// every service reads each write, and a write to a ring costs the API server as much as ten writes to an object.
	countsEvery = time.Second
	// countsPerSecond limits these writes for all rings together: if many rings move objects at once, the writes would cost
	// as much as the moves.
	countsPerSecond = 5
)

// Config configures a reconciler. All fields but Sharder are required.
type Config struct {
	// Name is the field manager of the status, and the name of the controller.
	Name string
	// Client writes, and reads from a cache.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Objects reads and writes the sharded objects of all rings.
	Objects feed.Server
	// Resources knows what the API server serves.
	Resources *resources.Resolver
	// Index contains the Leases of shards.
	Index *membership.Index
	// Limits apply to each engine.
	Limits   engine.Limits
	Clock    clock.WithTicker
	Recorder events.EventRecorder
	// Sharder is who this process works for, of the two that may shard a ring. The zero value is the services.
	Sharder sharder.Identity
}

// Reconciler gives the engine of every ring its target, and writes the reports of the engine into the status of the ring. Create it
// with [New].
type Reconciler struct {
	name      string
	client    client.Client
	live      client.Reader
	resources *resources.Resolver
	index     *membership.Index
	fleet     *fleet
	queue     notifier
	status    status.Writer
	// counts limits writes that change only numbers, by the clock of status.
	counts   *rate.Limiter
	recorder events.EventRecorder
	self     sharder.Identity
	others   others
}

// New returns a reconciler without engines. ctx ends when the service stops.
func New(ctx context.Context, c Config) *Reconciler {
	r := &Reconciler{
		name: c.Name, client: c.Client, live: c.Live, resources: c.Resources, index: c.Index,
		status:   status.Writer{Client: c.Client, Owner: c.Name, Clock: c.Clock},
		counts:   rate.NewLimiter(countsPerSecond, countsPerSecond),
		recorder: c.Recorder, self: c.Sharder,
	}
	r.fleet = &fleet{
		api: c.Objects, live: c.Live,
		namespaces: namespaces{cached: c.Client, live: c.Live},
		limits:     c.Limits, clock: c.Clock,
		ask:     c.Resources.Ask,
		changed: r.queue.notify,
		late: func(ring string, id feed.ID, shard string, after time.Duration) {
			obj := &v1alpha1.ClusterRing{}
			if err := c.Client.Get(ctx, types.NamespacedName{Name: ring}, obj); err == nil {
				c.Recorder.Eventf(obj, nil, "Warning", v1alpha1.ReasonDrainsLate, "Drain",
					"shard %s has not released %s within %s", shard, id, after)
			}
		},
	}

	return r
}

// Reconcile implements [reconcile.Reconciler] for rings.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	result, err := r.reconcile(ctx, req)

	if stopping := ctx.Err() != nil; stopping {
		err = nil // requests that were cancelled by the stop have failed
	} else if apierrors.IsConflict(err) {
		result, err = reconcile.Result{RequeueAfter: catchUp}, nil // the cache was out of date
	}

	return result, err
}

func (r *Reconciler) reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	ring := &v1alpha1.ClusterRing{}
	if err := r.client.Get(ctx, req.NamespacedName, ring); err != nil {
		if apierrors.IsNotFound(err) {
			r.fleet.stop(req.Name)
			r.others.forget(req.Name)
			r.index.Rule(req.Name, membership.Rules{})

			return reconcile.Result{}, nil
		}

		return reconcile.Result{}, fmt.Errorf("read ring %s: %w", req.Name, err)
	}

	// A ring that is refused is not claimed: it can be deleted at once.
	if next := r.self.Next(ring); next == sharder.Work || next == sharder.Claim {
		if done, result, err := r.refuseLabel(ctx, ring); done || err != nil {
			return result, err
		}
	}

	if holds, wait, err := r.hold(ctx, ring); !holds || err != nil {
		return reconcile.Result{RequeueAfter: wait}, err
	}

	t, err := targetOf(ring, r.resources, r.index.ViewOf(ring))
	if err != nil {
		return reconcile.Result{}, r.refuse(ctx, ring, t)
	}

	return r.pursue(ctx, ring, t)
}

// refuse reports an invalid spec. The engine, if there is one, keeps its last target.
func (r *Reconciler) refuse(ctx context.Context, ring *v1alpha1.ClusterRing, t *target) error {
	assignment := &v1alpha1.AssignmentStatus{Resources: t.scope.Remember(t.Set)}

	err := r.status.Write(ctx, ring, status.Part{Assignment: assignment, Conditions: []metav1.Condition{{
		Type: v1alpha1.ConditionAssigned, Status: metav1.ConditionFalse,
		Reason: v1alpha1.ReasonAssignmentFailed, Message: t.invalid.Error(),
	}}})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("refuse an invalid ring: %w", err)
	}

	return nil
}

func (r *Reconciler) pursue(ctx context.Context, ring *v1alpha1.ClusterRing, t *target) (reconcile.Result, error) {
	e := r.fleet.engine(ring.Name, ring.LabelKeys())
	if e == nil {
		return reconcile.Result{}, errors.New("the rebalancer is stopping")
	}

	wait, err := r.fleet.revise(ctx, e, t.Target)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("find the namespaces of ring %s: %w", ring.Name, err)
	}

	result, err := r.steer(ctx, e, ring, t)
	result.RequeueAfter = kit.Sooner(result.RequeueAfter, wait)

	return result, err
}

// steer gives the engine the target, or reports its progress towards it.
func (r *Reconciler) steer(ctx context.Context, e *running, ring *v1alpha1.ClusterRing, t *target) (reconcile.Result, error) {
	if !e.Pursues(t.Target) {
		e.Observe(t.View) // immediately, even if the target has to wait, or the status cannot be written

		if wait := e.pace.wait(r.status.Clock.Now()); wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, nil
		}

		return r.redirect(ctx, e, ring, t)
	}

	if e.refused {
		e.refused = false
		r.fleet.revisit(e)

		return reconcile.Result{RequeueAfter: catchUp}, nil
	}

	e.SetTarget(t.Target)

	report := e.Report()
	report.Publish(ring.Name)

	wait, err := r.report(ctx, e, ring, progress{t, report})
	if err != nil {
		return reconcile.Result{}, err
	}

	if !ring.DeletionTimestamp.IsZero() && report.Converged && len(t.missing()) == 0 {
		return reconcile.Result{}, r.finish(ctx, ring)
	}

	if wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}

	return reconcile.Result{}, nil
}

// redirect gives the engine another target. Before that, it writes into the status that not all objects are in their places,
// and which resources may carry labels from now on. The assigner relies on the former to know that objects move. A restarted
// rebalancer relies on the latter to clean up. Until the status is written, the engine keeps its target.
//
// An outdated copy of the ring does not show what the status already contains. redirect therefore does nothing with such a
// copy: the newer one is on its way into the cache. A copy is not outdated if only other services have written since, as the
// lease monitor does whenever a shard joins or leaves.
func (r *Reconciler) redirect(ctx context.Context, e *running, ring *v1alpha1.ClusterRing, t *target) (reconcile.Result, error) {
	began := r.status.Clock.Now()
	latest := &v1alpha1.ClusterRing{}
	e.refused = true // until the target is set

	err := r.live.Get(ctx, client.ObjectKeyFromObject(ring), latest)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read the latest copy of ring %s: %w", ring.Name, err)
	}

	if !alike(latest, ring) {
		return reconcile.Result{RequeueAfter: catchUp}, nil
	}

	ring = latest

	report := e.Report().Unsettled()
	report.Publish(ring.Name)
	report.Lost = sets.List(sets.New(report.Lost...).Insert(e.Lost(t.Target)...).Delete(t.View.WorkingShards()...))
	e.reported = lastReport{}

	if _, err := r.report(ctx, e, ring, progress{t, report}); err != nil {
		return reconcile.Result{}, err
	}

	e.SetTarget(t.Target)
	e.refused = false
	e.pace.record(began, r.status.Clock.Now())

	return reconcile.Result{}, nil // the engine will soon report
}

// alike reports whether two copies of a ring are equal in everything that determines a target, and in this service's part of
// the status.
func alike(a, b *v1alpha1.ClusterRing) bool {
	return a.UID == b.UID && a.Generation == b.Generation && a.DeletionTimestamp.IsZero() == b.DeletionTimestamp.IsZero() &&
		equality.Semantic.DeepEqual(a.Status.Assignment, b.Status.Assignment)
}

// progress is the progress of an engine towards a target.
type progress struct {
	*target
	report engine.Report
}

// report writes the status, and an event when a problem begins. If only numbers have changed since a recent write, it writes
// nothing and returns how long to wait.
func (r *Reconciler) report(ctx context.Context, e *running, ring *v1alpha1.ClusterRing, s progress) (wait time.Duration, err error) {
	e.since = began(e.since, r.status.Clock.Now(), s.report.Problems)
	is := situation{
		since:    e.since,
		deleting: !ring.DeletionTimestamp.IsZero(),
		shards:   len(s.View.AvailableShards()),
		missing:  resources.Message(s.missing()),
		unknown:  resources.Message(slices.DeleteFunc(s.missing(), resources.Missing.Absent)),
		report:   s.report,
		mutating: r.mutating(ctx, s.Set, s.report.FailingExample),
	}
	if is.unwatched, err = r.fleet.namespaces.Unwatched(ctx, s.Target); err != nil {
		return 0, fmt.Errorf("report: %w", err)
	}

	if s.invalid != nil {
		is.invalid = s.invalid.Error()
	}

	c := assigned(is)
	part := status.Part{Assignment: assignment(ring, s.target, s.report), Conditions: []metav1.Condition{c}}

	if keys := keysFound(s.target, s.report); keys != nil {
		part.Conditions = append(part.Conditions, *keys)
	}

	if ring.Spec.Paused {
		part.Conditions = append(part.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionPaused, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonMovesPaused,
			Message: "spec.paused lets objects stay at their shards; new objects, and those of shards that are lost or stop, get a shard as usual",
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

	r.announce(e, ring, is)

	if err := r.status.Write(ctx, ring, part); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("report: %w", err)
	}

	e.reported = lastReport{at: now, generation: ring.Generation, condition: c, assignment: part.Assignment}

	return 0, nil
}

// announce emits an event when a problem begins, or when a problem begins to keep a deleted ring. If a resource begins to
// fail, it also queries discovery: the resource may be served in another version or scope than before.
func (r *Reconciler) announce(e *running, ring *v1alpha1.ClusterRing, is situation) {
	c := assigned(is)
	old := meta.FindStatusCondition(ring.Status.Conditions, c.Type)

	if c.Reason == v1alpha1.ReasonAssignmentFailed && (old == nil || old.Reason != c.Reason) {
		r.recorder.Eventf(ring, nil, "Warning", c.Reason, "Assign", "%s", note(c.Message))
	}

	if grave, why := stuck(is); is.deleting && why != "" && why != e.stuck {
		e.stuck = why

		kind := "Normal"
		if grave {
			kind = "Warning"
		}

		r.recorder.Eventf(ring, nil, kind, c.Reason, "Release", "%s", note(c.Message))
	}

	if failures := is.report.Failures; !slices.Equal(failures, e.failures) {
		e.failures = failures

		if len(failures) > 0 {
			r.resources.Ask()
		}
	}
}

// note shortens a message to the maximum length of an event.
func note(message string) string {
	const most = 1024

	if len(message) <= most {
		return message
	}

	const more = "... (more in the ring's condition)"

	return strings.ToValidUTF8(message[:most-len(more)], "") + more
}

// lastReport is the last written status of a ring. The cache may not contain it yet.
type lastReport struct {
	at         time.Time
	generation int64
	condition  metav1.Condition
	assignment *v1alpha1.AssignmentStatus
}

// justCounts reports whether the condition and the assignment differ from the last report only in numbers of objects, and in
// examples. It is false if there is no last report.
func (o lastReport) justCounts(ring *v1alpha1.ClusterRing, c metav1.Condition, a *v1alpha1.AssignmentStatus) bool {
	return o.assignment != nil && o.generation == ring.Generation &&
		o.condition.Status == c.Status && o.condition.Reason == c.Reason &&
		o.assignment.Fingerprint == a.Fingerprint && equality.Semantic.DeepEqual(o.assignment.Resources, a.Resources) &&
		sets.New(o.assignment.LostShards...).HasAll(a.LostShards...)
}

// finish removes the finalizer of a deleted ring: nothing carries its labels anymore.
func (r *Reconciler) finish(ctx context.Context, ring *v1alpha1.ClusterRing) error {
	base := ring.DeepCopy()
	controllerutil.RemoveFinalizer(ring, contract.FinalizerRebalancer)

	if err := r.patchHolder(ctx, ring, base); err != nil {
		return err
	}

	r.fleet.stop(ring.Name)
	log.FromContext(ctx).Info("Ring deleted: no label of its own is left", "ring", ring.Name)

	return nil
}
