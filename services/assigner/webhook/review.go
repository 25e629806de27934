package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/clusterring/clusterring/services/internal/admission"
)

// API version and kind of what is exchanged with the API server.
const (
	reviewVersion = "admission.k8s.io/v1"
	reviewKind    = "AdmissionReview"
)

// review is the part of an admission.k8s.io/v1 AdmissionReview that a decision depends on. Of the objects only metadata is
// decoded, and of that only what is used: objects are large, and this is what an admission call costs.
type review struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Request    *reviewRequest `json:"request"`
}

type reviewRequest struct {
	UID         types.UID           `json:"uid"`
	Operation   admission.Operation `json:"operation"`
	Resource    groupResource       `json:"resource"`
	SubResource string              `json:"subResource"`
	Name        string              `json:"name"`
	Namespace   string              `json:"namespace"`
	Object      *object             `json:"object"`
	OldObject   *object             `json:"oldObject"`
}

type groupResource struct {
	Group    string `json:"group"`
	Resource string `json:"resource"`
}

type object struct {
	Metadata metadata `json:"metadata"`
}

type metadata struct {
	Name            string                           `json:"name"`
	Namespace       string                           `json:"namespace"`
	Labels          bounded[map[string]string]       `json:"labels"`
	OwnerReferences bounded[[]metav1.OwnerReference] `json:"ownerReferences"`
}

// maxCommas is how many commas the labels or the owner references of an object may contain: those of 10,000 labels, or of 1,600 owner
// references with all their fields.
const maxCommas = 10_000

// bounded is a list or a map that is decoded only if it is not much larger in memory than its text. In a text, {} is an owner reference.
type bounded[T any] struct {
	value T
	// unread is true if the value has too many elements, or not the form of a T.
	unread bool
}

// UnmarshalJSON implements json.Unmarshaler. It never fails, so that the rest is still decoded.
func (b *bounded[T]) UnmarshalJSON(data []byte) error {
	*b = bounded[T]{unread: bytes.Count(data, []byte(",")) > maxCommas} // the last of several values counts
	if !b.unread {
		b.unread = kjson.UnmarshalCaseSensitivePreserveInts(data, &b.value) != nil
	}

	return nil
}

// maxUID is how many bytes the uid of a request may have, which the answer repeats. API servers use 36.
const maxUID = 128

// errNotReview says that a body is no AdmissionReview that could be answered.
var errNotReview = errors.New("body is not an " + reviewVersion + " " + reviewKind + " with a request")

// decode reads a review. Objects whose metadata does not have the form of metadata, or too many labels or owner references, are left out,
// for the write is not ours to judge; an error means that not even the request could be identified.
func decode(ring string, body []byte) (types.UID, *admission.Request, error) {
	if !utf8.Valid(body) { // each wrong byte would become three
		return "", nil, fmt.Errorf("%w: it is not UTF-8", errNotReview)
	}

	// A decoder that matches names regardless of case would take a field "Metadata" of a custom resource for metadata.
	var r review

	err := kjson.UnmarshalCaseSensitivePreserveInts(body, &r)
	if syntax, offset := kjson.SyntaxErrorOffset(err); syntax {
		return "", nil, fmt.Errorf("%w: at byte %d: %w", errNotReview, offset, err)
	}

	if r.APIVersion != reviewVersion || r.Kind != reviewKind || r.Request == nil || r.Request.UID == "" || len(r.Request.UID) > maxUID {
		return "", nil, errNotReview
	}

	req := &admission.Request{
		Ring:        ring,
		Operation:   r.Request.Operation,
		Resource:    schema.GroupResource(r.Request.Resource),
		SubResource: r.Request.SubResource,
	}

	// Any other error is a value of the wrong type, which the decoder has skipped.
	if err == nil && r.Request.Object.read() && r.Request.OldObject.read() {
		req.Object = r.Request.Object.of(r.Request)
		req.Old = r.Request.OldObject.of(r.Request)
	}

	return r.Request.UID, req, nil
}

// read reports whether all of an object was read.
func (o *object) read() bool {
	return o == nil || !o.Metadata.Labels.unread && !o.Metadata.OwnerReferences.unread
}

// of returns what a decision needs of an object. The request knows namespace and name as well, and an object that is
// being created may know neither.
func (o *object) of(r *reviewRequest) *admission.Object {
	if o == nil {
		return nil
	}

	m := &o.Metadata
	obj := &admission.Object{Name: m.Name, Namespace: m.Namespace, Labels: m.Labels.value, OwnerReferences: m.OwnerReferences.value}

	if obj.Name == "" {
		obj.Name = r.Name
	}

	if obj.Namespace == "" {
		obj.Namespace = r.Namespace
	}

	return obj
}

// response is the part of an AdmissionReview that an answer fills in.
type response struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Response   reviewResponse `json:"response"`
}

type reviewResponse struct {
	UID       types.UID `json:"uid"`
	Allowed   bool      `json:"allowed"`
	PatchType string    `json:"patchType,omitempty"`
	Patch     []byte    `json:"patch,omitempty"`
	Warnings  []string  `json:"warnings,omitempty"`
}

// encode writes the answer to a review. The write is always allowed.
func encode(uid types.UID, patch []byte, warning string) ([]byte, error) {
	r := response{APIVersion: reviewVersion, Kind: reviewKind, Response: reviewResponse{UID: uid, Allowed: true}}

	if len(patch) > 0 {
		r.Response.Patch, r.Response.PatchType = patch, "JSONPatch"
	}

	if warning != "" {
		r.Response.Warnings = []string{warning}
	}

	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}

	return body, nil
}
