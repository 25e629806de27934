package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// readyTimeout limits the time until a process is ready, answerTimeout the time for one response.
	readyTimeout  = 60 * time.Second
	answerTimeout = 10 * time.Second
	readyPoll     = 50 * time.Millisecond
)

// Readiness is the readiness probe of a process.
type Readiness struct {
	// URL returns status 200 if the process is ready.
	URL string
	// Client sends the requests; nil means http.DefaultClient.
	Client *http.Client
	// Waiting, unless nil, is called with each response.
	Waiting func(answer string)
}

// AwaitReady waits at most a minute until the process is ready. The error is the cause of the end of ctx, or contains the last response.
func (p *Process) AwaitReady(ctx context.Context, r Readiness) error {
	answer := ""

	err := wait.PollUntilContextTimeout(ctx, readyPoll, readyTimeout, true, func(ctx context.Context) (bool, error) {
		if !p.Running() {
			return false, fmt.Errorf("it has ended: %w", p.End())
		}

		var ok bool

		ok, answer = r.Ask(ctx)
		if r.Waiting != nil {
			r.Waiting(answer)
		}

		return ok, nil
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}

	return fmt.Errorf("%s did not become ready (%s): %w", p.Name, answer, err)
}

// End returns how the process exited, as an error also after exit code 0.
func (p *Process) End() error {
	if err := p.Err(); err != nil {
		return err
	}

	return errors.New("exit status 0")
}

// Ask sends one request, and returns the response in one line: the failing checks, if it is a list of checks.
func (r Readiness) Ask(ctx context.Context) (ok bool, answer string) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL, http.NoBody)
	if err != nil {
		return false, err.Error()
	}

	client := r.Client
	if client == nil {
		client = http.DefaultClient
	}

	response, err := client.Do(request)
	if err != nil {
		return false, "no answer yet"
	}

	body, _ := io.ReadAll(response.Body)

	_ = response.Body.Close() // was only read
	if response.StatusCode == http.StatusOK {
		return true, "ready"
	}

	var failing []string

	for line := range strings.Lines(string(body)) {
		if check, fails := strings.CutPrefix(line, "[-]"); fails {
			failing = append(failing, strings.TrimSpace(check))
		}
	}

	if failing == nil {
		return false, strings.Join(strings.Fields(string(body)), " ")
	}

	return false, strings.Join(failing, ", ")
}
