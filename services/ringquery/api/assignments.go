package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// Pages of assignments, as the .proto file documents them.
const (
	defaultAssignments = 500
	maxAssignments     = 5000
)

// ListAssignments implements the method of the same name.
func (s *Service) ListAssignments(
	ctx context.Context, req *pb.ListAssignmentsRequest,
) (*pb.ListAssignmentsResponse, error) {
	asked, err := assignmentsQuery(req)
	if err != nil {
		return nil, err
	}

	res, err := s.list(ctx, asked)
	if err == nil && res.GetNextPageToken() != "" {
		res.NextPageToken = digest(req) + "/" + res.GetNextPageToken()
	}

	return res, err
}

// list reads one page of objects from the API server and returns where they are. The request is valid, and its page
// size and page token are those of the API server; so is the next page token.
func (s *Service) list(ctx context.Context, req *pb.ListAssignmentsRequest) (*pb.ListAssignmentsResponse, error) {
	ring, err := s.Rings.Get(ctx, req.GetRing())
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

	if req.GetNamespace() != "" && !resource.Namespaced {
		return nil, rings.Invalid("namespace", "must be empty: "+resource.GroupResource().String()+" are cluster-scoped")
	}

	if err := ring.CheckSelector(); err != nil {
		return nil, err
	}

	options := metav1.ListOptions{Limit: int64(req.GetPageSize()), Continue: req.GetPageToken()}
	if req.GetShard() != "" {
		options.LabelSelector = labels.Set{ring.Keys.Shard: req.GetShard()}.String()
	}

	if err := s.Rings.Objects.Turns.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("wait for other lists: %w", err)
	}
	defer s.Rings.Objects.Turns.Release(1)

	page, err := s.Rings.Objects.List(ctx, resource.GVR, req.GetNamespace(), options)
	if errors.Is(err, rings.ErrRejected) && req.GetPageToken() != "" {
		return nil, rings.Invalid("page_token", "must be the next_page_token of an earlier answer")
	}

	if err != nil {
		return nil, err
	}

	spaces := &namespaces{ring: ring, objects: s.Rings.Objects, known: map[string]bool{}}

	items, err := member{resource, role, spaces}.assignmentsOf(ctx, page.Items)
	if err != nil {
		return nil, err
	}

	if states := req.GetStates(); len(states) > 0 {
		items = slices.DeleteFunc(items, func(a *pb.Assignment) bool { return !slices.Contains(states, a.GetState()) })
	}

	return &pb.ListAssignmentsResponse{
		Assignments: items, NextPageToken: page.Continue, Remaining: ptr.Deref(page.RemainingItemCount, 0),
		Fingerprint: ring.View.Fingerprint(),
	}, nil
}

// member is a resource of a ring, with the namespaces that the ring covers.
type member struct {
	resources.Resource

	role   resources.Role
	spaces *namespaces
}

// assignmentsOf returns where the objects are, without those that are not related to the ring. It fails if it cannot
// find their owners, or list namespaces.
func (m member) assignmentsOf(ctx context.Context, objects []metav1.PartialObjectMetadata) ([]*pb.Assignment, error) {
	var all []*pb.Assignment

	ring, ancestors := m.spaces.ring, m.spaces.objects.Ancestors()

	for i := range objects {
		obj := &objects[i]

		of := resources.Subject{Resource: m.Resource, Role: m.role, Object: obj}

		kin, keyed, err := ring.Resources.KinOf(ctx, of, ancestors)
		if err != nil {
			return nil, err
		}

		covered, err := m.spaces.covers(ctx, obj.Namespace)
		if err != nil {
			return nil, err
		}

		if o := ring.Object(of, kin, keyed && covered); o.Labels() {
			all = append(all, ring.Assignment(o, obj, kin))
		}
	}

	slices.SortFunc(all, func(a, b *pb.Assignment) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})

	return all, nil
}

// assignmentsQuery returns a valid request with the page size and the page token of the API server. Its states limit
// the list; no states: they do not.
func assignmentsQuery(req *pb.ListAssignmentsRequest) (*pb.ListAssignmentsRequest, error) {
	var v violations
	v.check("ring", validateRing(req.GetRing()))
	v.optional("group", req.GetGroup(), validation.IsDNS1123Subdomain)
	v.check("resource", required(req.GetResource(), validation.IsDNS1123Label))
	v.optional("namespace", req.GetNamespace(), validation.IsDNS1123Label)
	v.check("shard", validation.IsValidLabelValue(req.GetShard()))

	asked := proto.CloneOf(req)
	asked.PageSize = v.pageSize(req.GetPageSize(), defaultAssignments, maxAssignments)
	asked.PageToken = v.continueToken(req)

	for _, state := range req.GetStates() {
		if _, known := pb.AssignmentState_name[int32(state)]; !known {
			v.add("states", "%d is not a state that this server knows", state)
		}
	}

	if slices.Contains(req.GetStates(), pb.AssignmentState_ASSIGNMENT_STATE_UNSPECIFIED) {
		asked.States = nil
	}

	return asked, v.err()
}

// continueToken returns the continue token of the API server in a page token, which begins with the digest of its
// request: the request must be the same as before.
func (v *violations) continueToken(req *pb.ListAssignmentsRequest) (next string) {
	was, next, _ := strings.Cut(req.GetPageToken(), "/")

	switch {
	case req.GetPageToken() == "":
	case next == "":
		v.add("page_token", "must be the next_page_token of an earlier answer")
	case was != digest(req):
		v.add("page_token", "belongs to another request: change only the page token of a request, or begin with the first "+
			"page")
	}

	return next
}

// digest returns a digest of the request without its page token.
func digest(req *pb.ListAssignmentsRequest) string {
	all := proto.CloneOf(req)
	all.PageToken = ""

	wire, _ := proto.MarshalOptions{Deterministic: true}.Marshal(all) // the message was decoded from this form
	sum := sha256.Sum256(wire)

	return hex.EncodeToString(sum[:8])
}

// namespaces caches, for one question, which namespaces a ring covers. It lists them only if the name of one is not
// sufficient to decide. It is not safe for concurrent use.
type namespaces struct {
	ring    rings.Ring
	objects *rings.Objects

	known  map[string]bool
	listed bool // all namespaces that are not in known are not covered
}

// covers reports whether the ring shards objects in the namespace. Empty: cluster-scoped objects.
func (n *namespaces) covers(ctx context.Context, name string) (bool, error) {
	covered, known := n.known[name]
	if known || n.listed && name != "" {
		return covered, nil
	}

	if coverage := n.ring.Covers(name, nil); coverage != rings.Unknown {
		n.known[name] = coverage == rings.Covered
		return n.known[name], nil
	}

	err := n.objects.Pages(ctx, rings.Namespaces, n.ring.Selector(), func(items []metav1.PartialObjectMetadata) error {
		for i := range items {
			n.known[items[i].Name] = true
		}

		return nil
	})
	n.listed = err == nil

	return n.known[name], err
}
