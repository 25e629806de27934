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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/metadata"
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
	// Labels are those of the object, or of its owner if it follows one. They are used only if a label is the key. Empty: they are read.
	Labels map[string]string
	// Next is the number of next shards: those that would own the object if the shards before them failed.
	Next int
}

// Locate returns where an object belongs: at least one location, one per ring that shards it, sorted by the name of the ring.
// It fails with [rings.ErrInvalid], [rings.ErrRingNotFound], [rings.ErrNotSharded], [rings.ErrOwnerNeeded], [rings.ErrLabelsNeeded], or, if the
// key is a label, as metadata.Reader.Get does.
func Locate(ctx context.Context, from *rings.Rings, q Question) ([]*pb.Location, error) {
	if q.Ring != "" {
		r, err := from.Get(ctx, q.Ring)
		if err != nil {
			return nil, err
		}

		location, err := locate(ctx, from, r, q)
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
		location, err := locate(ctx, from, r, q)
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
func locate(ctx context.Context, from *rings.Rings, r rings.Ring, q Question) (*pb.Location, error) {
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

	subject, err := keyed(r, q, resource, role)
	if err != nil {
		return nil, err
	}

	k, err := subject.key(ctx, from.Objects, q.Labels)
	if err != nil {
		return nil, err
	}

	return r.Locate(role, coverage, k, q.Next), nil
}

// subject is the object whose key counts.
type subject struct {
	resources.Resource
	types.NamespacedName
}

// keyed returns the object whose key counts: the object in question, or its owner.
func keyed(r rings.Ring, q Question, resource resources.Resource, role resources.Role) (subject, error) {
	if role == resources.Main {
		return subject{resource, types.NamespacedName{Namespace: q.Object.Namespace, Name: q.Object.Name}}, nil
	}

	if q.Owner == nil {
		return subject{}, fmt.Errorf("%w: in ring %s, %s are at the shards of their owners; name the owner, that is, the owner reference with controller=true",
			rings.ErrOwnerNeeded, r.Name, q.Object.TypeName())
	}

	owner, ownerRole, ok := rings.Lookup(r.Resources, *q.Owner)
	if !ok || ownerRole != resources.Main {
		return subject{}, fmt.Errorf("%w: ring %s does not list the owner's %s as a main resource; it lists %s",
			rings.ErrNotSharded, r.Name, q.Owner.TypeName(), r.Listed())
	}

	if owner.Namespaced && !resource.Namespaced {
		return subject{}, rings.Invalid("owner", "must be cluster-scoped, because the object is; "+owner.GroupResource().String()+" have a namespace")
	}

	namespace := ""
	if owner.Namespaced {
		namespace = q.Object.Namespace
	}

	return subject{owner, types.NamespacedName{Namespace: namespace, Name: q.Owner.Name}}, nil
}

// key returns the key of the object. If it is a label and there are no labels, it reads the object.
func (s subject) key(ctx context.Context, objects *metadata.Reader, labels map[string]string) (rings.Key, error) {
	meta := &metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, Labels: labels}

	if s.Key.Label != "" && len(labels) == 0 {
		obj, err := objects.Get(ctx, s.GVR, s.NamespacedName)

		switch {
		case errors.Is(err, metadata.ErrNotFound):
			return rings.Key{}, fmt.Errorf("%w: the key of %s is %s, and %s does not exist; add the labels that it would have",
				rings.ErrLabelsNeeded, s.GroupResource(), s.Key, s.NamespacedName)
		case err != nil:
			return rings.Key{}, err
		}

		meta.Labels = obj.Labels
	}

	return rings.KeyOf(s.Resource, meta), nil
}
