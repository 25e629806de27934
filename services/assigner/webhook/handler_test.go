package webhook_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/assigner/webhook"
	"github.com/clusterring/clusterring/services/internal/admission"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
)

const ring = "example"

// fixedRings has one ring, and panics when it is asked for "broken".
type fixedRings struct {
	ring     *admission.Ring
	starting bool
}

func (f fixedRings) Synced() bool { return !f.starting }

func (f fixedRings) Ring(name string) *admission.Ring {
	switch name {
	case ring:
		return f.ring
	case "broken":
		return &admission.Ring{} // without facts, every decision panics
	default:
		return nil
	}
}

func newRing(shards int) *admission.Ring {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.AddSpecific(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
		schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		schema.GroupVersionResource{Version: "v1", Resource: "configmap"}, meta.RESTScopeNamespace)

	var leases []*coordinationv1.Lease

	for i := range shards {
		name := fmt.Sprintf("shard-%d", i)
		leases = append(leases, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{contract.LabelClusterRing: ring}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: new(name)},
		})
	}

	of := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: ring}}
	of.Spec.Resources = []v1alpha1.RingResource{{Resource: "configmaps"}}
	of.Status.Assignment = &v1alpha1.AssignmentStatus{
		Resources: []v1alpha1.AssignedResource{{Resource: "configmaps"}}}

	return admission.NewRing(admission.Facts{
		Ring: of, Resources: resources.Resolve(mapper, of.Spec), View: membership.NewView(ring, leases, nil),
	})
}

func newHandler(t testing.TB, rings webhook.Rings) (*webhook.Handler, *prometheus.Registry) {
	t.Helper()

	registry := prometheus.NewRegistry()

	for _, c := range webhook.Collectors() {
		if counter, is := c.(*prometheus.CounterVec); is {
			counter.Reset()
		}

		registry.MustRegister(c)
	}

	notices, _ := newNotices(t, clock.RealClock{})

	return &webhook.Handler{
		Rings: rings, Registered: func(context.Context, string, string) bool { return true },
		Bodies: webhook.NewBodies(), Notices: notices, Clock: clock.RealClock{}, Log: logr.Discard(),
	}, registry
}

// reviewOf is a review of the creation of an object with the given metadata.
func reviewOf(metadata string) string {
	return `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"705ab4f5-6393-11e8-b7cc-42010a800002",` +
		`"kind":{"group":"","version":"v1","kind":"ConfigMap"},"resource":{"group":"","version":"v1","resource":"configmaps"},` +
		`"name":"a","namespace":"default","operation":"CREATE","userInfo":{"username":"admin","groups":["system:masters"]},` +
		`"object":{"kind":"ConfigMap","apiVersion":"v1","metadata":` + metadata +
		`,"data":{"k":"v"}},"oldObject":null,"dryRun":false,` +
		`"options":{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1"}}}`
}

const plain = `{"name":"a","namespace":"default","creationTimestamp":null,"managedFields":[{"manager":"kubectl","operation":"Update"}]}`

func post(path, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, path+"?timeout=5s", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")

	return r
}

// labels are so many labels.
func labels(n int) string {
	all := map[string]string{}
	for i := range n {
		all[fmt.Sprintf("example.com/%d", i)] = "a"
	}

	text, _ := json.Marshal(all)

	return string(text)
}

// owners are so many references to owners that are no controllers, with all their fields.
func owners(n int) string {
	text, _ := json.Marshal(slices.Repeat([]metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: "a", UID: "a", Controller: new(false), BlockOwnerDeletion: new(true)},
	}, n))

	return string(text)
}

func TestAnswers(t *testing.T) {
	at := contract.WebhookPath(ring)

	for _, c := range []struct {
		what     string
		request  *http.Request
		starting bool
		outcome  admission.Outcome
		ring     string
		patched  bool
		warned   bool
	}{
		{what: "assigned", request: post(at, reviewOf(plain)), outcome: admission.Assigned, ring: ring, patched: true},
		{what: "field names differ in case only",
			request: post(at, reviewOf(`{"name":"a","Labels":{"`+contract.ShardLabel(ring)+`":"x"}}`)),
			outcome: admission.Assigned, ring: ring, patched: true},
		{what: "labelled", request: post(at, reviewOf(`{"name":"a","labels":{"`+contract.ShardLabel(ring)+`":"x"}}`)),
			outcome: admission.Labelled, ring: ring},
		{what: "labels are no map", request: post(at, reviewOf(`{"name":"a","labels":[1]}`)), outcome: admission.Undecodable,
			ring: ring, warned: true},
		{what: "a label is no string", request: post(at, reviewOf(`{"name":"a","labels":{"a":1}}`)),
			outcome: admission.Undecodable, ring: ring, warned: true},
		{what: "metadata is no object", request: post(at, reviewOf(`"x"`)), outcome: admission.Undecodable, ring: ring,
			warned: true},
		{what: "as many labels as may be", request: post(at, reviewOf(`{"name":"a","labels":`+labels(10_000)+`}`)),
			outcome: admission.Assigned, ring: ring, patched: true},
		{what: "too many labels", request: post(at, reviewOf(`{"name":"a","labels":`+labels(10_002)+`}`)),
			outcome: admission.Undecodable, ring: ring, warned: true},
		{what: "1,600 owners", request: post(at, reviewOf(`{"name":"a","ownerReferences":`+owners(1600)+`}`)),
			outcome: admission.Assigned, ring: ring, patched: true},
		{what: "too many owners", request: post(at, reviewOf(`{"name":"a","ownerReferences":`+owners(1700)+`}`)),
			outcome: admission.Undecodable, ring: ring, warned: true},
		{what: "empty owners", request: post(at, reviewOf(`{"name":"a","ownerReferences":[{}`+strings.Repeat(",{}",
			10_001)+`]}`)), outcome: admission.Undecodable, ring: ring, warned: true},
		{what: "labels twice", request: post(at, reviewOf(`{"name":"a","labels":{"a":"b"},"labels":{"a":"b"}}`)),
			outcome: admission.Undecodable, ring: ring, warned: true},
		{
			what: "too many labels before", outcome: admission.Undecodable, ring: ring, warned: true,
			request: post(at, strings.Replace(reviewOf(plain), `"oldObject":null`,
				`"oldObject":{"metadata":{"labels":`+labels(10_002)+`}}`, 1)),
		},
		{what: "unknown ring", request: post(contract.WebhookPath("made-up"), reviewOf(plain)),
			outcome: admission.UnknownRing, ring: "unknown", warned: true},
		{what: "no ring", request: post(contract.WebhookPathPrefix, reviewOf(plain)), outcome: admission.UnknownRing,
			ring: "unknown", warned: true},
		{what: "starting", request: post(contract.WebhookPath("made-up"), reviewOf(plain)), starting: true,
			outcome: admission.Starting, ring: "unknown"},
		{what: "a panic", request: post(contract.WebhookPath("broken"), reviewOf(plain)), outcome: admission.Failed,
			ring: "broken"},
	} {
		t.Run(c.what, func(t *testing.T) {
			h, registry := newHandler(t, fixedRings{ring: newRing(3), starting: c.starting})
			w := httptest.NewRecorder()
			h.ServeHTTP(w, c.request)

			require.Equal(t, http.StatusOK, w.Code, w.Body.String())
			require.Equal(t, "application/json", w.Header().Get("Content-Type"))

			var got admissionv1.AdmissionReview
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
			require.Equal(t, metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, got.TypeMeta)
			require.True(t, got.Response.Allowed)
			require.EqualValues(t, "705ab4f5-6393-11e8-b7cc-42010a800002", got.Response.UID)
			require.Equal(t, c.warned, len(got.Response.Warnings) > 0, got.Response.Warnings)

			if c.patched {
				require.Equal(t, ptr.To(admissionv1.PatchTypeJSONPatch), got.Response.PatchType)
				require.Contains(t, strings.ReplaceAll(string(got.Response.Patch), "~1", "/"), contract.ShardLabel(ring))
			} else {
				require.Nil(t, got.Response.PatchType)
				require.Empty(t, got.Response.Patch)
			}

			require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(fmt.Sprintf(`
				# HELP clusterring_assigner_admission_requests_total Admission requests answered, by ring and outcome. The ring is "unknown" if no ring has that name.
				# TYPE clusterring_assigner_admission_requests_total counter
				clusterring_assigner_admission_requests_total{outcome=%q,ring=%q} 1
			`, c.outcome, c.ring)), "clusterring_assigner_admission_requests_total"))
		})
	}
}

// broken fails while it is read.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestNoReview(t *testing.T) {
	at := contract.WebhookPath(ring)

	unreadable := post(at, "")
	unreadable.Body = io.NopCloser(broken{})

	for what, c := range map[string]struct {
		request *http.Request
		status  int
	}{
		"get":        {httptest.NewRequest(http.MethodGet, at, http.NoBody), http.StatusBadRequest},
		"no body":    {post(at, ""), http.StatusBadRequest},
		"unreadable": {unreadable, http.StatusBadRequest},
		"no JSON":    {post(at, "hello"), http.StatusBadRequest},
		"cut":        {post(at, reviewOf(plain)[:300]), http.StatusBadRequest},
		"no request": {post(at, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`),
			http.StatusBadRequest},
		"no uid": {post(at, strings.Replace(reviewOf(plain), `"uid"`, `"xuid"`, 1)), http.StatusBadRequest},
		"a long uid": {post(at, strings.Replace(reviewOf(plain), `"uid":"`, `"uid":"`+strings.Repeat("x", 128), 1)),
			http.StatusBadRequest},
		"another version": {post(at, strings.Replace(reviewOf(plain), "k8s.io/v1", "k8s.io/v1beta1", 1)),
			http.StatusBadRequest},
		"another kind": {post(at, strings.Replace(reviewOf(plain), "AdmissionReview", "ConversionReview", 1)),
			http.StatusBadRequest},
		"too large":         {post(at, strings.Repeat(" ", 8<<20+1)), http.StatusRequestEntityTooLarge},
		"a number is given": {post(at, "1"), http.StatusBadRequest},
	} {
		t.Run(what, func(t *testing.T) {
			h, registry := newHandler(t, fixedRings{ring: newRing(3)})
			w := httptest.NewRecorder()
			h.ServeHTTP(w, c.request)

			require.Equal(t, c.status, w.Code, w.Body.String())
			require.NotEmpty(t, w.Body.String())
			require.Equal(t, 1, testutil.CollectAndCount(registry, "clusterring_assigner_admission_errors_total"))
			require.Equal(t, 0, testutil.CollectAndCount(registry, "clusterring_assigner_admission_requests_total"))
		})
	}
}

// deadlines records until when an answer may be written.
type deadlines struct {
	*httptest.ResponseRecorder

	until []time.Time
}

func (d *deadlines) SetWriteDeadline(until time.Time) error {
	d.until = append(d.until, until)

	return nil
}

// Everyone who does not read the answer would keep the room of the body for ever.
func TestAnswersHaveADeadline(t *testing.T) {
	h, _ := newHandler(t, fixedRings{ring: newRing(3)})
	began := h.Clock.Now()
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(w, post(contract.WebhookPath(ring), reviewOf(plain)))
	require.Equal(t, http.StatusOK, w.Code)
	require.Len(t, w.until, 2)
	require.WithinRange(t, w.until[0], began.Add(time.Second), began.Add(time.Minute))
	require.Zero(t, w.until[1], "the connection is used again")
}

// Everyone who does not know the path of a ring gets what every unknown path gets, before anything of the request is
// read.
func TestOnlyRegisteredPathsAreAnswered(t *testing.T) {
	h, registry := newHandler(t, fixedRings{ring: newRing(3)})
	known := contract.WebhookPath(ring) + "/secret"
	h.Registered = func(_ context.Context, of, path string) bool { return of == ring && path == known }

	unknown := httptest.NewRecorder()
	http.NewServeMux().ServeHTTP(unknown, post("/", ""))

	for _, path := range []string{contract.WebhookPath(ring), contract.WebhookPath(ring) + "/", known + "s", known + "/",
		contract.WebhookPath("made-up") + "/secret", contract.WebhookPathPrefix} {
		for _, method := range []string{http.MethodPost, http.MethodGet} {
			r := httptest.NewRequest(method, path, iotest.ErrReader(errors.New("the body should not be read")))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			require.Equal(t, unknown.Result(), w.Result(), path)
		}
	}

	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP clusterring_assigner_admission_errors_total HTTP requests that were answered with an error, by status code. 404: they were not sent to the registered path of a ring. Others: they were not admission reviews.
# TYPE clusterring_assigner_admission_errors_total counter
clusterring_assigner_admission_errors_total{code="404"} 12
`), "clusterring_assigner_admission_errors_total", "clusterring_assigner_admission_requests_total"))

	w := httptest.NewRecorder()
	h.ServeHTTP(w, post(known, reviewOf(plain)))
	require.Equal(t, http.StatusOK, w.Code)
}

// newNotices returns notices about the ring, and their events.
func newNotices(t testing.TB, clk clock.Clock) (*webhook.Notices, chan string) {
	t.Helper()

	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))

	recorder := events.NewFakeRecorder(1000)
	rings := fake.NewClientBuilder().WithScheme(scheme).
		WithObjects(&v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: ring}}).Build()

	return webhook.NewNotices(rings, recorder, clk), recorder.Events
}

// An event names who changes labels and one of the objects, and is not repeated for a while.
func TestNotices(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Unix(1, 0))
	notices, told := newNotices(t, clk)

	h, _ := newHandler(t, fixedRings{ring: newRing(3)})
	h.Notices = notices

	write := func(options, dryRun string) {
		body := strings.NewReplacer(
			`"CREATE"`, `"UPDATE"`, `"oldObject":null`,
			`"oldObject":{"metadata":{"labels":{"`+contract.ShardLabel(ring)+`":"shard-0"}}}`,
			`"dryRun":false`, `"dryRun":`+dryRun, `"options":{`, `"options":{`+options,
		).Replace(reviewOf(`{"name":"a","namespace":"default","labels":{"` + contract.ShardLabel(ring) + `":"shard-1"}}`))

		w := httptest.NewRecorder()
		h.ServeHTTP(w, post(contract.WebhookPath(ring), body))
		require.Contains(t, w.Body.String(), "was restored")
	}

	const rest = " changes or removes the label shard.alpha.sharding.timebertt.dev/clusterring-50d858e0-example, now " +
		"of configmaps default/a. " +
		"Only the ring changes it, so the assigner puts it back: leave the label out of manifests and backups"

	write(`"fieldManager":"argocd-controller",`, "true")
	require.Empty(t, told, "nothing was stored")

	for range 10 {
		write(`"fieldManager":"argocd-controller",`, "false")
	}

	require.Equal(t, "Warning LabelRestored argocd-controller"+rest, <-told)
	require.Empty(t, told)

	clk.Step(11 * time.Minute)
	write("", "null")
	require.Equal(t, "Warning LabelRestored admin"+rest, <-told)
}
