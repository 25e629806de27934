package query

import (
	"cmp"
	"context"
	"errors"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/assignment"
	"github.com/clusterring/clusterring/services/ringquery/metadata"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// List reads one page of objects from the API server and returns where they are. The request is valid, and its page size and page
// token are those of the API server; so is the next page token. It fails with [rings.ErrRingNotFound], [rings.ErrNotSharded],
// [rings.ErrNotReadable], [rings.ErrInvalid], or as metadata.Reader.List does.
func List(ctx context.Context, from *rings.Rings, req *pb.ListAssignmentsRequest) (*pb.ListAssignmentsResponse, error) {
	ring, err := from.Get(ctx, req.GetRing())
	if err != nil {
		return nil, err
	}

	if ring.Holder != "" {
		return nil, ring.CheckActive()
	}

	resource, role, err := ring.Find(rings.Reference{Group: req.GetGroup(), Resource: req.GetResource()})
	if err != nil {
		return nil, err
	}

	name := resource.GroupResource().String()

	if req.GetNamespace() != "" && !resource.Namespaced {
		return nil, rings.Invalid("namespace", "must be empty: "+name+" are cluster-scoped")
	}

	spaces, err := namespacesOf(ring, from.Objects)
	if err != nil {
		return nil, err
	}

	page, err := from.Objects.List(ctx, metadata.Query{
		GVR: resource.GVR, Namespace: req.GetNamespace(), ListOptions: metav1.ListOptions{
			LabelSelector: ofShard(ring.Keys, req.GetShard()), Limit: int64(req.GetPageSize()), Continue: req.GetPageToken(),
		},
	})
	if errors.Is(err, metadata.ErrInvalid) && req.GetPageToken() != "" {
		return nil, rings.Invalid("page_token", "must be the next_page_token of an earlier answer")
	}

	if err != nil {
		return nil, readable(err, name)
	}

	if err := spaces.learn(ctx, page.Items); err != nil {
		return nil, err
	}

	items, err := judge(ctx, ring, member{resource, role, spaces, from.Objects.Ancestors()}, page.Items)
	if err != nil {
		return nil, readable(err, name)
	}

	if states := req.GetStates(); len(states) > 0 {
		items = slices.DeleteFunc(items, func(a *pb.Assignment) bool { return !slices.Contains(states, a.GetState()) })
	}

	return &pb.ListAssignmentsResponse{
		Assignments: items, NextPageToken: page.Continue, Remaining: ptr.Deref(page.RemainingItemCount, 0), Fingerprint: ring.View.Fingerprint(),
	}, nil
}

// ofShard returns the label selector for the objects of a shard. Empty: all objects.
func ofShard(keys v1alpha1.LabelKeys, shard string) string {
	if shard == "" {
		return ""
	}

	return labels.Set{keys.Shard: shard}.String()
}

// member is a resource of a ring, with the namespaces that the ring covers.
type member struct {
	resources.Resource

	role      resources.Role
	spaces    *namespaces
	ancestors resources.Ancestors
}

// judge returns where the objects are, without those that are not related to the ring. It fails if it cannot find their owners.
func judge(ctx context.Context, r rings.Ring, m member, objects []metav1.PartialObjectMetadata) ([]*pb.Assignment, error) {
	var all []*pb.Assignment

	for i := range objects {
		a, err := assignmentOf(ctx, r, m, &objects[i])
		if err != nil {
			return nil, err
		}

		if a.GetState() != assignment.None {
			all = append(all, a)
		}
	}

	slices.SortFunc(all, func(a, b *pb.Assignment) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})

	return all, nil
}

// assignmentOf returns where an object is. The state is None if the object is not related to the ring. It fails if it cannot find the
// owner.
func assignmentOf(ctx context.Context, r rings.Ring, m member, obj *metav1.PartialObjectMetadata) (*pb.Assignment, error) {
	kin, keyed, err := r.Resources.KinOf(ctx, resources.Subject{Resource: m.Resource, Role: m.role, Object: obj}, m.ancestors)
	if err != nil {
		return nil, err
	}

	o := assignment.Labels(r.Keys, obj.Labels)
	o.Controlled = m.role == resources.Controlled
	o.Belongs = keyed && r.Active() && m.spaces.covers(obj.Namespace)

	if o.Belongs {
		o.Desired, _ = r.View.Owner(kin.Key)
	}

	return assignment.Of(assignment.Ring{View: r.View, Keys: r.Keys}, o, obj, kin.Owner), nil
}
