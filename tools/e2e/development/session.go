// Package development runs skaffold on a copy of the source, so that edits do not affect the working tree.
package development

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/lab/commandline"
	"github.com/clusterring/clusterring/tools/testkit/output"
)

// parting limits the time for skaffold to clean up after an interrupt. Then it is killed.
const parting = 2 * time.Minute

// Skaffold configures skaffold.
type Skaffold struct {
	// Program is its path, or its name in $PATH.
	Program string
	// Dir contains the skaffold.yaml.
	Dir string
	// Repository is the destination of images, for example registry.example.com/clusterring; if it is empty, skaffold
	// decides.
	Repository string
	// Cache is the path of skaffold's cache file, which need not exist.
	Cache string
}

func (s Skaffold) command(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, s.Program, args...) //nolint:gosec // the caller chooses the program
	command.Dir = s.Dir
	// No questions, and no check for a newer version.
	command.Env = append(os.Environ(), "SKAFFOLD_INTERACTIVE=false", "SKAFFOLD_UPDATE_CHECK=false",
		"SKAFFOLD_CACHE_FILE="+s.Cache)
	if s.Repository != "" {
		command.Env = append(command.Env, "SKAFFOLD_DEFAULT_REPO="+s.Repository)
	}

	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = parting

	return command
}

// Run runs a command of skaffold and returns its output. The error of a failed command contains its standard error.
func (s Skaffold) Run(ctx context.Context, args ...string) (string, error) {
	return commandline.Output(s.command(ctx, args...))
}

// Session is a running skaffold dev. It is safe for concurrent use.
type Session struct {
	// Output is the output so far, including the logs of the pods.
	Output output.Buffer

	interrupt context.CancelFunc
	done      chan struct{}
	err       error // once done is closed
}

// ErrEnded is the error of a skaffold dev that has ended.
var ErrEnded = errors.New("skaffold dev has ended")

// Start starts skaffold dev with the given arguments. It is interrupted when the context ends.
func (s Skaffold) Start(ctx context.Context, args ...string) (*Session, error) {
	ctx, interrupt := context.WithCancel(ctx)
	session := &Session{interrupt: interrupt, done: make(chan struct{})}
	command := s.command(ctx, append([]string{"dev"}, args...)...)

	command.Stdout, command.Stderr = &session.Output, &session.Output
	if err := command.Start(); err != nil {
		interrupt()
		return nil, fmt.Errorf("start skaffold dev: %w", err)
	}

	go func() {
		defer close(session.done)
		defer interrupt()
		// The interrupt is not an error.
		if err := command.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			session.err = fmt.Errorf("skaffold dev: %w; last output: %s", err, tail(session.Output.String()))
		}
	}()

	return session, nil
}

// Watching returns an error until skaffold has deployed the given number of times and waits for the next edit. The
// error is [ErrEnded] if skaffold has ended.
func (s *Session) Watching(times int) error {
	select {
	case <-s.done:
		return errors.Join(ErrEnded, s.err)
	default:
	}

	text := s.Output.String()
	if n := strings.Count(text, "Watching for changes..."); n < times {
		return fmt.Errorf("skaffold dev has deployed %d times, not %d; last output: %s", n, times, tail(text))
	}

	return nil
}

// Interrupt interrupts skaffold like Ctrl-C, and returns when skaffold has cleaned up and ended. It returns an error if
// skaffold failed.
func (s *Session) Interrupt() error {
	s.interrupt()
	<-s.done

	return s.err
}

// tail returns the end of a text.
func tail(text string) string {
	const most = 2000
	return strings.TrimSpace(text[max(0, len(text)-most):])
}

// copyTree copies $0 to $1: the last commit with the changes of the working tree, which git makes a commit of its own.
const copyTree = `commit=$(git -C "$0" -c user.name=e2e -c user.email=e2e@example.com stash create) && mkdir -p "$1" &&
	git -C "$0" archive "${commit:-HEAD}" | tar -x -C "$1"`

// Copy copies the files that git tracks below root, with their content on disk, to the directory to, which it creates
// if necessary. It skips tracked files that do not exist.
func Copy(ctx context.Context, root, to string) error {
	if output, err := exec.CommandContext(ctx, "sh", "-c", copyTree, root, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy what git tracks in %s: %w: %s", root, err, output)
	}

	return nil
}
