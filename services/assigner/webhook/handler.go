// Package webhook answers the API server's admission calls.
//
// It reads an AdmissionReview, takes the ring's current state, asks package admission for a decision, and writes the
// answer. It sends no request, except for an object whose controller follows another object. It never refuses a write:
// it allows what it cannot understand. It answers only requests to the registered paths of rings. If it cannot even
// identify the request, it answers with an HTTP error, which the API server ignores because of the registration.
package webhook

import (
	"bytes"
	"context"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/admission"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Rings provides the current state of every ring.
type Rings interface {
	// Ring returns the state of a ring, or nil if no ring has that name. It must be fast and take no lock.
	Ring(name string) *admission.Ring
	// Synced reports whether all rings that existed when the process started are known.
	Synced() bool
}

// Handler serves the webhooks of all rings, under [contract.WebhookPathPrefix]. Its fields must be set before its first
// use. It is then safe for concurrent use.
type Handler struct {
	Rings Rings
	// Registered reports whether the path is that of the ring's webhook. It must be fast, and take the same time for all
	// wrong paths.
	Registered func(ctx context.Context, ring, path string) bool
	// Ancestors determine what an object follows if its controller is itself a controlled object.
	Ancestors resources.Ancestors
	// Bodies bounds the memory of bodies.
	Bodies *Bodies
	// Notices tells people about labels that were put back.
	Notices *Notices
	Clock   clock.PassiveClock
	Log     logr.Logger
}

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = deepen(0)

	ring, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, contract.WebhookPathPrefix), "/")
	// Before anything is read: everyone who does not know the path gets nothing.
	if !h.Registered(r.Context(), ring, r.URL.Path) {
		refuse(w, http.StatusNotFound, "404 page not found") // like http.NotFound
		return
	}

	start := h.Clock.Now()
	defer func() { duration.Observe(h.Clock.Since(start).Seconds()) }()

	buf, _ := buffers.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= 2*smallBody { // others are not kept for the next request
			buf.Reset()
			buffers.Put(buf)
		}
	}()

	if r.ContentLength > maxBody {
		refuse(w, http.StatusRequestEntityTooLarge, tooLarge)
		return
	}

	release, err := h.Bodies.reserve(r.Context(), r)
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, "too many bodies are being read")
		return
	}
	defer release()

	if status, msg := h.read(w, r, buf); status != http.StatusOK {
		refuse(w, status, msg)
		return
	}

	uid, req, err := decode(ring, buf.Bytes())
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}

	body, err := h.answer(r.Context(), uid, req)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}

	w.Header().Set("Content-Type", "application/json")

	// Nobody can keep the room of a body by not reading the answer.
	deadline := http.NewResponseController(w)
	_ = deadline.SetWriteDeadline(h.Clock.Now().Add(patience))
	_, _ = w.Write(body) // the caller is gone if this fails, and has been told to go on without us
	_ = deadline.SetWriteDeadline(time.Time{})
}

// deepen makes the stack of its goroutine as large as a review needs, at once. A stack is small at first, and is copied
// whenever it becomes too small. The deeper it is, the longer that takes: for a review, a tenth of the whole time.
//
//go:noinline
func deepen(i int) byte {
	var room [12 << 10]byte

	return room[i]
}

// answer decides about a request that could be identified, and counts what was decided.
func (h *Handler) answer(ctx context.Context, uid types.UID, req *admission.Request) ([]byte, error) {
	ring := h.Rings.Ring(req.Ring)
	a, patch := h.decide(ctx, ring, req)

	name := unknown
	if ring != nil {
		name = req.Ring
	}

	requests.WithLabelValues(name, string(a.Outcome)).Inc()

	if a.Outcome == admission.Restored {
		h.Notices.restored(ctx, req)
	}

	return encode(uid, patch, a.Warning)
}

// decide asks for the decision. A fault in it costs the object its label, not the user the write.
func (h *Handler) decide(
	ctx context.Context, ring *admission.Ring, req *admission.Request,
) (a admission.Answer, patch []byte) {
	defer func() {
		if p := recover(); p != nil {
			h.Log.Error(nil, "Decision failed; the write is allowed unchanged", "ring", req.Ring,
				"resource", req.Resource.String(), "panic", p, "stack", string(debug.Stack()))

			a, patch = admission.Answer{Outcome: admission.Failed}, nil
		}
	}()

	if ring == nil && !h.Rings.Synced() {
		return admission.Answer{Outcome: admission.Starting}, nil
	}

	a = admission.Decide(ctx, ring, req, h.Ancestors)
	if a.Shard == "" && a.Drain == "" {
		return a, nil
	}

	patch, err := ring.Patch(a, req.Object)
	if err != nil {
		h.Log.Error(err, "Patch cannot be encoded; the write is allowed unchanged", "ring", req.Ring)
		return admission.Answer{Outcome: admission.Failed}, nil
	}

	return a, patch
}

// refuse answers what is no admission review with an HTTP error.
func refuse(w http.ResponseWriter, status int, msg string) {
	refused.WithLabelValues(strconv.Itoa(status)).Inc()
	http.Error(w, msg, status)
}

// unknown stands for every ring that does not exist, so that callers cannot make up values of a label.
const unknown = "unknown"

var (
	requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "clusterring_assigner_admission_requests_total",
		Help: "Admission requests answered, by ring and outcome. The ring is \"unknown\" if no ring has that name.",
	}, []string{"ring", "outcome"})
	refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "clusterring_assigner_admission_errors_total",
		Help: "HTTP requests that were answered with an error, by status code. 404: they were not sent to the registered " +
			"path of a ring. Others: they were not admission reviews.",
	}, []string{"code"})
	duration = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "clusterring_assigner_admission_duration_seconds",
		Help:    "Time from the header of an admission request to its answer.",
		Buckets: prometheus.ExponentialBuckets(25e-6, 2, 16), // 25 µs to 0.8 s
	})
)

// Collectors returns the metrics of the package for the registry of the service.
func Collectors() []prometheus.Collector { return []prometheus.Collector{requests, refused, duration} }

// Forget removes the counters of a ring that is gone.
func Forget(ring string) { requests.DeletePartialMatch(prometheus.Labels{"ring": ring}) }

const (
	// noticeEvery is how often an event reports that labels of a ring are put back. A tool that changes them does so with
	// each of its writes.
	noticeEvery = 10 * time.Minute
	// maxNoticed is of how many rings it is remembered that there was an event.
	maxNoticed = 1000
)

// Notices tells people, by an event on the ring, who changes shard labels that the assigner puts back. Create it with
// [NewNotices]. It is safe for concurrent use.
type Notices struct {
	rings    client.Reader
	recorder events.EventRecorder
	recent   *cache.LRUExpireCache
}

// NewNotices returns what writes events with the recorder, about rings that it reads from rings, which should be a
// cache.
func NewNotices(rings client.Reader, recorder events.EventRecorder, clk clock.Clock) *Notices {
	return &Notices{rings: rings, recorder: recorder, recent: cache.NewLRUExpireCacheWithClock(maxNoticed, clk)}
}

// restored takes note of a write whose author lost a label that the assigner has put back. It does nothing for dry
// runs, or if there was an event lately.
func (n *Notices) restored(ctx context.Context, req *admission.Request) {
	if _, recent := n.recent.Get(req.Ring); recent || req.DryRun {
		return
	}

	n.recent.Add(req.Ring, nil, noticeEvery)

	ring := &v1alpha1.ClusterRing{}
	if err := n.rings.Get(ctx, client.ObjectKey{Name: req.Ring}, ring); err != nil {
		return // it has just been deleted
	}

	name := client.ObjectKey{Namespace: req.Object.Namespace, Name: req.Object.Name}
	n.recorder.Eventf(ring, nil, corev1.EventTypeWarning, "LabelRestored", "Restore",
		"%.128s changes or removes the label %s, now of %s %s. Only the ring changes it, so the assigner puts it back: "+
			"leave the label out of manifests and backups",
		req.Author, ring.LabelKeys().Shard, req.Resource, name)
}
