package simulation

import (
	"context"
	"fmt"
	"maps"
	"math"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
)

// happen executes one step. Requests of users take time, and happen does not wait for them.
func (w *Cluster) happen(ctx context.Context, s Step) {
	w.say("* %s", s)

	switch s.Act {
	case Flap:
		w.group.Go(func() { w.flap(ctx, s) })
	case Join, Leave, Crash, Freeze, Hang:
		w.shardStep(ctx, s)
	case DeleteLease, PinLease, LongLease, FullLease:
		w.group.Go(func() { w.leaseStep(ctx, s) })
	case EditRing, DeleteRing, CreateRing, Team:
		w.ringStep(s)
	case Serve, Withdraw, Break, Remove, Rescope:
		w.resourceStep(ctx, s)
	case RestartRebalancer:
		w.steward.restart(s.For)
	case RestartMonitor:
		w.monitor.restart(s.For)
	case NoAdmission:
		w.mu.Lock()
		w.noWebhook = w.clock.Now().Add(s.For)
		w.mu.Unlock()
	case Cut:
		w.server.Cut(apiserver.Break(s.Value), s.Who, "")
	case Compact:
		w.server.Compact()
	case Disturb:
		f := s.Fault
		f.From, f.Until = w.clock.Now(), w.clock.Now().Add(s.For)
		w.server.Inject(f)
	case Make:
		w.group.Go(func() { w.make(s) })
	case Create, Restore, Delete, Orphan, Relabel, Rekey, Drain, Undrain, Reparent, Touch:
		w.group.Go(func() { w.userStep(ctx, s) })
	}
}

func (w *Cluster) shardStep(ctx context.Context, s Step) {
	id := types.NamespacedName{Namespace: or(s.Value, "shards"), Name: s.Who}
	if s.Act == Join {
		w.join(ctx, id, s.N)
		return
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	p := w.processes[id]
	if p == nil {
		return
	}

	if (w.h.Lasting == HungShard || w.h.Lasting == Stuck) && w.h.Whom == s.Who && s.Value == "" && s.Act != Hang ||
		w.h.Lasting == Namesakes && w.h.Whom == s.Who {
		return // the shard stays
	}

	switch s.Act { //nolint:exhaustive // all acts of shards
	case Leave:
		if !p.leaving() {
			p.announces = chance(w.h.Seed, "announces "+s.Who, int(s.At))%2 == 0
			close(p.leave)
		}
	case Crash:
		p.end()
		p.stop()
		delete(w.processes, id)
	case Freeze:
		p.frozen = w.clock.Now().Add(max(s.For, p.frozen.Sub(w.clock.Now())))
	case Hang:
		p.hung = w.clock.Now().Add(max(s.For, p.hung.Sub(w.clock.Now())))
	}
}

// leaseStep does what a user does to the Lease of a shard. It leaves a Lease alone that the rebalancer has not seen
// held: docs/how-it-works.md describes what happens to the objects of the shard then.
func (w *Cluster) leaseStep(ctx context.Context, s Step) {
	client, id, l := w.server.Client("user/x").Leases(), types.NamespacedName{Namespace: "shards",
		Name: s.Who}, &coordinationv1.Lease{}

	if client.Get(ctx, id, l) != nil {
		return
	}

	switch s.Act { //nolint:exhaustive // all acts on Leases
	case DeleteLease:
		if w.steward.guards(id, l) {
			_ = client.Delete(ctx, l)
		}

		return
	case PinLease:
		l.Finalizers = []string{"example.com/kept"}
	case LongLease:
		l.Spec.LeaseDurationSeconds = new(int32(24 * time.Hour / time.Second))
	case FullLease:
		l.Spec.LeaseTransitions = new(int32(math.MaxInt32))
	}

	if client.Update(ctx, l) == nil && s.Act == PinLease && client.Get(ctx, id, l) == nil {
		_ = client.Delete(ctx, l)
	}
}

// retrain records that main objects have become controlled objects. After such an edit of a ring, the shards have to be
// restarted: they work on these objects as before until they see them move. The lock is held.
func (w *Cluster) retrain(before, after []v1alpha1.RingResource) {
	for _, p := range w.processes {
		for uid, id := range p.works {
			was, _ := roleIn(before, id.GroupResource)
			if is, _ := roleIn(after, id.GroupResource); was == resources.Main && is == resources.Controlled {
				w.excusedUntilSeen(uid, p)
			}
		}
	}
}

// flap makes a shard join and leave until ctx ends.
func (w *Cluster) flap(ctx context.Context, s Step) {
	for i := 0; ctx.Err() == nil; i++ {
		s.Act = Join
		if i%2 == 1 {
			s.Act = Leave
		}

		w.shardStep(ctx, s)
		pause(ctx, w.clock, 500*time.Millisecond+time.Duration(chance(w.h.Seed, "flap", i)%uint64(3*time.Second)), nil)
	}
}

func (w *Cluster) ringStep(s Step) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if s.Act == Team {
		w.teams[s.Who] = s.Value
		for _, seen := range w.teamSeen {
			seen(s.Who, s.Value)
		}

		return
	}

	if w.ring == nil {
		if s.Act == CreateRing {
			w.makeRing(s.N)
		}

		return
	}

	r := w.ring.DeepCopy()

	switch {
	case s.Act == EditRing:
		r.Spec = w.h.spec(s.N)
		r.Generation++
		w.retrain(w.ring.Spec.Resources, r.Spec.Resources)
	case s.Act == DeleteRing && r.DeletionTimestamp == nil:
		r.DeletionTimestamp = new(metav1.NewTime(w.clock.Now()))
		r.Generation++

		if len(r.Finalizers) == 0 {
			r = nil
		}
	default:
		return
	}

	w.setRing(r)
}

func (w *Cluster) resourceStep(ctx context.Context, s Step) {
	gr := s.Object.GroupResource

	how, ok := w.server.Resources()[gr]
	if !ok {
		return
	}

	switch s.Act { //nolint:exhaustive // all acts on resources
	case Serve:
		if how.Others = nil; s.N == 0 && s.Value != how.Version {
			how.Others = []string{how.Version}
		}

		how.Version = s.Value
		w.server.Serve(gr, how)
	case Withdraw, Remove, Break:
		how.Down = false

		switch s.Act {
		case Remove:
			w.server.DeleteAll("user/gc", gr)
			w.server.Withdraw(gr)
		case Withdraw:
			w.server.Withdraw(gr)
		default:
			down := how
			down.Down = true
			w.server.Serve(gr, down)
		}

		w.group.Go(func() {
			pause(ctx, w.clock, s.For, nil)
			w.server.Serve(gr, how)
			w.say("* %s is served again", gr)
		})
	case Rescope:
		w.server.DeleteAll("user/gc", gr)

		how.Namespaced = !how.Namespaced
		w.server.Serve(gr, how)
	}
}

// userStep does what a user does to an object, and then what the garbage collector does.
func (w *Cluster) userStep(ctx context.Context, s Step) {
	client := w.server.Client("user/" + map[bool]string{false: "x", true: "around"}[s.Around])
	id := w.scoped(s.Object)

	switch s.Act {
	case Create, Restore:
		if o := w.fresh(s); o != nil {
			_ = client.Create(ctx, id, o)
		}
	case Delete, Orphan:
		o := w.server.Object(id)
		if o == nil {
			return
		}

		if s.Act == Orphan {
			w.orphan(ctx, o.UID)
		}

		_ = client.Delete(ctx, id)

		w.mu.Lock()
		w.buried[id] = o
		w.mu.Unlock()
	case Touch:
		for i := range s.N {
			_ = client.Edit(ctx, id, func(o *metav1.PartialObjectMetadata) {
				metav1.SetMetaDataAnnotation(&o.ObjectMeta, "touched", fmt.Sprintf("%s %d", s.At, i))
			})
		}
	default:
		references := w.references(s)
		_ = client.Edit(ctx, id, func(o *metav1.PartialObjectMetadata) { edit(s, o, references) })
	}
}

// scoped removes the namespace from an ID if the resource is currently cluster-scoped.
func (w *Cluster) scoped(id apiserver.ID) apiserver.ID {
	if how, ok := w.server.Resources()[id.GroupResource]; ok && !how.Namespaced {
		id.Namespace = ""
	} else if ok && id.Namespace == "" {
		id.Namespace = "n1"
	}

	return id
}

func edit(s Step, o *metav1.PartialObjectMetadata, references []metav1.OwnerReference) {
	set := func(label, value string) {
		if delete(o.Labels, label); value != "" {
			metav1.SetMetaDataLabel(&o.ObjectMeta, label, value)
		}
	}

	switch s.Act { //nolint:exhaustive // all acts that edit an object
	case Relabel:
		set(shardLabel, s.Value)
	case Rekey:
		set(keyLabel, s.Value)
	case Drain:
		set(drainLabel, contract.DrainValue)
	case Undrain:
		set(drainLabel, "")
	case Reparent:
		o.OwnerReferences = references
	}
}

// fresh returns the object that the step creates; nil if its owner does not exist.
func (w *Cluster) fresh(s Step) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}

	if s.Act == Restore {
		w.mu.Lock()
		buried := w.buried[w.scoped(s.Object)]
		w.mu.Unlock()

		if buried == nil {
			return nil
		}

		o.Labels, o.OwnerReferences = maps.Clone(buried.Labels), buried.OwnerReferences
	}

	if s.Value != "" {
		metav1.SetMetaDataLabel(&o.ObjectMeta, shardLabel, s.Value)
	}

	if customer := chance(w.h.Seed, "customer of "+s.Object.String(), int(s.At)) % 4; w.h.Keyed && customer > 0 &&
		s.Act == Create {
		metav1.SetMetaDataLabel(&o.ObjectMeta, keyLabel, fmt.Sprint("customer-", customer))
	}

	if s.Act == Create && s.Owner.Name != "" {
		o.OwnerReferences = w.references(s)
		if o.OwnerReferences == nil {
			return nil
		}
	}

	return o
}

// references makes Owner the controller. It returns nil if Owner does not exist, or is in another namespace.
func (w *Cluster) references(s Step) []metav1.OwnerReference {
	id := w.scoped(s.Owner)

	owner := w.server.Object(id)
	if owner == nil || id.Namespace != "" && id.Namespace != s.Object.Namespace {
		return nil
	}

	how, ok := w.server.Resources()[id.GroupResource]
	if !ok {
		return nil
	}

	return []metav1.OwnerReference{{
		APIVersion: schema.GroupVersion{Group: id.Group, Version: how.Version}.String(), Kind: how.Kind, Name: id.Name,
		UID: owner.UID, Controller: new(true),
	}}
}

// orphan removes the owner references from the children of an object, as the garbage collector does before it deletes
// the object.
func (w *Cluster) orphan(ctx context.Context, owner types.UID) {
	children := map[apiserver.ID]bool{}

	w.server.Objects(func(id apiserver.ID, o *metav1.PartialObjectMetadata) {
		for _, r := range o.OwnerReferences {
			if r.UID == owner {
				children[id] = true
			}
		}
	})

	for _, id := range sortedKeys(children) {
		_ = w.server.Client("gc/0").Edit(ctx, id, func(o *metav1.PartialObjectMetadata) { o.OwnerReferences = nil })
	}
}

// collect is the garbage collector: it deletes objects whose owner has been missing for a while.
func (w *Cluster) collect(ctx context.Context) {
	missed := map[types.UID]bool{}

	for ctx.Err() == nil {
		pause(ctx, w.clock, 7*time.Second, nil)

		alive := map[types.UID]bool{}
		owned := map[apiserver.ID]types.UID{}

		w.server.Objects(func(id apiserver.ID, o *metav1.PartialObjectMetadata) {
			alive[o.UID] = true

			for _, r := range o.OwnerReferences {
				owned[id] = r.UID
			}
		})

		for _, id := range sortedKeys(owned) {
			switch owner := owned[id]; {
			case alive[owner]:
			case missed[owner]:
				_ = w.server.Client("gc/0").Delete(ctx, id)
			default:
				missed[owner] = true
			}
		}
	}
}
