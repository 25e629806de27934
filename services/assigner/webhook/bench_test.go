package webhook_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// noop is the floor: a webhook that does what every mutating webhook has to do, and adds a constant label.
func noop(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}

	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		panic(err)
	}

	review.Response = &admissionv1.AdmissionResponse{
		UID:       review.Request.UID,
		Allowed:   true,
		PatchType: ptr.To(admissionv1.PatchTypeJSONPatch),
		Patch:     []byte(`[{"op":"add","path":"/metadata/labels","value":{"shard":"a"}}]`),
	}
	review.Request = nil

	answer, err := json.Marshal(review)
	if err != nil {
		panic(err)
	}

	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer)
}

// sized is a review of an object of about the given size in bytes, which a Pod creates.
func sized(n int) string {
	return strings.NewReplacer(
		`"data":{"k":"v"}`, `"data":{"k":"`+strings.Repeat(`some line of text\n`, n/19)+`"}`,
		`{"username":"admin","groups":["system:masters"]}`,
		`{"username":"system:serviceaccount:default:author","uid":"b7b5a3e2-9a0f-4c61-a3f5-6dd1de6a5d2c",`+
			`"groups":["system:serviceaccounts","system:serviceaccounts:default","system:authenticated"],`+
			`"extra":{"authentication.kubernetes.io/credential-id":["JTI=5a1c9d1c-3c0e-4a67-8a4b-0f6a0a7b1f57"],`+
			`"authentication.kubernetes.io/pod-name":["author-7d4b9c6f5-x2x9z"]}}`,
		`"apiVersion":"meta.k8s.io/v1"`, `"apiVersion":"meta.k8s.io/v1","fieldManager":"author"`,
	).Replace(reviewOf(plain))
}

// sink is a ResponseWriter without cost.
type sink struct{ header http.Header }

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(p []byte) (int, error) { return len(p), nil }
func (s *sink) WriteHeader(int)             {}

// measured is a handler by its name.
type measured struct {
	name    string
	handler http.Handler
}

func handlers(b *testing.B) []measured {
	b.Helper()

	all := []measured{{"noop", http.HandlerFunc(noop)}}

	for _, n := range []int{3, 50, 500} {
		h, _ := newHandler(b, fixedRings{ring: newRing(n)})
		all = append(all, measured{fmt.Sprintf("assigner/shards=%d", n), h})
	}

	return all
}

// BenchmarkHandler measures the handler alone, in a goroutine of its own for each call, like those of a server.
func BenchmarkHandler(b *testing.B) {
	for _, size := range []int{0, 2000, 20000} {
		body := sized(size)

		for _, m := range handlers(b) {
			b.Run(fmt.Sprintf("object=%dB/%s", size, m.name), func(b *testing.B) {
				b.ReportAllocs()

				r := post(contract.WebhookPath(ring), "")
				w := &sink{header: http.Header{}}
				reader := strings.NewReader(body)
				r.ContentLength = int64(len(body))

				done := make(chan struct{})

				for b.Loop() {
					reader.Reset(body)
					r.Body = io.NopCloser(reader)

					go func() {
						m.handler.ServeHTTP(w, r)
						done <- struct{}{}
					}()
					<-done
				}
			})
		}
	}
}

// Whatever bytes a body has, the answer is an error of HTTP, which the API server ignores, or allows the write. No
// decision panics, and an object gets nothing but the label of the ring with the name of a shard.
func FuzzReview(f *testing.F) {
	f.Add([]byte(reviewOf(plain)), ring)
	f.Add([]byte(reviewOf(`{"name":"a","labels":null,"ownerReferences":[{"controller":true}]}`)), ring)
	f.Add([]byte(reviewOf(`{"name":{"a":1},"labels":[]}`)), "")
	f.Add([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"1"}}`), "a/b")
	f.Add([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"1","operation":"UPDATE",`+
		`"resource":{"resource":"configmaps"},"object":{"metadata":{"labels":{"a":"b"}}},"oldObject":{"metadata":{}}}}`),
		ring)
	f.Add([]byte("\x00\xff{"), ring)
	f.Add([]byte(reviewOf(`{"name":"a","labels":{"drain.alpha.sharding.timebertt.dev/clusterring-50d858e0-example":""}}`)),
		ring)
	f.Add([]byte(reviewOf(`{"generateName":"a-","labels":{"a":1},"ownerReferences":[{"controller":true,"apiVersion":"///"}]}`)), ring)
	f.Add([]byte(strings.Replace(reviewOf(plain), "CREATE", "UPDATE", 1)), ring)
	f.Add([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"\u0000\ud800"}}`), ring)

	h, _ := newHandler(f, fixedRings{ring: newRing(3)})

	f.Fuzz(func(t *testing.T, body []byte, name string) {
		r := post(contract.WebhookPathPrefix, string(body))
		r.URL.Path += name

		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)

		if w.Code != http.StatusOK {
			require.Equal(t, http.StatusBadRequest, w.Code)
			return
		}

		var answer admissionv1.AdmissionReview
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
		require.NotNil(t, answer.Response)
		require.True(t, answer.Response.Allowed)

		if answer.Response.Patch == nil {
			return
		}

		var patch []struct{ Op, Path string }
		require.NoError(t, json.Unmarshal(answer.Response.Patch, &patch))
		require.NotEmpty(t, patch)
		require.Equal(t, "add", patch[0].Op)

		for _, op := range patch {
			require.True(t, strings.HasPrefix(op.Path, "/metadata/labels"), op.Path)
		}
	})
}
