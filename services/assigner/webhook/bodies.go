package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/clusterring/clusterring/services/internal/quota"
)

const (
	// maxBody is more than an API server sends: it accepts objects of at most 3 MiB, and an update has two.
	maxBody = 8 << 20
	// smallBody is up to what size a body counts as small. Nearly all are.
	smallBody = 64 << 10
	// smallBodies and largeBodies are how many bytes small and large bodies may have in memory at a time, as read and as decoded, so that
	// callers cannot fill the memory of the process (256 MiB as shipped). Large bodies take none of the room of small ones.
	smallBodies, largeBodies = 16 << 20, 32 << 20
	// decoded is how many times its size a body may have in memory: if it consists of labels with short keys. Beyond maxDecoded, it
	// has more labels than are decoded, and only its text is there, up to textCopies times.
	decoded, textCopies, maxDecoded = 13, 3, 4 << 20
	// maxCalls and maxCallsEach are how many calls there are at a time, in all and from one address, including those that wait.
	maxCalls, maxCallsEach = 512, 160
	// patience is how long a body may take, and how long a call waits for room. API servers wait for an answer for 5 s.
	patience = 5 * time.Second
)

// Bodies bounds the calls at a time, and the memory of their bodies. Create it with [NewBodies]. It is safe for concurrent use.
type Bodies struct {
	calls        *quota.Quota
	small, large *semaphore.Weighted
}

// NewBodies returns an empty budget.
func NewBodies() *Bodies {
	return &Bodies{
		calls: quota.New(maxCalls, maxCallsEach), small: semaphore.NewWeighted(smallBodies), large: semaphore.NewWeighted(largeBodies),
	}
}

// reserve waits for the room that the request may need, and returns how to give it back. It returns an error if there is none in time.
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

// read takes the body of a request. A status other than 200 says what is wrong with the request. The caller must call release in the
// end, which is never nil.
func (h *Handler) read(w http.ResponseWriter, r *http.Request, buf *bytes.Buffer) (release func(), status int, msg string) {
	release = func() {}

	if status, msg = acceptable(w, r); status != http.StatusOK {
		return release, status, msg
	}

	release, err := h.Bodies.reserve(r.Context(), r)
	if err != nil {
		return func() {}, http.StatusServiceUnavailable, "too many bodies are being read"
	}

	if n := r.ContentLength; n > 0 {
		buf.Grow(int(n) + bytes.MinRead) // ReadFrom wants that much room to see the end
	}

	// Not every writer supports deadlines. Those of servers do.
	deadline := http.NewResponseController(w)
	_ = deadline.SetReadDeadline(h.Clock.Now().Add(patience))
	_, err = buf.ReadFrom(http.MaxBytesReader(w, r.Body, maxBody))
	_ = deadline.SetReadDeadline(time.Time{})

	var tooLarge *http.MaxBytesError

	switch {
	case errors.As(err, &tooLarge):
		return release, http.StatusRequestEntityTooLarge, "the body is larger than 8 MiB"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return release, http.StatusRequestTimeout, "the body took longer than " + patience.String()
	case err != nil:
		return release, http.StatusBadRequest, "the body could not be read"
	default:
		return release, http.StatusOK, ""
	}
}
