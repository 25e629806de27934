package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// LocateAll implements the method of the same name. It reads the next question after it has sent the previous answer,
// so that a client that does not read answers cannot fill the memory of the server.
func (s *Service) LocateAll(stream grpc.BidiStreamingServer[pb.LocateAllRequest, pb.LocateAllResponse]) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}

		if err != nil {
			return err //nolint:wrapcheck // a status already
		}

		res, err := s.locateOne(stream.Context(), req)
		if err != nil {
			return err
		}

		if err := stream.Send(res); err != nil {
			return err //nolint:wrapcheck // the stream has ended
		}
	}
}

// locateOne answers one question of a stream. An error ends the stream.
func (s *Service) locateOne(ctx context.Context, req *pb.LocateAllRequest) (*pb.LocateAllResponse, error) {
	res := &pb.LocateAllResponse{Id: req.GetId()}

	var (
		v       violations
		located *pb.LocateResponse
	)

	if len(req.GetId()) > maxID {
		v.add("id", "must have at most %d bytes", maxID)
	}

	if req.GetQuestion() == nil {
		v.add("question", "must be set")
	}

	err := v.err()
	if err == nil {
		located, err = s.Locate(ctx, req.GetQuestion())
	}

	switch {
	case err == nil:
		res.Result = &pb.LocateAllResponse_Answer{Answer: located}
	case ctx.Err() != nil:
		return nil, err
	default:
		res.Result = &pb.LocateAllResponse_Error{Error: locateErrorOf(s.statusOf(ctx, err))}
	}

	return res, nil
}

// locateErrorOf converts a status to a part of an answer.
func locateErrorOf(st *status.Status) *pb.LocateError {
	e := &pb.LocateError{Code: int32(st.Code()), Message: st.Message()}

	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			e.Reason = d.GetReason()
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				e.Violations = append(e.Violations, v.GetField()+": "+v.GetDescription())
			}
		}
	}

	return e
}

// question is the question where an object belongs.
type question struct {
	// object is the object in question. It does not have to exist.
	object rings.Reference
	// owner is the object that controls it. Nil: none was named. Its namespace is ignored.
	owner *rings.Reference
	// labels are those of the object, or of its owner if it follows one. They are used only if a label is the key, or the
	// ring selects objects by labels. Empty: they are read.
	labels map[string]string
	// next is the number of next shards: those that would own the object if the shards before them failed.
	next int
}

// Locate implements the method of the same name. The answer has at least one location, one per ring that shards the
// object, sorted by the name of the ring. If the request names a ring, it asks only that ring.
func (s *Service) Locate(ctx context.Context, req *pb.LocateRequest) (*pb.LocateResponse, error) {
	q, err := questionOf(req)
	if err != nil {
		return nil, err
	}

	asked, err := s.Rings.Select(ctx, req.GetRing())
	if err != nil {
		return nil, err
	}

	var (
		res      pb.LocateResponse
		refusals []string
	)

	for _, r := range asked {
		location, err := s.locateIn(ctx, r, q)

		switch {
		case errors.Is(err, rings.ErrNotAdded) && req.GetRing() == "":
			refusals = append(refusals, strings.TrimPrefix(err.Error(), rings.ErrNotAdded.Error()+": "))
		case err != nil:
			return nil, err
		default:
			res.Locations = append(res.Locations, location)
		}
	}

	if len(res.GetLocations()) == 0 {
		return nil, notShardedAtAll(refusals)
	}

	return &res, nil
}

// maxRefusals is the maximum number of rings in an error message.
const maxRefusals = 10

func notShardedAtAll(refusals []string) error {
	if more := len(refusals) - maxRefusals; more > 0 {
		refusals = append(refusals[:maxRefusals:maxRefusals], fmt.Sprintf("and %d more rings", more))
	}

	return fmt.Errorf("%w: %s", rings.ErrNotAdded, cmp.Or(strings.Join(refusals, "; "), "there is no ring"))
}

// locateIn answers for one ring.
func (s *Service) locateIn(ctx context.Context, r rings.Ring, q question) (*pb.Location, error) {
	if err := r.CheckActive(); err != nil {
		return nil, err
	}

	resource, role, err := r.Find(q.object)
	if err != nil {
		return nil, err
	}

	if err := q.object.CheckNamespace(resource); err != nil {
		return nil, err
	}

	coverage := r.Covers(q.object.Namespace, nil)
	if coverage == rings.NotCovered {
		return nil, fmt.Errorf("%w: ring %s does not cover namespace %s (its namespaceSelector is %q)",
			rings.ErrNotAdded, r.Name, q.object.Namespace, r.Selector())
	}

	keyed, id, err := keyedBy(r, q, resource, role)
	if err != nil {
		return nil, err
	}

	meta := &metav1.ObjectMeta{Namespace: id.Namespace, Name: id.Name, Labels: q.labels}

	if keyed.NeedsLabels() && len(q.labels) == 0 {
		obj, err := s.Rings.Objects.Get(ctx, keyed.GVR, id)

		switch {
		case errors.Is(err, rings.ErrNotFound):
			return nil, fmt.Errorf("%w: %s, and %s does not exist; add the labels that it would have", rings.ErrLabelsNeeded,
				why(keyed), id)
		case err != nil:
			return nil, err
		}

		meta.Labels = obj.Labels
	}

	if !keyed.Selects(meta.Labels) {
		return nil, fmt.Errorf("%w: %s is not selected by spec.objectSelector of ring %s, %q", rings.ErrNotAdded, id, r.Name,
			keyed.Selector)
	}

	return r.Locate(role, coverage, rings.KeyOf(keyed, meta), q.next), nil
}

// why says why labels of objects of the resource are needed.
func why(keyed resources.Resource) string {
	if keyed.Key.Label != "" {
		return fmt.Sprintf("the key of %s is %s", keyed.GroupResource(), keyed.Key)
	}

	return fmt.Sprintf("the ring selects %s by %q", keyed.GroupResource(), keyed.Selector)
}

// keyedBy returns the object whose key counts: the object in question, or its owner.
func keyedBy(
	r rings.Ring, q question, resource resources.Resource, role resources.Role,
) (keyed resources.Resource, id types.NamespacedName, err error) {
	if role == resources.Main {
		return resource, types.NamespacedName{Namespace: q.object.Namespace, Name: q.object.Name}, nil
	}

	if q.owner == nil {
		return keyed, id, fmt.Errorf("%w: in ring %s, %s are at the shards of their owners; name the owner, that is, the "+
			"owner reference with controller=true", rings.ErrOwnerNeeded, r.Name, q.object.TypeName())
	}

	owner, ownerRole, ok := rings.Lookup(r.Resources, *q.owner)
	if !ok || ownerRole != resources.Main {
		return keyed, id, fmt.Errorf("%w: ring %s does not list the owner's %s as a main resource; it lists %s",
			rings.ErrNotAdded, r.Name, q.owner.TypeName(), r.Listed())
	}

	id.Name = q.owner.Name

	switch {
	case owner.Namespaced && !resource.Namespaced:
		return keyed, id, rings.Invalid("owner", "must be cluster-scoped, because the object "+
			"is; "+owner.GroupResource().String()+" have a namespace")
	case owner.Namespaced:
		id.Namespace = q.object.Namespace
	}

	return owner, id, nil
}
