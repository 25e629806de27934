// Package development runs skaffold on a copy of the source, so that what it builds anew when a file is edited is nobody's work.
package development

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// parting is how long skaffold may take to clean up once it is interrupted, until it is killed.
const parting = 2 * time.Minute

// Skaffold says how skaffold is run.
type Skaffold struct {
	// Program is its path, or a name to be found in $PATH.
	Program string
	// Dir has the skaffold.yaml.
	Dir string
	// Repository is where images go, such as registry.example.com/clusterring; if empty, skaffold decides.
	Repository string
	// Cache is a file in which it remembers what it has built; it need not exist.
	Cache string
}

func (s Skaffold) command(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, s.Program, args...) //nolint:gosec // the caller says what to run
	command.Dir = s.Dir
	// It asks nobody anything, and looks for no newer version of itself.
	command.Env = append(os.Environ(), "SKAFFOLD_INTERACTIVE=false", "SKAFFOLD_UPDATE_CHECK=false", "SKAFFOLD_CACHE_FILE="+s.Cache)
	if s.Repository != "" {
		command.Env = append(command.Env, "SKAFFOLD_DEFAULT_REPO="+s.Repository)
	}
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = parting
	return command
}

// Run runs a command of skaffold and returns what it printed. The error of one that fails has its complaint.
func (s Skaffold) Run(ctx context.Context, args ...string) (string, error) {
	command := s.command(ctx, args...)
	var out, complaint bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaint
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("skaffold %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out.String(), nil
}

// Session is a skaffold dev that runs. It is safe for concurrent use.
type Session struct {
	interrupt context.CancelFunc
	done      chan struct{}
	err       error // once done is closed

	mu     sync.Mutex
	output bytes.Buffer
}

// ErrEnded is the error of a skaffold dev that is not there any more.
var ErrEnded = errors.New("skaffold dev has ended")

// Start starts skaffold dev with the given arguments. It is interrupted when the context ends.
func (s Skaffold) Start(ctx context.Context, args ...string) (*Session, error) {
	ctx, interrupt := context.WithCancel(ctx)
	session := &Session{interrupt: interrupt, done: make(chan struct{})}
	command := s.command(ctx, append([]string{"dev"}, args...)...)
	command.Stdout, command.Stderr = session, session
	if err := command.Start(); err != nil {
		interrupt()
		return nil, fmt.Errorf("start skaffold dev: %w", err)
	}
	go func() {
		defer close(session.done)
		defer interrupt()
		// That it was interrupted is no mishap.
		if err := command.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			session.err = fmt.Errorf("skaffold dev: %w; it printed last: %s", err, tail(session.Output()))
		}
	}()
	return session, nil
}

// Write takes what skaffold prints.
func (s *Session) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.Write(p) //nolint:wrapcheck // it never fails
}

// Output returns what skaffold has printed until now, the logs of the pods included.
func (s *Session) Output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.String()
}

// Watching returns an error until skaffold has deployed the given number of times and waits for the next edit. The error matches
// [ErrEnded] if that cannot be any more.
func (s *Session) Watching(times int) error {
	select {
	case <-s.done:
		return errors.Join(ErrEnded, s.err)
	default:
	}
	output := s.Output()
	if n := strings.Count(output, "Watching for changes..."); n < times {
		return fmt.Errorf("skaffold dev has deployed %d times, not %d; it printed last: %s", n, times, tail(output))
	}
	return nil
}

// Interrupt does what Ctrl-C does, and returns when skaffold has ended: it cleans up before. The error says that it ended in another
// way than it should.
func (s *Session) Interrupt() error {
	s.interrupt()
	<-s.done
	return s.err
}

// tail returns the last of what was printed.
func tail(text string) string {
	const most = 2000
	return strings.TrimSpace(text[max(0, len(text)-most):])
}
