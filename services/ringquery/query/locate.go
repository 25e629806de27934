package query

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Question asks where an object belongs.
type Question struct {
	// Ring is the ring to ask; empty: every ring that shards the object.
	Ring string
	// Object is the object in question. It need not exist.
	Object Reference
	// Owner is the object that controls it, nil if none was named. Its namespace is not used.
	Owner *Reference
	// Next is the number of shards to name that would own the object if those before them failed.
	Next int
}

// Reference names an object by its kind or by its resource; the other is empty.
type Reference struct {
	Group, Kind, Resource, Namespace, Name string
}

// Location says where an object belongs in one ring, and how that follows.
type Location struct {
	// Ring is the ring's name.
	Ring string
	// Role says whether the object's own name decides.
	Role resources.Role
	// Namespace says whether the ring covers the object's namespace; never NotCovered.
	Namespace Coverage
	// Key is the partition key, Hash its hash, Partition the part of the hash space that the hash is in.
	Key       key.Key
	Hash      key.Hash
	Partition int
	// Shard owns the partition; empty if no shard is available.
	Shard string
	// Next are the shards that would follow.
	Next []string
	// Fingerprint names the set of available shards.
	Fingerprint string
}

// Locate says where an object belongs: one location per ring that shards it, in the order of their names, and at least one.
// It fails with [ErrInvalid], [ErrRingNotFound], [ErrNotSharded] or [ErrOwnerNeeded].
func (a *Answerer) Locate(ctx context.Context, q Question) ([]Location, error) {
	if q.Ring != "" {
		r, err := a.named(ctx, q.Ring)
		if err != nil {
			return nil, err
		}

		location, err := locate(a.ring(r), q)
		if err != nil {
			return nil, err
		}

		return []Location{location}, nil
	}

	all, err := a.all(ctx)
	if err != nil {
		return nil, err
	}

	var (
		locations []Location
		refusals  []string
	)

	for _, r := range all {
		location, err := locate(a.ring(r), q)
		if errors.Is(err, ErrNotSharded) {
			refusals = append(refusals, strings.TrimPrefix(err.Error(), ErrNotSharded.Error()+": "))
			continue
		}

		if err != nil {
			return nil, err
		}

		locations = append(locations, location)
	}

	if len(locations) == 0 {
		return nil, notShardedAtAll(refusals)
	}

	return locations, nil
}

// maxRefusals is the number of rings whose reasons a message names, so that it stays readable.
const maxRefusals = 10

func notShardedAtAll(refusals []string) error {
	if len(refusals) == 0 {
		return fmt.Errorf("%w: there is no ring", ErrNotSharded)
	}

	if more := len(refusals) - maxRefusals; more > 0 {
		refusals = append(refusals[:maxRefusals:maxRefusals], fmt.Sprintf("and %d rings more", more))
	}

	return fmt.Errorf("%w: %s", ErrNotSharded, strings.Join(refusals, "; "))
}

// locate answers for one ring.
func locate(r Ring, q Question) (Location, error) {
	if !r.DeletionTimestamp.IsZero() {
		return Location{}, fmt.Errorf("%w: ring %s is being deleted and assigns nothing", ErrNotSharded, r.Name)
	}

	resource, role, err := find(r, q.Object)
	if err != nil {
		return Location{}, err
	}

	if err := checkNamespace(resource, q.Object); err != nil {
		return Location{}, err
	}

	coverage := Covered
	if resource.Namespaced {
		coverage = Covers(r.ClusterRing, q.Object.Namespace)
	}

	if coverage == NotCovered {
		return Location{}, fmt.Errorf("%w: ring %s does not cover namespace %s (its namespaceSelector is %q)",
			ErrNotSharded, r.Name, q.Object.Namespace, Selector(r.ClusterRing))
	}

	k, err := partitionKey(r, q, resource, role)
	if err != nil {
		return Location{}, err
	}

	return at(r, Location{Role: role, Namespace: coverage, Key: k}, q.Next), nil
}

// at completes a location, of which the role, the coverage and the key are given.
func at(r Ring, location Location, next int) Location {
	ring := r.View.Table()

	location.Ring = r.Name
	location.Hash = location.Key.Hash()
	location.Partition = ring.Partition(location.Hash)
	location.Fingerprint = ring.Fingerprint()

	if owner, ok := ring.OwnerOf(location.Partition); ok {
		location.Shard = owner
	}

	location.Next = r.next(location.Partition, next)

	return location
}

// next returns the n shards that would own the partition, one after the other, if those before them failed. It is what the hash
// ring's Ranking says; in a small ring, the rings without these shards are kept, which takes a look-up each.
func (r Ring) next(partition, n int) (names []string) {
	ring := r.View.Table()
	if n == 0 || ring.Len() < 2 {
		return nil
	}

	if ring.Len() >= largeRing || r.smaller == nil {
		return ring.Ranking(partition, n+1)[1:]
	}

	for len(names) < n && ring.Len() > 1 {
		owner, _ := ring.OwnerOf(partition)
		ring = r.smaller.Get(slices.DeleteFunc(ring.Shards(), func(shard string) bool { return shard == owner }))
		next, _ := ring.OwnerOf(partition)
		names = append(names, next)
	}

	return names
}

// find returns the ring's resource that the reference names.
func find(r Ring, ref Reference) (resources.Resource, resources.Role, error) {
	if resource, role, ok := lookup(r.Resources, ref); ok {
		return resource, role, nil
	}

	for _, m := range r.Resources.Missing() {
		if ref.Kind == "" && m.GroupResource == ref.groupResource() {
			return resources.Resource{}, "", fmt.Errorf("%w: ring %s lists %s, but the API server does not serve it (yet)",
				ErrNotSharded, r.Name, ref.typeName())
		}
	}

	return resources.Resource{}, "", fmt.Errorf("%w: ring %s does not list %s; it lists %s",
		ErrNotSharded, r.Name, ref.typeName(), listed(r.ClusterRing))
}

func lookup(set *resources.Set, ref Reference) (resources.Resource, resources.Role, bool) {
	if ref.Kind == "" {
		return set.Find(ref.groupResource())
	}

	gk := schema.GroupKind{Group: ref.Group, Kind: ref.Kind}
	for _, resource := range set.Main() {
		if resource.Kind.GroupKind() == gk {
			return resource, resources.Main, true
		}
	}

	for _, resource := range set.Controlled() {
		if resource.Kind.GroupKind() == gk {
			return resource, resources.Controlled, true
		}
	}

	return resources.Resource{}, "", false
}

// checkNamespace sees to it that exactly the objects that have a namespace are asked about with one.
func checkNamespace(resource resources.Resource, ref Reference) error {
	switch {
	case resource.Namespaced && ref.Namespace == "":
		return Invalid("object.namespace", "must be set: "+resource.GroupResource().String()+" have a namespace")
	case !resource.Namespaced && ref.Namespace != "":
		return Invalid("object.namespace", "must be empty: "+resource.GroupResource().String()+" are cluster-scoped")
	default:
		return nil
	}
}

// partitionKey returns the key of the object itself, or that of its owner.
func partitionKey(r Ring, q Question, resource resources.Resource, role resources.Role) (key.Key, error) {
	if role == resources.Main {
		return key.Key{
			Group:     resource.Kind.Group,
			Kind:      resource.Kind.Kind,
			Namespace: q.Object.Namespace,
			Name:      q.Object.Name,
		}, nil
	}

	if q.Owner == nil {
		return key.Key{}, fmt.Errorf("%w: in ring %s, %s are where their owners are; name the owner, as the object's owner reference with controller=true does",
			ErrOwnerNeeded, r.Name, q.Object.typeName())
	}

	owner, ownerRole, ok := lookup(r.Resources, *q.Owner)
	if !ok || ownerRole != resources.Main {
		return key.Key{}, fmt.Errorf("%w: ring %s does not list the owner's %s as a main resource; it lists %s",
			ErrNotSharded, r.Name, q.Owner.typeName(), listed(r.ClusterRing))
	}

	if owner.Namespaced && !resource.Namespaced {
		return key.Key{}, Invalid("owner", "must be cluster-scoped, because the object is; "+owner.GroupResource().String()+" have a namespace")
	}

	namespace := ""
	if owner.Namespaced {
		namespace = q.Object.Namespace
	}

	return key.OfOwner(owner.Kind.GroupKind(), namespace, q.Owner.Name), nil
}

func (r Reference) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}
}

// typeName returns the resource or the kind with its group, as in "deployments.apps".
func (r Reference) typeName() string {
	if r.Kind != "" {
		return schema.GroupKind{Group: r.Group, Kind: r.Kind}.String()
	}

	return r.groupResource().String()
}

// listed names the resources of a ring.
func listed(r *v1alpha1.ClusterRing) string {
	var names []string
	for _, main := range r.Spec.Resources {
		names = append(names, schema.GroupResource{Group: main.Group, Resource: main.Resource}.String())
		for _, c := range main.ControlledResources {
			names = append(names, schema.GroupResource{Group: c.Group, Resource: c.Resource}.String()+" (controlled)")
		}
	}

	return strings.Join(names, ", ")
}
