package sweep

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clusterring/clusterring/tools/faults/stage"
	"github.com/clusterring/clusterring/tools/localplane"
)

// variable asks for the runs, which take minutes. FAULTS=all tries every write, not the first and last of its kind.
const variable = "FAULTS"

// suite is what all runs of a test process share.
type suite struct {
	stage *stage.Stage
	dir   string
	began time.Time

	mu     sync.Mutex
	runs   int
	failed int
	spent  time.Duration
}

var shared struct {
	sync.Once
	suite *suite
	err   error
}

func TestMain(m *testing.M) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	over := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-signals: // the control plane ends, too, and then this process
			if s := shared.suite; s != nil {
				s.stage.Abort()
			}
		case <-over:
		}
	}()
	code := localplane.Main(m, goleak.IgnoreCurrent())
	signal.Stop(signals)
	close(over)
	<-ended
	if s := shared.suite; s != nil {
		fmt.Fprintf(os.Stderr, "%d runs in %s, %d failed", s.runs, s.spent.Round(time.Second), s.failed)
		if s.failed == 0 {
			_ = os.RemoveAll(s.dir) // logs of runs that passed are of no use
			fmt.Fprintln(os.Stderr)
		} else {
			fmt.Fprintf(os.Stderr, "; logs are in %s\n", s.dir)
		}
	}
	os.Exit(code)
}

// theSuite starts the control plane and builds the binaries, once.
func theSuite(t *testing.T) *suite {
	t.Helper()
	if os.Getenv(variable) == "" {
		t.Skip("takes minutes: make test-faults")
	}
	shared.Do(func() {
		plane := localplane.Shared(t)
		shared.suite, shared.err = newSuite(context.Background(), plane) //nolint:usetesting // outlives this test
	})
	require.NoError(t, shared.err)
	return shared.suite
}

func newSuite(ctx context.Context, plane *localplane.Plane) (*suite, error) {
	dir, err := os.MkdirTemp("", "clusterring-faults-*") // stays if a run fails
	if err != nil {
		return nil, err
	}
	s := &suite{dir: dir, began: time.Now()}
	bin := filepath.Join(dir, "bin")
	root := localplane.Root()
	for _, pkg := range []string{
		"services/leasemonitor/cmd/leasemonitor", "services/assigner/cmd/assigner", "services/rebalancer/cmd/rebalancer", "tools/example/cmd/example",
	} {
		cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", filepath.Join(bin, filepath.Base(pkg)), "./"+pkg)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}
	s.stage, err = stage.New(ctx, plane, bin)
	return s, err
}

// run plays one case as a subtest. k of n says how far the test is.
func (s *suite) run(t *testing.T, k, n int, c stage.Case) (played stage.Result) {
	t.Helper()
	t.Run(c.Name, func(t *testing.T) {
		dir := filepath.Join(s.dir, fmt.Sprintf("%03d", s.runs+1))
		begin := time.Now()
		played = s.stage.Run(t.Context(), dir, c)
		took := time.Since(begin)

		s.mu.Lock()
		defer s.mu.Unlock()
		s.runs++
		s.spent += took
		verdict := "ok"
		if !played.OK() {
			s.failed++
			verdict = "FAILED"
		}
		test, _, _ := strings.Cut(t.Name(), "/")
		say("%s %d/%d %s: %s in %.1f s, %d reconciles, %d versions (%s)%s", test, k, n, c.Name,
			verdict, took.Seconds(), played.Spans, played.Versions, strings.Join(played.Took, ", "), restarts(played))
		if played.OK() {
			_ = os.RemoveAll(dir) // as above
			return
		}
		t.Errorf("run %q failed; its logs and records.txt are in %s\n%s", c.Name, dir, played)
	})
	return played
}

// say tells how far the tests are, though they are not asked to be verbose.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func restarts(r stage.Result) string {
	if len(r.Ended) == 0 {
		return ""
	}
	return ", ended by themselves: " + strings.Join(r.Ended, "; ")
}
