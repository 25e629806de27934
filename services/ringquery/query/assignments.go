package query

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/ancestry"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/metadata"
	"github.com/clusterring/clusterring/services/ringquery/query/assignment"
)

// AssignmentsQuery asks where the objects of a resource are.
type AssignmentsQuery struct {
	// Ring is the ring's name.
	Ring string
	// Resource is one that the ring lists.
	Resource schema.GroupResource
	// Namespace and Shard limit the list; empty: they do not.
	Namespace, Shard string
	// States limits the list; empty: it does not.
	States []assignment.State
	// Limit is the greatest number of objects to look at.
	Limit int
	// Continue is that of the page before; empty: the first page.
	Continue string
}

// Assignment is where an object is.
type Assignment struct {
	// Namespace and Name name the object.
	Namespace, Name string
	// Shard is the value of the shard label, Desired the shard that the ring gives the object to; empty: none.
	Shard, Desired string
	// State sums it up.
	State assignment.State
	// DrainTime is since when the object carries the drain label; zero: it does not, or it does not tell.
	DrainTime time.Time
	// Owner is the main object that controls this one, as in "ConfigMap/a"; empty: none.
	Owner string
}

// Assignments is one page of objects.
type Assignments struct {
	// Items are sorted by namespace, then name.
	Items []Assignment
	// Continue gets the next page; empty: this is the last one.
	Continue string
	// Remaining is how many objects follow, as far as the API server tells.
	Remaining int64
	// Fingerprint names the set of available shards.
	Fingerprint string
}

// Assignments reads one page of objects from the API server and says where they are. It fails with [ErrRingNotFound],
// [ErrNotSharded], [ErrNotReadable], [ErrInvalid], or as metadata.Reader.List does.
func (a *Answerer) Assignments(ctx context.Context, q AssignmentsQuery) (Assignments, error) {
	r, err := a.named(ctx, q.Ring)
	if err != nil {
		return Assignments{}, err
	}

	ring := a.ring(r)
	resource, role, err := find(ring, Reference{Group: q.Resource.Group, Resource: q.Resource.Resource})
	if err != nil {
		return Assignments{}, err
	}

	if q.Namespace != "" && !resource.Namespaced {
		return Assignments{}, Invalid("namespace", "must be empty: "+q.Resource.String()+" are cluster-scoped")
	}

	spaces, err := a.namespacesOf(r)
	if err != nil {
		return Assignments{}, err
	}

	page, err := a.Objects.List(ctx, metadata.Query{
		GVR: resource.GVR, Namespace: q.Namespace, Selector: ofShard(q.Ring, q.Shard), Limit: int64(q.Limit), Continue: q.Continue,
	})
	if errors.Is(err, metadata.ErrInvalid) && q.Continue != "" {
		return Assignments{}, Invalid("page_token", "must be the next_page_token of an earlier answer")
	}

	if err != nil {
		return Assignments{}, readable(err, q.Resource.String())
	}

	if err := spaces.learn(ctx, page.Items); err != nil {
		return Assignments{}, err
	}

	items, err := judge(ctx, ring, member{resource, role, spaces, a.ancestors()}, page.Items)
	if err != nil {
		return Assignments{}, readable(err, q.Resource.String())
	}

	if len(q.States) > 0 {
		items = slices.DeleteFunc(items, func(a Assignment) bool { return !slices.Contains(q.States, a.State) })
	}

	return Assignments{
		Items:       items,
		Continue:    page.Continue,
		Remaining:   page.Remaining,
		Fingerprint: ring.View.Fingerprint(),
	}, nil
}

// ofShard returns the label selector for the objects of a shard; empty: all.
func ofShard(ring, shard string) string {
	if shard == "" {
		return ""
	}

	return labels.Set{v1alpha1.ShardLabel(ring): shard}.String()
}

// member is a resource in a ring, and in which namespaces.
type member struct {
	resources.Resource

	role      resources.Role
	spaces    *namespaces
	ancestors resources.Ancestors
}

// between is of how many objects that stand between others it is remembered whom they follow while one question is answered.
const between = 1000

// ancestors returns who finds out, for one answer, whom objects follow.
func (a *Answerer) ancestors() resources.Ancestors {
	return ancestry.New(ancestry.Options{Read: a.Objects.Get, Size: between, Remember: time.Hour, Clock: clock.RealClock{}})
}

// judge says where the objects are, of those that have to do with the ring. The error is that of the look at those they follow.
func judge(ctx context.Context, r Ring, m member, objects []metav1.PartialObjectMetadata) ([]Assignment, error) {
	var all []Assignment

	for i := range objects {
		a, ok, err := assignmentOf(ctx, r, m, &objects[i])
		if err != nil {
			return nil, err
		}

		if ok {
			all = append(all, a)
		}
	}

	slices.SortFunc(all, func(a, b Assignment) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})

	return all, nil
}

// assignmentOf says where an object is; ok is false if it has nothing to do with the ring. The error is that of the look at those it follows.
func assignmentOf(ctx context.Context, r Ring, m member, obj *metav1.PartialObjectMetadata) (a Assignment, ok bool, err error) {
	o := assignment.Labels(r.Name, obj.Labels)

	kin, keyed, err := r.Resources.KinOf(ctx, resources.Subject{Resource: m.Resource, Role: m.role, Object: obj}, m.ancestors)
	if err != nil {
		return Assignment{}, false, err
	}

	o.Controlled = m.role == resources.Controlled
	o.Belongs = keyed && r.DeletionTimestamp.IsZero() && m.spaces.covers(obj.Namespace)

	if o.Belongs {
		o.Desired, _ = r.View.Owner(kin.Key)
	}

	a = Assignment{Namespace: obj.Namespace, Name: obj.Name, Shard: o.Shard, Desired: o.Desired}
	a.State, ok = assignment.StateOf(r.View, o)
	a.DrainTime, _ = assignment.DrainTime(r.Name, obj)

	if owner := kin.Owner; owner != nil {
		a.Owner = fmt.Sprintf("%s/%s", owner.Resource.Kind.Kind, owner.Name)
	}

	return a, ok, nil
}
