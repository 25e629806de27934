package sweep

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/faults/faultrun"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// variable asks for the runs, which take minutes. FAULTS=all tries every write, not the first and last of its kind.
const variable = "FAULTS"

// mostRunners bounds how many runs go on at once. Half of a run is waiting, so that each core can take one; beyond four
// the memory of the control planes is the limit.
const mostRunners = 4

// suite is what all runs of a test process share.
type suite struct {
	dir, bin string
	began    time.Time
	runners  []func() (*faultrun.Runner, error) // each makes one, the first time
	runs     atomic.Int32

	mu      sync.Mutex
	planes  []*localplane.Plane
	failed  int
	notes   []string
	stopped bool
}

var shared struct {
	sync.Once
	suite *suite
	err   error
}

func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard()) // else the library prints a stack trace after 30 seconds

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)

	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)

		select {
		case <-signals:
			if s := shared.suite; s != nil {
				s.abort()
			}
			os.Exit(1) // an interrupted test run has nothing left to return to
		case <-over:
		}
	}()

	code := m.Run()
	signal.Stop(signals)
	close(over)
	<-ended

	if s := shared.suite; s != nil {
		code = max(code, s.end())
	}

	if code == 0 {
		if err := goleak.Find(goleak.IgnoreTopFunction("os/signal.loop")); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines leaked:", err)

			code = 1
		}
	}
	os.Exit(code)
}

// theSuite builds the binaries and starts a control plane, once.
func theSuite(t *testing.T) *suite {
	t.Helper()

	if os.Getenv(variable) == "" {
		t.Skip("takes minutes: make test-faults")
	}
	shared.Do(func() {
		shared.suite, shared.err = newSuite(context.Background()) //nolint:usetesting // outlives this test
	})
	require.NoError(t, shared.err)

	return shared.suite
}

func newSuite(ctx context.Context) (*suite, error) {
	dir, err := os.MkdirTemp("", "clusterring-faults-*") // stays if a run fails
	if err != nil {
		return nil, err
	}

	s := &suite{dir: dir, bin: filepath.Join(dir, "bin"), began: time.Now()}

	most := mostRunners
	if n, ok := flag.Lookup("test.parallel").Value.(flag.Getter).Get().(int); ok {
		most = min(most, n)
	}

	for range most {
		s.runners = append(s.runners, sync.OnceValues(func() (*faultrun.Runner, error) { return s.newRunner(ctx) }))
	}

	root := localplane.Root()

	for _, pkg := range faultrun.Packages {
		cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", filepath.Join(s.bin, filepath.Base(pkg)),
			"./"+pkg)

		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}

	return s, nil
}

func (s *suite) newRunner(ctx context.Context) (*faultrun.Runner, error) {
	plane, err := localplane.Start(localplane.Options{Knows: v1alpha1.AddToScheme, Log: os.Stderr})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	stopped := s.stopped
	s.planes = append(s.planes, plane)
	s.mu.Unlock()

	if stopped {
		return nil, errors.Join(errors.New("interrupted"), plane.Stop())
	}

	return faultrun.New(ctx, plane, s.bin)
}

// abort kills every process of the runs, and every control plane. All of them name the directory of one.
func (s *suite) abort() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.stopped = true
	for _, p := range s.planes {
		_ = localplane.RemoveState(p.Dir()) // we are leaving, whatever it says
	}
}

// end stops everything, says what was done, and returns the exit code.
func (s *suite) end() (code int) {
	for _, p := range s.planes {
		if err := p.Stop(); err != nil {
			say("stop a control plane: %v", err)

			code = 1
		}
	}
	say("\n%d runs in %s on %d control planes, %d failed\n%s", s.runs.Load(), time.Since(s.began).Round(time.Second),
		len(s.planes), s.failed, strings.Join(s.notes, "\n"))

	if s.failed > 0 {
		say("logs are in %s", s.dir)
		return code
	}

	_ = os.RemoveAll(s.dir) // logs of runs that passed are of no use

	return code
}

// note adds a line to the summary.
func (s *suite) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// run plays cases as subtests, begun in this order, as many at a time as there are runners. It returns what came of
// each; that of a case that is left out is zero.
func (s *suite) run(t *testing.T, cases ...faultrun.Case) []faultrun.Result {
	t.Helper()

	results := make([]faultrun.Result, len(cases))

	var (
		next    atomic.Int64
		playing sync.WaitGroup
	)
	for _, runner := range s.runners[:min(len(s.runners), len(cases))] {
		playing.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(cases); i = int(next.Add(1)) - 1 {
				if skip := cases[i].Skip; skip != nil && skip() {
					continue
				}

				progress := fmt.Sprintf("%d/%d", i+1, len(cases))
				t.Run(cases[i].Name, func(t *testing.T) {
					on, err := runner()
					require.NoError(t, err)

					results[i] = s.play(t, on, progress, cases[i])
				})
			}
		})
	}
	playing.Wait()

	return results
}

// play plays one case.
func (s *suite) play(t *testing.T, on *faultrun.Runner, progress string, c faultrun.Case) faultrun.Result {
	t.Helper()

	dir := filepath.Join(s.dir, fmt.Sprintf("%03d", s.runs.Add(1)))
	begin := time.Now()
	played := on.Run(t.Context(), dir, c)
	took := time.Since(begin)

	test, _, _ := strings.Cut(t.Name(), "/")

	verdict := "ok"
	if !played.OK() {
		verdict = "FAILED"
	}
	say("%s %s %s: %s in %.1f s, %d reconciles, %d versions (%s)%s", test, progress, c.Name,
		verdict, took.Seconds(), played.Spans, played.Versions, strings.Join(played.Took, ", "), restarts(played))

	if played.OK() {
		_ = os.RemoveAll(dir) // logs of runs that passed are of no use
		return played
	}
	s.mu.Lock()
	s.failed++
	s.mu.Unlock()
	t.Errorf("run %q failed; its logs and records.txt are in %s\n%s", c.Name, dir, played)

	return played
}

// say tells how far the tests are, though they are not asked to be verbose.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func restarts(r faultrun.Result) string {
	if len(r.Ended) == 0 {
		return ""
	}

	return ", ended by themselves: " + strings.Join(r.Ended, "; ")
}
