// Package floor is a minimal admission webhook: it decodes a review from the API server, and answers with a patch that
// adds a constant label. The cost of a real webhook beyond this floor is the cost of its own work.
package floor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/utils/ptr"
)

const (
	// ReadyPath answers 200 once the webhook serves. Every other path is the webhook.
	ReadyPath = "/readyz"

	headerTimeout = 10 * time.Second
)

// Options configure the webhook.
type Options struct {
	// Address is the host and port to listen on.
	Address string
	// CertFile and KeyFile are PEM files.
	CertFile, KeyFile string
	// Label and Value are added to every object. Objects must have no labels, because the patch replaces them.
	Label, Value string
}

// Serve serves TLS, over HTTP/2 or HTTP/1.1, until ctx ends. It decodes and encodes the Kubernetes types with
// encoding/json, as most webhooks do.
func Serve(ctx context.Context, o Options) error {
	patch, err := json.Marshal([]map[string]any{{
		"op": "add", "path": "/metadata/labels", "value": map[string]string{o.Label: o.Value},
	}})
	if err != nil {
		return fmt.Errorf("encode the patch: %w", err)
	}

	mux := http.NewServeMux()
	mux.HandleFunc(ReadyPath, func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		answer, err := review(r.Body, patch)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer) // fails only if the client is gone
	})

	server := &http.Server{Addr: o.Address, Handler: mux, ReadHeaderTimeout: headerTimeout}

	defer context.AfterFunc(ctx, func() { _ = server.Close() })()

	if err := server.ListenAndServeTLS(o.CertFile, o.KeyFile); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the webhook: %w", err)
	}

	return nil
}

func review(in io.Reader, patch []byte) ([]byte, error) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(in).Decode(&review); err != nil {
		return nil, fmt.Errorf("decode the review: %w", err)
	}

	if review.Request == nil {
		return nil, errors.New("decode the review: the request is missing")
	}

	review.Response = &admissionv1.AdmissionResponse{
		UID: review.Request.UID, Allowed: true, PatchType: ptr.To(admissionv1.PatchTypeJSONPatch), Patch: patch,
	}
	review.Request = nil

	return json.Marshal(review) //nolint:wrapcheck // cannot fail
}
