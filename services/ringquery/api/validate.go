package api

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// Limits of requests, as the .proto files document them.
const (
	defaultPageSize   = 50
	maxPageSize       = 500
	defaultNextShards = 2
	maxNextShards     = 10
	maxID             = 256
	maxLabels         = 100
	// maxName is the longest name of any object.
	maxName = validation.DNS1123SubdomainMaxLength
)

// violations collects the errors in a request.
type violations rings.InvalidError

func (v *violations) add(field, format string, args ...any) {
	*v = append(*v, &errdetails.BadRequest_FieldViolation{Field: field, Description: fmt.Sprintf(format, args...)})
}

// check adds the messages of a validation function of Kubernetes.
func (v *violations) check(field string, messages []string) {
	if len(messages) > 0 {
		v.add(field, "%s", strings.Join(messages, "; "))
	}
}

// optional checks a value that may be empty.
func (v *violations) optional(field, value string, validate func(string) []string) {
	if value != "" {
		v.check(field, validate(value))
	}
}

// required checks a value that must not be empty, and at most as long as any name.
func required(value string, validate func(string) []string) []string {
	switch {
	case value == "":
		return []string{"must be set"}
	case len(value) > maxName:
		return []string{validation.MaxLenError(maxName)}
	default:
		return validate(value)
	}
}

// err returns nil if there are no violations.
func (v *violations) err() error {
	if len(*v) == 0 {
		return nil
	}

	return rings.InvalidError(*v)
}

// page returns the start and the size of the requested page. A page token is the name of the last ring before it.
func page(req *pb.ListRingsRequest) (after string, limit int, err error) {
	var v violations

	limit = int(v.pageSize(req.GetPageSize(), defaultPageSize, maxPageSize))

	if after = req.GetPageToken(); after != "" && len(validateRing(after)) > 0 {
		v.add("page_token", "must be the next_page_token of an earlier answer")
	}

	return after, limit, v.err()
}

// pageSize returns the size of a page: the default if none is requested, and at most the maximum.
func (v *violations) pageSize(asked, byDefault, greatest int32) int32 {
	if asked < 0 {
		v.add("page_size", "must not be negative")
	}

	return min(cmp.Or(asked, byDefault), greatest)
}

// checkName validates the name of the requested ring.
func checkName(ring string) error {
	var v violations
	v.check("name", validateRing(ring))

	return v.err()
}

// questionOf returns the question of a valid request.
func questionOf(req *pb.LocateRequest) (question, error) {
	var v violations
	v.optional("ring", req.GetRing(), validateRing)

	q := question{object: v.object(req.GetObject()), labels: req.GetLabels(),
		next: int(ptr.Deref(req.NextShards, defaultNextShards))}

	if o := req.GetOwner(); o != nil {
		q.owner = &rings.Reference{Group: o.GetGroup(), Kind: o.GetKind(), Resource: o.GetResource(), Name: o.GetName()}
		v.reference("owner", *q.owner)
	}

	if len(q.labels) > maxLabels {
		v.add("labels", "must be at most %d", maxLabels)
	}

	for _, name := range slices.Sorted(maps.Keys(q.labels)) {
		v.check(fmt.Sprintf("labels[%s]", name), append(validation.IsQualifiedName(name),
			validation.IsValidLabelValue(q.labels[name])...))
	}

	if q.next < 0 || q.next > maxNextShards {
		v.add("next_shards", "must be from 0 to %d", maxNextShards)
	}

	return q, v.err()
}

// object returns the object in question.
func (v *violations) object(o *pb.ObjectReference) rings.Reference {
	if o == nil {
		v.add("object", "must be set")
		return rings.Reference{}
	}

	ref := rings.Reference{
		Group: o.GetGroup(), Kind: o.GetKind(), Resource: o.GetResource(), Namespace: o.GetNamespace(), Name: o.GetName(),
	}
	v.reference("object", ref)

	return ref
}

func (v *violations) reference(field string, r rings.Reference) {
	v.optional(field+".group", r.Group, validation.IsDNS1123Subdomain)

	switch {
	case r.Kind == "" && r.Resource == "":
		v.add(field, "must name a kind or a resource")
	case r.Kind != "":
		v.check(field+".kind", validation.IsDNS1035Label(strings.ToLower(r.Kind)))
	default:
		v.check(field+".resource", validation.IsDNS1123Label(r.Resource))
	}

	v.optional(field+".namespace", r.Namespace, validation.IsDNS1123Label)
	v.check(field+".name", required(r.Name, content.IsPathSegmentName)) // what the names of all kinds have in common
}

// validateRing validates the name of a ring by the rules of the ClusterRing API.
func validateRing(name string) []string {
	if len(name) > validation.LabelValueMaxLength {
		return []string{validation.MaxLenError(validation.LabelValueMaxLength)}
	}

	return required(name, validation.IsDNS1123Subdomain)
}

// RingOf returns the name of the ring that a request is about, for authorization. It is empty if the request is about
// several rings, and if the name is not valid.
func RingOf(request any) string {
	var name string

	switch r := request.(type) {
	case *pb.LocateAllRequest:
		name = r.GetQuestion().GetRing()
	case interface{ GetRing() string }:
		name = r.GetRing()
	case interface{ GetName() string }:
		name = r.GetName()
	}

	if validateRing(name) != nil {
		return ""
	}

	return name
}
