package engine

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
	"github.com/clusterring/clusterring/services/rebalancer/takeover"
)

// work decides about objects until ctx ends.
func (e *Engine) work(ctx context.Context) {
	for {
		id, shutdown := e.queue.Get()
		if shutdown {
			return
		}

		if ctx.Err() == nil {
			if err := e.decide(ctx, id); err != nil && ctx.Err() == nil {
				e.state.block(id, err.Error())
				e.Log.Error(err, "cannot move an object; will retry", "object", id.String())
				countFailure(e.Ring)
				e.queue.AddRateLimited(id)
			}
		}

		e.queue.Done(id)
	}
}

// decide does what the plan says about one object. An error calls for another try.
func (e *Engine) decide(ctx context.Context, id objects.ID) error {
	t := e.Target()

	o, ok, asked := e.state.get(id)
	if !ok && !asked {
		return nil
	}

	if !ok {
		var err error
		if o, err = e.Objects.Get(ctx, id); err != nil {
			return e.failed(ctx, id, err)
		}

		if !o.Draining {
			e.drained(id)
			return nil
		}

		e.late(o)
	}

	r, role, ok := t.Set.Find(id.GVR.GroupResource())
	if !ok {
		e.settled(id)
		return nil
	}

	p := place{r, role}

	// Before anything is asked: what is found out, of the owner or of a Lease, is acted on without a pause.
	end, ok := e.turns.begin(ownerOf(t, p, o), id)
	if !ok {
		return nil
	}
	defer end()

	in, err := e.input(ctx, t, p, o)
	if err != nil {
		return err
	}

	return e.carryOut(ctx, o, plan.Decide(t.View, in))
}

// ownerOf names the main object that an object follows. A main object follows itself, and so does one that follows nobody.
func ownerOf(t *Target, p place, o objects.Object) objects.ID {
	_, owner, _ := keyOf(t, p, o)
	if owner == nil {
		return o.ID
	}

	return idOf(owner)
}

// place is where in a ring an object's resource is.
type place struct {
	resource resources.Resource
	role     resources.Role
}

// input gathers what the plan needs to know of an object. It asks the API server about the owner of a controlled object.
func (e *Engine) input(ctx context.Context, t *Target, p place, o objects.Object) (plan.Object, error) {
	in := plan.Object{
		Shard: o.Shard, Labelled: o.Labelled, Draining: o.Draining,
		Controlled: p.role == resources.Controlled,
	}

	k, owner, ok := keyOf(t, p, o)

	covered, err := e.covers(ctx, t, p.resource, o.Namespace)
	if err != nil {
		return in, err
	}

	in.Belongs = ok && covered
	if in.Belongs {
		in.Desired, _ = t.View.Owner(k)
	}

	if owner == nil || !in.NeedsOwner() {
		return in, nil
	}

	stays, err := e.covers(ctx, t, owner.Resource, owner.Namespace)
	if err != nil {
		return in, err
	}

	at, err := e.Objects.Get(ctx, idOf(owner))

	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return in, fmt.Errorf("find the owner of %s: %w", o.ID, err)
	case at.UID == owner.UID:
		in.Owner = plan.Owner{Exists: true, Shard: at.Shard, Draining: at.Draining, Belongs: stays}
	}

	return in, nil
}

// keyOf returns the partition key of an object and, for a controlled one, its owner.
func keyOf(t *Target, p place, o objects.Object) (key.Key, *resources.Owner, bool) {
	meta := metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}
	if o.Controller != nil {
		meta.OwnerReferences = []metav1.OwnerReference{*o.Controller}
	}

	return t.Set.KeyOf(p.resource, p.role, &meta)
}

func idOf(o *resources.Owner) objects.ID {
	return objects.ID{GVR: o.Resource.GVR, Namespace: o.Namespace, Name: o.Name}
}

// covers says whether the ring covers objects of the resource in the namespace.
func (e *Engine) covers(ctx context.Context, t *Target, r resources.Resource, namespace string) (bool, error) {
	if t.Leaving[r.GroupResource()] {
		return false, nil
	}

	if !r.Namespaced {
		return true, nil
	}

	selected, err := e.Namespaces.Selects(ctx, namespace, t.Selector)
	if err != nil {
		return false, fmt.Errorf("look up namespace %s: %w", namespace, err)
	}

	return selected, nil
}

// concerns says whether an object without labels should have some. An error counts as yes: a worker will look again.
func (e *Engine) concerns(ctx context.Context, r resources.Resource, o objects.Object) bool {
	t := e.Target()

	_, role, ok := t.Set.Find(r.GroupResource())
	if !ok {
		return false
	}

	if _, _, ok = keyOf(t, place{r, role}, o); !ok {
		return false
	}

	covered, err := e.covers(ctx, t, r, o.Namespace)

	return covered || err != nil
}

// confirmWithin is how long the confirmation that a shard does not hold its Lease may take. What it allows counts from when it
// was asked for, so a late one allows little.
const confirmWithin = 10 * time.Second

// ownerSoon is the longest pause between two looks at an owner that is about to get a shard.
const ownerSoon = 500 * time.Millisecond

// carryOut does one action, or sees to it that it is tried again when it may be possible.
func (e *Engine) carryOut(ctx context.Context, o objects.Object, a plan.Action) error {
	if a.TakenFrom != "" {
		verdict, err := e.mayTake(ctx, a.TakenFrom)
		if err != nil {
			return fmt.Errorf("confirm that %s may be moved: %w", o.ID, err)
		}

		if !verdict.Allowed {
			e.state.block(o.ID, verdict.Reason)
			e.queue.AddAfter(o.ID, verdict.RetryAfter)

			return nil
		}

		limited, cancel := context.WithTimeout(ctx, verdict.Until.Sub(e.Clock.Now()))
		defer cancel()

		ctx = limited
	}

	switch a.Verb {
	case plan.Assign:
		return e.label(ctx, o, a.Verb, objects.Change{Shard: a.To, RemoveDrain: o.Draining})
	case plan.Withdraw:
		return e.label(ctx, o, a.Verb, objects.Change{RemoveDrain: true})
	case plan.Release:
		return e.label(ctx, o, a.Verb, objects.Change{RemoveShard: o.Labelled, RemoveDrain: o.Draining})
	case plan.Drain:
		return e.drain(ctx, o)
	case plan.AwaitOwner:
		e.state.block(o.ID, "waits for its owner to get a shard")
		e.queue.AddAfter(o.ID, min(e.retry.When(o.ID), ownerSoon))

		return nil
	case plan.None, plan.AwaitAcknowledgement, plan.AwaitShard:
	}

	e.decided(o)

	return nil
}

func (e *Engine) mayTake(ctx context.Context, shard string) (takeover.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, confirmWithin)
	defer cancel()

	return e.Guard.MayTake(ctx, shard)
}

// drain asks the object's shard to give it up, if the sweep granted a slot for that.
func (e *Engine) drain(ctx context.Context, o objects.Object) error {
	// Before the write, so that the watch cannot tell of the end of a drain that is not known yet.
	if !e.state.startDrain(o, e.Clock.Now()) {
		e.decided(o)
		return nil
	}

	e.queue.AddAfter(o.ID, e.Limits.DrainTimeout)

	return e.label(ctx, o, plan.Drain, objects.Change{Drain: true})
}

// label writes labels. If the object has changed since it was read, it is read again and decided anew.
func (e *Engine) label(ctx context.Context, o objects.Object, verb plan.Verb, change objects.Change) error {
	if err := e.Objects.Label(ctx, o, change); err != nil {
		if verb == plan.Drain {
			e.state.endDrain(o.ID)
		}

		return e.failed(ctx, o.ID, err)
	}

	if verb == plan.Drain {
		e.state.asked(o.ID)
	}

	e.state.acted(o.ID)
	countMove(e.Ring, o.GVR.GroupResource(), verb)

	if o.Draining && verb != plan.Drain {
		e.drained(o.ID)
	}

	e.decided(o)

	return nil
}

// failed deals with an error about a single object: that it is gone or has changed is normal.
func (e *Engine) failed(ctx context.Context, id objects.ID, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		e.drained(id)
		e.settled(id)

		return nil
	case apierrors.IsConflict(err):
		fresh, err := e.Objects.Get(ctx, id)
		if apierrors.IsNotFound(err) {
			return e.failed(ctx, id, err)
		}

		if err != nil {
			return fmt.Errorf("after a conflict: %w", err)
		}

		e.state.put(fresh)
		e.queue.AddRateLimited(id)

		return nil
	}

	return err
}

// late reports a drain that has not been acknowledged in time, and sees to it that it is looked at again.
func (e *Engine) late(o objects.Object) {
	now := e.Clock.Now()
	if d, news := e.state.markLate(o.ID, now, e.Limits.DrainTimeout); news {
		countLate(e.Ring, d.shard)
		e.Late(o.ID, d.shard, now.Sub(d.since).Round(time.Second))
	}

	e.queue.AddAfter(o.ID, e.Limits.DrainTimeout)
}
