package model

import (
	"context"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/admission"
	"github.com/clusterring/clusterring/services/internal/key"
	leases "github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
)

const (
	ringName  = "model"
	namespace = "default"
)

var (
	mainKind  = schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Website"}
	childKind = schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Page"}

	mainResource  = schema.GroupResource{Group: mainKind.Group, Resource: "websites"}
	childResource = schema.GroupResource{Group: childKind.Group, Resource: "pages"}
)

// decisions are all decisions of the real code in a scope, made once. Their inputs are few; the order of events is not.
type decisions struct {
	shards   int
	mutation Mutation
	// parent is true if the object's resource has a controlled resource.
	parent bool
	set    *resources.Set
	object string
	// views are what can be known about the Leases, by index: one digit for each shard; see [sight].
	views []*membership.View

	// plans for the main object and the child by their inputs, and admission's answers by view.
	mainPlans  map[mainInput]operation
	childPlans map[childInput]operation
	answers    map[write][]answer
	// acquires is true for each age, in units of D, at which the monitor takes a Lease from its shard.
	acquires [3]bool
	// believes is the same for a shard whose process has ended, as the kubelet says.
	believes [3]bool
	// collects is true if the monitor deletes a Lease that has been free for long.
	collects bool
	mayTake  [guards][taken + 1]bool
}

// shards is a set of shards, one bit for each.
type shards uint8

// standing is which shards are available, and which of the others work until their objects are drained.
type standing struct{ available, stopping shards }

// sight is what a view shows of a Lease.
type sight uint8

const (
	seenAbsent sight = iota
	seenHeld
	seenFree
	seenStopping // held, and it reports that the shard stops

	sights = iota
)

// lease returns a Lease that looks like this.
func (s sight) lease() lease { return [sights]lease{absent, held, taken, held}[s] }

type mainInput struct {
	standing standing
	main     labels
	belongs  bool
}

type childInput struct {
	mainInput
	child name
}

// write is a write that the assigner is asked about: afterwards, the shard label is missing.
type write struct {
	child    bool
	create   bool
	old      labels
	drain    bool
	deleting bool
	// by is the shard that creates the child; nobody for another writer.
	by name
}

// answer is the assigner's answer to a write, given a view.
type answer struct {
	labels
	view int8
}

func decide(s Scope) (*decisions, error) {
	d := &decisions{
		shards: s.Shards, parent: s.Child, mutation: s.Mutation, set: resolve(s.Child),
		mainPlans: map[mainInput]operation{}, childPlans: map[childInput]operation{}, answers: map[write][]answer{},
	}

	combinations := int8(1)
	for range s.Shards {
		combinations *= sights
	}

	for i := range combinations {
		d.views = append(d.views, membership.NewView(ringName, d.leasesSeen(i), nil))
	}

	d.name()
	d.plans()
	d.admissions()
	d.monitor()

	for g := range guard(guards) {
		for l := absent; l <= taken; l++ {
			may, err := verdict(g, l)
			if err != nil {
				return nil, err
			}

			d.mayTake[g][l] = may || s.Mutation == NoLiveRead || s.Mutation == NoPatience && l != held
		}
	}

	return d, nil
}

func resolve(child bool) *resources.Set {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(mainKind, meta.RESTScopeNamespace)
	mapper.Add(childKind, meta.RESTScopeNamespace)

	r := v1alpha1.RingResource{Group: mainResource.Group, Resource: mainResource.Resource}
	if child {
		r.ControlledResources = []v1alpha1.ControlledResource{{Group: childResource.Group, Resource: childResource.Resource}}
	}

	return resources.Resolve(mapper, v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{r}})
}

func shardName(n name) string {
	if n == nobody {
		return ""
	}

	return "shard-" + n.String()
}

// named returns the shard with that name, or nobody if there is none.
func named(shard string) name {
	for n := name(1); n <= MaxShards; n++ {
		if shardName(n) == shard {
			return n
		}
	}

	return nobody
}

// leasesOf returns the Leases as objects.
func leasesOf(all []lease) []*coordinationv1.Lease {
	var objects []*coordinationv1.Lease

	for i, l := range all {
		name, holder := shardName(name(i+1)), ""

		switch l {
		case absent:
			continue
		case held:
			holder = name
		case taken:
			holder = contract.LeaseControllerIdentity
		case released:
		}

		objects = append(objects, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name, Labels: map[string]string{contract.LabelClusterRing: ringName},
			},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &holder, LeaseDurationSeconds: new(int32(duration / time.Second)),
				RenewTime: new(metav1.NewMicroTime(epoch)),
			},
		})
	}

	return objects
}

// seenIn returns what a view shows.
func (d *decisions) seenIn(view int8) []sight {
	all := make([]sight, d.shards)
	for i := range all {
		all[i] = sight(view % sights) //nolint:gosec // it is one of four
		view /= sights
	}

	return all
}

// leasesSeen returns the Leases that a view shows.
func (d *decisions) leasesSeen(view int8) []*coordinationv1.Lease {
	all, seen := make([]lease, d.shards), d.seenIn(view)
	for i, s := range seen {
		all[i] = s.lease()
	}

	objects := leasesOf(all)
	for _, l := range objects {
		if seen[named(l.Name)-1] == seenStopping {
			announce(l)
		}
	}

	return objects
}

// announce makes a Lease say that its shard stops.
func announce(l *coordinationv1.Lease) {
	metav1.SetMetaDataAnnotation(&l.ObjectMeta, contract.AnnotationStopping, contract.OfferValue(l.Spec.RenewTime.Time))
}

// viewOf returns the view that shows the current Leases.
func (d *decisions) viewOf(s *state) int8 {
	view := int8(0)

	for i := d.shards - 1; i >= 0; i-- {
		view = sights*view + int8(s.shards[i].sight()) //nolint:gosec // it is one of four
	}

	return view
}

// sight returns what a view of the present shows of the shard's Lease.
func (s *shard) sight() sight {
	switch {
	case s.lease == held && s.announced:
		return seenStopping
	case s.lease == held:
		return seenHeld
	case s.lease.free():
		return seenFree
	}

	return seenAbsent
}

// standing returns how the shards stand in a view.
func (d *decisions) standing(view int8) (all standing) {
	for i, l := range d.seenIn(view) {
		switch l {
		case seenHeld:
			all.available |= 1 << i
		case seenStopping:
			all.stopping |= 1 << i
		case seenAbsent, seenFree:
		}
	}

	return all
}

// name finds a name for the main object with which it belongs to the first available shard, for any set of available
// shards.
func (d *decisions) name() {
	fits := func(v *membership.View) bool {
		owner, ok := v.Owner(d.key())
		return !ok || owner == v.AvailableShards()[0]
	}

	for i := 0; ; i++ {
		d.object = fmt.Sprintf("website-%d", i)
		if !slices.ContainsFunc(d.views, func(v *membership.View) bool { return !fits(v) }) {
			return
		}
	}
}

// plans asks the plan about every object in every view.
func (d *decisions) plans() {
	for i := range int8(len(d.views)) {
		for shard := nobody; int(shard) <= d.shards; shard++ {
			for bits := range 4 {
				in := mainInput{d.standing(i), labels{shard, bits&1 != 0}, bits&2 != 0}
				d.mainPlans[in] = d.planMain(d.views[i], in)

				for child := nobody; int(child) <= d.shards; child++ {
					both := childInput{in, child}
					d.childPlans[both] = d.planChild(d.views[i], both)
				}
			}
		}
	}
}

func (d *decisions) planMain(v *membership.View, in mainInput) operation {
	o := plan.Object{
		Shard: shardName(in.main.shard), Labelled: in.main.shard != nobody, Draining: in.main.drain,
		Belongs: in.belongs, Desired: d.desired(v, in.belongs), Parent: d.parent,
	}
	action := plan.Decide(v, o)

	switch {
	case d.mutation == NoDrain && action.Verb == plan.Drain && in.belongs:
		action = plan.Action{Verb: plan.Assign, To: o.Desired}
	case d.mutation == ReleaseAtOnce && action.Verb == plan.Drain && !in.belongs:
		action.Verb = plan.Release
	}

	return operationOf(action)
}

func (d *decisions) planChild(v *membership.View, in childInput) operation {
	o := plan.Object{
		Shard: shardName(in.child), Labelled: in.child != nobody, Controlled: true,
		Belongs: in.belongs, Desired: d.desired(v, in.belongs),
		Owner: plan.Owner{Exists: true, Shard: shardName(in.main.shard), Draining: in.main.drain, Belongs: in.belongs},
	}
	if d.mutation == ChildFirst {
		o.Owner.Shard, o.Owner.Draining = o.Desired, false
	}

	return operationOf(plan.Decide(v, o))
}

func (d *decisions) key() key.Key {
	return key.Key{Group: mainKind.Group, Kind: mainKind.Kind, Namespace: namespace, Name: d.object}
}

// desired returns the shard that the object belongs to, as the rebalancer sees it.
func (d *decisions) desired(v *membership.View, belongs bool) string {
	if !belongs {
		return ""
	}

	owner, _ := v.Owner(d.key())
	if all := v.AvailableShards(); d.mutation == RingsDiffer && len(all) > 0 {
		owner = all[len(all)-1]
	}

	return owner
}

func operationOf(a plan.Action) operation {
	op := operation{to: named(a.To), from: named(a.TakenFrom)}

	switch a.Verb {
	case plan.Assign:
		op.verb = assign
	case plan.Drain:
		op.verb = drain
	case plan.Withdraw:
		op.verb = withdraw
	case plan.Release:
		op.verb = release
	case plan.None, plan.AwaitAcknowledgement, plan.AwaitShard:
	}

	op.confirmed = op.verb != nothing && op.from == nobody

	return op
}

// monitor asks what the lease monitor does with Leases of every age.
func (d *decisions) monitor() {
	next := func(holder string, age time.Duration, ended bool) leases.Action {
		return leases.Next(leases.Snapshot{
			Shard: shardName(1), Record: leases.Record{Holder: holder, Duration: duration}, Ended: ended,
		}, age).Action
	}

	for age := range d.acquires {
		// Ages are rounded to the disadvantage of the shard: D and a moment more have passed.
		d.acquires[age] = next(shardName(1), time.Duration(age)*duration+1, false) == leases.Acquire &&
			d.mutation != NoTakeover
		d.believes[age] = next(shardName(1), time.Duration(age)*duration+1, true) == leases.Acquire
	}

	d.collects = next("", 100*duration, false) == leases.Delete &&
		next(contract.LeaseControllerIdentity, 100*duration, false) == leases.Delete
}

// admissions asks the assigner about every write in every view.
func (d *decisions) admissions() {
	for shard := nobody; int(shard) <= d.shards; shard++ {
		for bits := range 32 {
			w := write{
				old: labels{shard, bits&1 != 0}, drain: bits&2 != 0,
				child: bits&4 != 0, create: bits&8 != 0, deleting: bits&16 != 0,
			}

			for w.by = nobody; w.by == nobody || w.child && w.create && int(w.by) <= d.shards; w.by++ {
				d.answer(w)
			}
		}
	}
}

// answer asks the assigner about a write in every view.
func (d *decisions) answer(w write) {
	for view := range int8(len(d.views)) {
		for _, settled := range []bool{false, true} {
			d.answers[w] = append(d.answers[w], answer{d.admit(w, view, settled), view})
		}
	}
}

// admit returns the labels of an object after a write, given what the assigner believes about the Leases and about
// whether every main object is in its place.
func (d *decisions) admit(w write, view int8, settled bool) labels {
	recorded := v1alpha1.AssignedResource{Group: mainResource.Group, Resource: mainResource.Resource,
		ControlledResources: []v1alpha1.ControlledResource{{Group: childResource.Group, Resource: childResource.Resource}}}
	if settled {
		recorded.Fingerprint = d.views[view].Fingerprint()
	}

	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: ringName}}
	ring.Status.Assignment = &v1alpha1.AssignmentStatus{Resources: []v1alpha1.AssignedResource{recorded}}

	if w.deleting {
		ring.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	}

	facts := admission.Facts{Ring: ring, Resources: d.set, View: d.views[view]}

	req := &admission.Request{
		Ring: ringName, Operation: admission.Update,
		Resource: mainResource,
		Object:   d.objectOf(w.child, labels{drain: w.drain}),
		Writer:   types.NamespacedName{Namespace: namespace, Name: shardName(w.by)},
	}
	if w.child {
		req.Resource = childResource
	}

	if w.create {
		req.Operation = admission.Create
	} else if d.mutation != NoOldLabel {
		req.Old = d.objectOf(w.child, w.old)
	}

	a := admission.Decide(context.Background(), admission.NewRing(facts), req, nil) // no object is in between

	return labels{shard: named(a.Shard), drain: w.drain && !a.RemoveDrain}
}

// objectOf returns the main object or the child with the given labels.
func (d *decisions) objectOf(child bool, l labels) *metav1.ObjectMeta {
	o := &metav1.ObjectMeta{Name: d.object, Namespace: namespace, Labels: map[string]string{}}
	if child {
		o.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: mainKind.GroupVersion().String(), Kind: mainKind.Kind, Name: d.object, Controller: new(true),
		}}
	}

	if l.shard != nobody {
		o.Labels[contract.ShardLabel(ringName)] = shardName(l.shard)
	}

	if l.drain {
		o.Labels[contract.DrainLabel(ringName)] = contract.DrainValue
	}

	return o
}
