package query

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/metadata"
	"github.com/clusterring/clusterring/services/ringquery/query/explain"
)

// Explained is an explanation of an object.
type Explained struct {
	// Object is the object, as it was read.
	Object explain.Object
	// Findings say it all to a person, the most important first.
	Findings []explain.Finding
	// Healthy says whether nobody has to act.
	Healthy bool
	// Rings are what each ring makes of the object, in the order of their names.
	Rings []ExplainedRing
}

// ExplainedRing is what one ring makes of an object.
type ExplainedRing struct {
	explain.RingExplanation

	// Location is how the object's shard follows; nil if the ring does not cover the object.
	Location *Location
	// Actual is the Lease of the object's shard, Belongs that of the shard that it belongs to; nil: there is none.
	Actual, Belongs *Shard
}

// Explain reads an object and says where it is, why, and who will do what next: in every ring that has to do with it, or in
// the one that is named. It fails with [ErrInvalid], [ErrRingNotFound], [ErrNotSharded] if a ring is named that does not list the
// resource (which is then not read: who may ask about a ring must not learn of other objects), or as metadata.Reader.Get
// does, but for what is forbidden: of that is said what follows from its name.
func (a *Answerer) Explain(ctx context.Context, ref Reference, ring string, now time.Time) (Explained, error) {
	q, err := a.inquire(ctx, ref, ring)
	if err != nil {
		return Explained{}, err
	}

	q.facts.Now = now

	if err := q.read(ctx); err != nil {
		return Explained{}, err
	}

	for _, r := range q.rings {
		if err := q.add(ctx, r); err != nil {
			return Explained{}, err
		}
	}

	return q.answer(), nil
}

// nextExplained is the number of shards in an explanation that would be next.
const nextExplained = 2

// inquiry collects the facts about one object.
type inquiry struct {
	a     *Answerer
	rings []Ring
	facts explain.Facts

	ancestors resources.Ancestors
	owners    map[resources.Owner]explain.Owner
	asked     []Ring    // those of facts.Rings
	shards    [][]Shard // theirs
}

// inquire finds out what the question is about.
func (a *Answerer) inquire(ctx context.Context, ref Reference, name string) (*inquiry, error) {
	q := &inquiry{a: a, ancestors: a.ancestors(), owners: map[resources.Owner]explain.Owner{}}
	q.facts.Object.Namespace, q.facts.Object.Name = ref.Namespace, ref.Name

	about := q.allRings
	if name != "" {
		about = func(ctx context.Context, ref Reference) error { return q.oneRing(ctx, ref, name) }
	}

	if err := about(ctx, ref); err != nil {
		return nil, err
	}

	return q, checkNamespace(q.facts.Object.Resource, ref)
}

// oneRing takes a question about one ring, which has to list the resource, or to have listed it.
func (q *inquiry) oneRing(ctx context.Context, ref Reference, name string) error {
	r, err := q.a.named(ctx, name)
	if err != nil {
		return err
	}

	ring := q.a.ring(r)
	q.rings = []Ring{ring}

	found, _, err := find(ring, ref)
	if err != nil {
		var leaving bool
		if found, leaving = leavingResource(q.a.Resources, ring, ref); !leaving {
			return err
		}
	}

	q.facts.Object.Resource = found

	return nil
}

// allRings takes a question about whatever rings have to do with the object.
func (q *inquiry) allRings(ctx context.Context, ref Reference) error {
	all, err := q.a.all(ctx)
	if err != nil {
		return err
	}

	q.facts.Known = make([]string, 0, len(all))
	for _, r := range all {
		q.rings = append(q.rings, q.a.ring(r))
		q.facts.Known = append(q.facts.Known, r.Name)
	}

	q.facts.Object.Resource, err = q.a.Resources.Find(ref)

	return err
}

// read reads the object and the labels of its namespace.
func (q *inquiry) read(ctx context.Context) error {
	o := &q.facts.Object

	obj, err := q.a.Objects.Get(ctx, o.Resource.GVR, types.NamespacedName{Namespace: o.Namespace, Name: o.Name})

	switch {
	case errors.Is(err, metadata.ErrNotFound):
		return fmt.Errorf("%w: %s", metadata.ErrNotFound,
			Reference{Group: o.Resource.GVR.Group, Resource: o.Resource.GVR.Resource, Namespace: o.Namespace, Name: o.Name})
	case errors.Is(err, metadata.ErrForbidden):
	case err != nil:
		return err
	default:
		o.Meta = obj
	}

	if o.Namespace == "" {
		return nil
	}

	has, err := q.a.Objects.NamespaceLabels(ctx, o.Namespace)
	if err != nil && !errors.Is(err, metadata.ErrForbidden) && !errors.Is(err, metadata.ErrNotFound) {
		return err
	}

	if err == nil && has == nil {
		has = map[string]string{}
	}

	q.facts.NamespaceLabels = has

	return nil
}

// add adds the facts about one ring, if it has to do with the object.
func (q *inquiry) add(ctx context.Context, r Ring) error {
	o := &q.facts.Object
	fact := explain.Ring{
		Declared: r.ClusterRing, Resources: r.Resources, View: r.View, Selector: Selector(r.ClusterRing), Coverage: q.coverage(r.ClusterRing),
	}

	if _, role, ok := r.Resources.Find(o.Resource.GroupResource()); ok {
		fact.Role = role
	} else if set := remembered(q.a.Resources, r); set != nil {
		_, fact.Role, fact.Leaving = set.Find(o.Resource.GroupResource())
		fact.Resources = set
	}

	if fact.Role == "" && !q.carries(r.Name) {
		if q.controls(r) {
			q.facts.Controlling = append(q.facts.Controlling, r.Name)
		}

		return nil
	}

	if err := q.readOwner(ctx, &fact); err != nil {
		return err
	}

	shards := q.a.shards(r)
	for i := range shards {
		fact.Shards = append(fact.Shards, explain.Shard{
			Shard: shards[i].Shard, State: shards[i].State, Age: shards[i].Age.Time, AtLeast: shards[i].Age.AtLeast,
		})
	}

	q.facts.Rings, q.asked, q.shards = append(q.facts.Rings, fact), append(q.asked, r), append(q.shards, shards)

	return nil
}

// carries says whether the object carries a label of the ring.
func (q *inquiry) carries(ring string) bool {
	if q.facts.Object.Meta == nil {
		return false
	}

	_, shard := q.facts.Object.Meta.Labels[v1alpha1.ShardLabel(ring)]
	_, drain := q.facts.Object.Meta.Labels[v1alpha1.DrainLabel(ring)]

	return shard || drain
}

// controls says whether the object's controller is of a kind of the ring.
func (q *inquiry) controls(r Ring) bool {
	if q.facts.Object.Meta == nil {
		return false
	}

	_, _, ok := r.Resources.ControllerOf(q.facts.Object.Meta)

	return ok
}

// coverage says whether the ring selects the object's namespace.
func (q *inquiry) coverage(r *v1alpha1.ClusterRing) explain.Coverage {
	if q.facts.Object.Namespace == "" {
		return explain.Selected
	}

	if q.facts.NamespaceLabels == nil {
		return map[Coverage]explain.Coverage{
			Covered: explain.Selected, NotCovered: explain.NotSelected, Unknown: explain.Unknown,
		}[Covers(r, q.facts.Object.Namespace)]
	}

	selector, err := metav1.LabelSelectorAsSelector(r.Spec.EffectiveNamespaceSelector())
	if err != nil {
		return explain.Unknown
	}

	if selector.Matches(labels.Set(q.facts.NamespaceLabels)) {
		return explain.Selected
	}

	return explain.NotSelected
}

// readOwner finds out whom the object follows, and reads the main object, if there is one.
func (q *inquiry) readOwner(ctx context.Context, r *explain.Ring) error {
	if r.Role != resources.Controlled || q.facts.Object.Meta == nil {
		return nil
	}

	kin, ok, err := r.Resources.KinOf(ctx, resources.Subject{Resource: q.facts.Object.Resource, Role: r.Role, Object: q.facts.Object.Meta}, q.ancestors)

	switch {
	case errors.Is(err, metadata.ErrForbidden):
		nearest, _, _ := r.Resources.ControllerOf(q.facts.Object.Meta)
		r.Unread = nearest.Resource.Kind.Kind + " " + nearest.Name

		return nil
	case err != nil:
		return err
	case !ok:
		return nil
	}

	r.Kin = &kin
	owner := kin.Owner

	known, ok := q.owners[*owner]
	if !ok {
		obj, err := q.a.Objects.Get(ctx, owner.Resource.GVR, owner.NamespacedName)

		switch {
		case errors.Is(err, metadata.ErrNotFound):
			known.Found = explain.Missing
		case errors.Is(err, metadata.ErrForbidden):
			known.Found = explain.Forbidden
		case err != nil:
			return err
		default:
			known = explain.Owner{Found: explain.Read, Meta: obj}
		}

		q.owners[*owner] = known
	}

	r.Owner = known

	return nil
}

// answer explains the facts, and adds how the shard follows in each ring.
func (q *inquiry) answer() Explained {
	told := explain.Explain(&q.facts)
	res := Explained{Object: q.facts.Object, Findings: told.Findings, Healthy: told.Healthy()}

	for i := range told.Rings {
		ring := ExplainedRing{
			RingExplanation: told.Rings[i],
			Actual:          pick(q.shards[i], told.Rings[i].Shard),
			Belongs:         pick(q.shards[i], told.Rings[i].Desired),
		}

		if ring.Covered {
			coverage := Covered
			if q.facts.Rings[i].Coverage == explain.Unknown {
				coverage = Unknown
			}

			location := at(q.asked[i], Location{Role: ring.Role, Namespace: coverage, Key: *ring.Key}, nextExplained)
			ring.Location = &location
		}

		res.Rings = append(res.Rings, ring)
	}

	return res
}

// pick returns the Lease of that name: the available one, if there are several.
func pick(shards []Shard, name string) *Shard {
	var found *Shard
	for i := range shards {
		if name != "" && shards[i].Name == name && (found == nil || shards[i].Available) {
			found = &shards[i]
		}
	}

	return found
}

// String names the object for people, as in "configmaps default/a".
func (r Reference) String() string {
	name := r.Name
	if r.Namespace != "" {
		name = r.Namespace + "/" + name
	}

	return r.typeName() + " " + name
}

// leavingResource returns the resource of the reference if the ring has listed it before.
func leavingResource(memory *Resources, r Ring, ref Reference) (resources.Resource, bool) {
	set := remembered(memory, r)
	if set == nil {
		return resources.Resource{}, false
	}

	found, _, ok := lookup(set, ref)

	return found, ok
}
