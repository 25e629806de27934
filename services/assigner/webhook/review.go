package webhook

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/semaphore"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/clusterring/clusterring/services/internal/admission"
	"github.com/clusterring/clusterring/services/internal/quota"
)

// API version and kind of what is exchanged with the API server.
const (
	reviewVersion = "admission.k8s.io/v1"
	reviewKind    = "AdmissionReview"
)

// review is the part of an admission.k8s.io/v1 AdmissionReview that a decision depends on. Of the objects only metadata
// is decoded, and of that only what is used: objects are large, and this is what an admission call costs.
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
	UserInfo    userInfo            `json:"userInfo"`
	Object      *object             `json:"object"`
	OldObject   *object             `json:"oldObject"`
	DryRun      bool                `json:"dryRun"`
	Options     struct {
		FieldManager string `json:"fieldManager"`
	} `json:"options"`
}

type groupResource struct {
	Group    string `json:"group"`
	Resource string `json:"resource"`
}

// userInfo is what tells which Pod writes. What authenticators add is decoded only if a decision may depend on it.
type userInfo struct {
	Username string          `json:"username"`
	Extra    json.RawMessage `json:"extra"`
}

// maxExtra is how many bytes of it are decoded.
const maxExtra = 64 << 10

// writer returns the Pod that the writer's token is bound to; empty if there is none.
func (u *userInfo) writer() types.NamespacedName {
	account, is := strings.CutPrefix(u.Username, "system:serviceaccount:")
	if !is || len(u.Extra) == 0 || len(u.Extra) > maxExtra {
		return types.NamespacedName{}
	}

	var extra struct {
		Pod bounded[[]string] `json:"authentication.kubernetes.io/pod-name"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(u.Extra, &extra); err != nil || extra.Pod.wrong ||
		len(extra.Pod.value) != 1 {
		return types.NamespacedName{}
	}

	namespace, _, _ := strings.Cut(account, ":")

	return types.NamespacedName{Namespace: namespace, Name: extra.Pod.value[0]}
}

type object struct {
	Metadata struct {
		Name            string                           `json:"name"`
		Namespace       string                           `json:"namespace"`
		Labels          bounded[map[string]string]       `json:"labels"`
		OwnerReferences bounded[[]metav1.OwnerReference] `json:"ownerReferences"`
	} `json:"metadata"`
}

// maxCommas is how many commas the labels or the owner references of an object, or the Pods of a writer, may contain:
// those of 10,000 labels, or of 1,600 owner references with all their fields. In a text, {} is an owner reference.
const maxCommas = 10_000

// bounded is a value that is decoded only if it is there once, and not too large.
type bounded[T any] struct {
	value T
	// known is set once the value was there, and wrong if it was not decoded.
	known, wrong bool
}

// UnmarshalJSON implements json.Unmarshaler. An error would end the decoding of everything else.
func (b *bounded[T]) UnmarshalJSON(text []byte) error {
	b.wrong = b.known || bytes.Count(text, []byte(",")) > maxCommas ||
		kjson.UnmarshalCaseSensitivePreserveInts(text, &b.value) != nil
	b.known = true

	return nil
}

// decoded reports whether an object, if there is one, has metadata of the form of metadata.
func (o *object) decoded() bool {
	return o == nil || !o.Metadata.Labels.wrong && !o.Metadata.OwnerReferences.wrong
}

// maxUID is how many bytes the uid of a request may have, which the answer repeats. API servers use 36.
const maxUID = 128

// errNotReview reports that a body is no AdmissionReview that could be answered.
var errNotReview = errors.New("body is not an " + reviewVersion + " " + reviewKind + " with a request")

// decode reads a review. Objects whose metadata does not have the form of metadata, or too many labels or owner
// references, are left out, for the write is not ours to judge; an error means that not even the request could be
// identified.
func decode(ring string, body []byte) (types.UID, *admission.Request, error) {
	if !utf8.Valid(body) { // each wrong byte would become three
		return "", nil, fmt.Errorf("%w: it is not UTF-8", errNotReview)
	}

	var all review

	// A decoder that matches names regardless of case would take a field "Metadata" of a custom resource for metadata.
	err := kjson.UnmarshalCaseSensitivePreserveInts(body, &all)
	if syntax, offset := kjson.SyntaxErrorOffset(err); syntax {
		return "", nil, fmt.Errorf("%w: at byte %d: %w", errNotReview, offset, err)
	}

	r := all.Request
	if all.APIVersion != reviewVersion || all.Kind != reviewKind || r == nil || r.UID == "" || len(r.UID) > maxUID {
		return "", nil, errNotReview
	}

	req := &admission.Request{
		Ring: ring, Operation: r.Operation, Resource: schema.GroupResource(r.Resource), SubResource: r.SubResource,
		Author: cmp.Or(r.Options.FieldManager, r.UserInfo.Username), DryRun: r.DryRun,
	}

	if err == nil && r.Object.decoded() && r.OldObject.decoded() { // an error is a value of the wrong type
		req.Object, req.Old = objectOf(r, r.Object), objectOf(r, r.OldObject)

		if req.Object != nil && len(req.Object.OwnerReferences) > 0 {
			req.Writer = r.UserInfo.writer()
		}
	}

	return r.UID, req, nil
}

// objectOf returns what a decision needs of an object. The request knows namespace and name as well, and an object that
// is being created may know neither.
func objectOf(r *reviewRequest, o *object) *metav1.ObjectMeta {
	if o == nil {
		return nil
	}

	m := &o.Metadata

	return &metav1.ObjectMeta{
		Name: cmp.Or(m.Name, r.Name), Namespace: cmp.Or(m.Namespace, r.Namespace), Labels: m.Labels.value,
		OwnerReferences: m.OwnerReferences.value,
	}
}

// encode writes the answer to a review. The write is always allowed.
func encode(uid types.UID, patch []byte, warning string) ([]byte, error) {
	r := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: reviewVersion, Kind: reviewKind},
		Response: &admissionv1.AdmissionResponse{UID: uid, Allowed: true},
	}

	if len(patch) > 0 {
		r.Response.Patch, r.Response.PatchType = patch, new(admissionv1.PatchTypeJSONPatch)
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

const (
	// maxBody is more than an API server sends: it accepts objects of at most 3 MiB, and an update has two.
	maxBody  = 8 << 20
	tooLarge = "the body is larger than 8 MiB"
	// smallBody is up to what size a body counts as small. Nearly all are.
	smallBody = 64 << 10
	// smallBodies and largeBodies are how many bytes small and large bodies may have in memory at a time, as read and as
	// decoded, so that callers cannot fill the memory of the process (256 MiB as shipped). Large bodies take none of the
	// room of small ones.
	smallBodies, largeBodies = 16 << 20, 32 << 20
	// decoded is how many times its size a body may have in memory: if it consists of labels with short keys. Beyond
	// maxDecoded, it has more labels than are decoded, and only its text is there, up to textCopies times.
	decoded, textCopies, maxDecoded = 13, 3, 4 << 20
	// maxCalls and maxCallsEach are how many calls there are at a time, in all and from one address, including those that
	// wait.
	maxCalls, maxCallsEach = 512, 160
	// patience is how long a body may take, and how long a call waits for room. API servers wait for an answer for 5 s.
	patience = 5 * time.Second
)

// Bodies bounds the calls at a time, and the memory of their bodies. Create it with [NewBodies]. It is safe for
// concurrent use.
type Bodies struct {
	calls        *quota.Quota
	small, large *semaphore.Weighted
}

// NewBodies returns an empty budget.
func NewBodies() *Bodies {
	return &Bodies{
		calls: quota.New(maxCalls, maxCallsEach), small: semaphore.NewWeighted(smallBodies),
		large: semaphore.NewWeighted(largeBodies),
	}
}

// reserve waits for the room that the request may need, and returns how to give it back. It returns an error if there
// is none in time.
func (b *Bodies) reserve(ctx context.Context, r *http.Request) (release func(), err error) {
	leave, ok := b.calls.Take(r.RemoteAddr, 1)
	if !ok {
		return nil, errors.New("too many calls")
	}

	room, n := b.large, r.ContentLength

	switch {
	case n < 0:
		n = largeBodies // a buffer that grows is copied
	case n <= smallBody:
		room, n = b.small, max(n, 1<<10)*decoded
	default:
		n = n*textCopies + maxDecoded
	}

	release = func() {
		room.Release(n)
		leave()
	}
	if room.TryAcquire(n) {
		return release, nil
	}

	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	if err := room.Acquire(ctx, n); err != nil {
		leave()
		return nil, fmt.Errorf("wait for room for the body: %w", err)
	}

	return release, nil
}

// read takes the body of a request, for which there is room. A status other than 200 says what is wrong with the
// request.
func (h *Handler) read(w http.ResponseWriter, r *http.Request, buf *bytes.Buffer) (status int, msg string) {
	if n := r.ContentLength; n > 0 {
		buf.Grow(int(n) + bytes.MinRead) // ReadFrom wants that much room to see the end
	}

	// Not every writer supports deadlines. Those of servers do.
	deadline := http.NewResponseController(w)
	_ = deadline.SetReadDeadline(h.Clock.Now().Add(patience))
	_, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, maxBody))
	_ = deadline.SetReadDeadline(time.Time{})

	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return http.StatusRequestEntityTooLarge, tooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return http.StatusRequestTimeout, "the body took longer than " + patience.String()
	case err != nil:
		return http.StatusBadRequest, "the body could not be read"
	default:
		return http.StatusOK, ""
	}
}
