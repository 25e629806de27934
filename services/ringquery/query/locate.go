// Package query reports where an object belongs, where the objects of a resource are, and what would move if the shards changed.
//
// It gets the rings from package rings, and reads the objects in question from the API server. Its answers are messages of the API. It
// writes nothing.
package query

import (
	"context"
	"errors"
	"fmt"
	"strings"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// Question is the question where an object belongs.
type Question struct {
	// Ring limits the answer to one ring. Empty: every ring that shards the object.
	Ring string
	// Object is the object in question. It does not have to exist.
	Object rings.Reference
	// Owner is the object that controls it. Nil: none was named. Its namespace is ignored.
	Owner *rings.Reference
	// Next is the number of next shards: those that would own the object if the shards before them failed.
	Next int
}

// Locate returns where an object belongs: at least one location, one per ring that shards it, sorted by the name of the ring.
// It fails with [rings.ErrInvalid], [rings.ErrRingNotFound], [rings.ErrNotSharded] or [rings.ErrOwnerNeeded].
func Locate(ctx context.Context, from *rings.Rings, q Question) ([]*pb.Location, error) {
	if q.Ring != "" {
		r, err := from.Get(ctx, q.Ring)
		if err != nil {
			return nil, err
		}

		location, err := locate(r, q)
		if err != nil {
			return nil, err
		}

		return []*pb.Location{location}, nil
	}

	all, err := from.All(ctx)
	if err != nil {
		return nil, err
	}

	var (
		locations []*pb.Location
		refusals  []string
	)

	for _, r := range all {
		location, err := locate(r, q)
		if errors.Is(err, rings.ErrNotSharded) {
			refusals = append(refusals, strings.TrimPrefix(err.Error(), rings.ErrNotSharded.Error()+": "))
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

// maxRefusals is the maximum number of rings in an error message.
const maxRefusals = 10

func notShardedAtAll(refusals []string) error {
	if len(refusals) == 0 {
		return fmt.Errorf("%w: there is no ring", rings.ErrNotSharded)
	}

	if more := len(refusals) - maxRefusals; more > 0 {
		refusals = append(refusals[:maxRefusals:maxRefusals], fmt.Sprintf("and %d more rings", more))
	}

	return fmt.Errorf("%w: %s", rings.ErrNotSharded, strings.Join(refusals, "; "))
}

// locate answers for one ring.
func locate(r rings.Ring, q Question) (*pb.Location, error) {
	if err := r.CheckActive(); err != nil {
		return nil, err
	}

	resource, role, err := r.Find(q.Object)
	if err != nil {
		return nil, err
	}

	if err := q.Object.CheckNamespace(resource); err != nil {
		return nil, err
	}

	coverage := rings.Covered
	if resource.Namespaced {
		coverage = r.Covers(q.Object.Namespace)
	}

	if coverage == rings.NotCovered {
		return nil, fmt.Errorf("%w: ring %s does not cover namespace %s (its namespaceSelector is %q)",
			rings.ErrNotSharded, r.Name, q.Object.Namespace, r.Selector())
	}

	k, err := partitionKey(r, q, resource, role)
	if err != nil {
		return nil, err
	}

	return r.Locate(role, coverage, k, q.Next), nil
}

// partitionKey returns the key of the object or of its owner.
func partitionKey(r rings.Ring, q Question, resource resources.Resource, role resources.Role) (key.Key, error) {
	if role == resources.Main {
		return key.Key{
			Group:     resource.Kind.Group,
			Kind:      resource.Kind.Kind,
			Namespace: q.Object.Namespace,
			Name:      q.Object.Name,
		}, nil
	}

	if q.Owner == nil {
		return key.Key{}, fmt.Errorf("%w: in ring %s, %s are at the shards of their owners; name the owner, that is, the owner reference with controller=true",
			rings.ErrOwnerNeeded, r.Name, q.Object.TypeName())
	}

	owner, ownerRole, ok := rings.Lookup(r.Resources, *q.Owner)
	if !ok || ownerRole != resources.Main {
		return key.Key{}, fmt.Errorf("%w: ring %s does not list the owner's %s as a main resource; it lists %s",
			rings.ErrNotSharded, r.Name, q.Owner.TypeName(), r.Listed())
	}

	if owner.Namespaced && !resource.Namespaced {
		return key.Key{}, rings.Invalid("owner", "must be cluster-scoped, because the object is; "+owner.GroupResource().String()+" have a namespace")
	}

	namespace := ""
	if owner.Namespaced {
		namespace = q.Object.Namespace
	}

	return key.OfOwner(owner.Kind.GroupKind(), namespace, q.Owner.Name), nil
}
