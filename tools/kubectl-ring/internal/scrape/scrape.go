// Package scrape reads the metrics that processes serve over HTTP: at URLs, or in pods through the API server.
//
// The credentials of the kubeconfig are for the API server alone: [URLs] send none, or the token of a file, to servers that are verified.
// Answers are bounded in size and time. Redirects are not followed, because a token would follow them.
package scrape

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/advise"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

const (
	// maxPage is the maximum size of a page, in bytes. A process with 100,000 series stays below.
	maxPage = 32 << 20
	// Timeout is the default of the time for reading a page.
	Timeout = 20 * time.Second
	// parallel is how many pages are read at a time.
	parallel = 8
	// accept asks for protocol buffers, which have native histograms, or else for text.
	accept = string(expfmt.FmtProtoDelim) + `;q=0.7,` + string(expfmt.FmtText) + `;q=0.3`
)

// Target is a process whose metrics can be read.
type Target struct {
	// Name is the process for people.
	Name string
	// CPULimit is how many cores the process may use, and MemoryLimit how many bytes. 0: unknown.
	CPULimit, MemoryLimit float64

	// get returns the page.
	get func(ctx context.Context) (*answer, error)
}

// answer is the answer of a server.
type answer struct {
	code   int
	header http.Header
	body   []byte
}

// Reader reads pages.
type Reader struct {
	// Timeout limits the time for one page. Not above 0: [Timeout].
	Timeout time.Duration
	// Clock tells when a page was read.
	Clock clock.PassiveClock
}

// Result is what became of reading a page.
type Result struct {
	// Page is the page. Nil: it cannot be read.
	Page advise.Page
	// At is when the answer was complete.
	At time.Time
	// Err is why it cannot be read.
	Err error
}

// Read reads the page of each target, several at a time, and returns the results in their order.
func (r Reader) Read(ctx context.Context, targets []Target) []Result {
	results := make([]Result, len(targets))
	slots := make(chan struct{}, parallel)

	var readers sync.WaitGroup

	for i := range targets {
		slots <- struct{}{}

		readers.Go(func() {
			defer func() { <-slots }()

			page, err := r.read(ctx, &targets[i])
			results[i] = Result{page, r.Clock.Now(), err}
		})
	}
	readers.Wait()

	return results
}

func (r Reader) read(ctx context.Context, target *Target) (advise.Page, error) {
	timeout := r.Timeout
	if timeout <= 0 {
		timeout = Timeout
	}

	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	got, err := target.get(ctx)

	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, failure.New("try again with a longer --request-timeout", "read the metrics of %s: no answer within %s", target.Name, timeout)
	case err != nil:
		return nil, failure.In("read the metrics of "+target.Name, err)
	}

	page, err := parse(got)

	return page, failure.In("read the metrics of "+target.Name, err)
}

// limited reads a body, of at most maxPage bytes.
func limited(body io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(body, maxPage+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}

	if len(data) > maxPage {
		return nil, failure.New("check that it is the metrics page of a controller", "the answer is longer than %d MiB", maxPage>>20)
	}

	return data, nil
}

// parse returns the metric families of an answer.
func parse(got *answer) (advise.Page, error) {
	if got.code != http.StatusOK {
		return nil, refused(got)
	}

	format := expfmt.ResponseFormat(got.header)
	if format.FormatType() == expfmt.TypeUnknown {
		return nil, failure.New("check the path of the page, which is /metrics for most programs",
			"the answer is no metrics page: its Content-Type is %q", got.header.Get("Content-Type"))
	}

	page := advise.Page{}
	decoder := expfmt.NewDecoder(bytes.NewReader(got.body), format)

	for {
		family := &dto.MetricFamily{}

		switch err := decoder.Decode(family); {
		case errors.Is(err, io.EOF):
			return page, nil
		case err != nil:
			return nil, failure.New("check the path of the page, which is /metrics for most programs", "the answer is no metrics page: %w", err)
		}

		if !model.UTF8Validation.IsValidMetricName(family.GetName()) {
			return nil, failure.New("check the path of the page", "the answer is no metrics page: %q is no name of a metric", family.GetName())
		}

		page[family.GetName()] = family
	}
}

// refused returns the error about an answer that is no page.
func refused(got *answer) error {
	const most = 200 // bytes of the answer

	text := bytes.TrimSpace(got.body)
	if len(text) > most {
		text = append(text[:most:most], "..."...)
	}

	err := failure.New("", "the server answered %d %s: %s", got.code, http.StatusText(got.code), text)

	switch {
	case got.code == http.StatusUnauthorized || got.code == http.StatusForbidden:
		err.Do = "the metrics are protected: name a file with a token that may get the URL /metrics, with --metrics https://... --token-file FILE. " +
			"For pods, use kubectl port-forward, and --metrics with the local port"
	case got.code == http.StatusNotFound:
		err.Do = "check the path of the page (--path for pods), which is /metrics for most programs"
	case got.code == http.StatusBadRequest && bytes.Contains(got.body, []byte("HTTPS")):
		err.Do = "the server uses TLS: use https (--scheme https for pods)"
	case got.code/100 == http.StatusMultipleChoices/100:
		err.Do = "redirects are not followed: name " + got.header.Get("Location") + " if you trust it"
	default:
		err.Do = "check that it is the metrics page of a controller, and look at the log of the server"
	}

	return err
}
