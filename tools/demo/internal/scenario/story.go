// Package scenario tells the story of the demo: it does something to a running system, waits for the result, and
// verifies what is guaranteed for that case.
//
// A step reads as a list: what fails in it ends it; see package must. [Story.Do] returns the error.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/process"
)

// shardsFirst is the number of shards that join first. Two of them are lost.
const shardsFirst = 3

// Story is a running demo. Create it with New. It is not safe for concurrent use.
type Story struct {
	system  *localsystem.System
	console *report.Console

	client client.Client
	query  diagnosticsv1alpha1.DiagnosticsServiceClient
	ring   *system.Ring

	sites   int            // Websites that are created first
	shards  []*shard       // all that were ever started
	pauses  []check.Frozen // times in which a shard was frozen
	created int            // Websites
	fleets  int

	// Of the current step.
	began   time.Time
	before  objects // when the step began
	old     int     // number of versions that had been recorded when the step began
	checked []string
}

// shard is a shard of the story.
type shard struct {
	*process.Process
	lost string // how; empty for a running shard
}

// How a shard may be lost.
const (
	killed  = "killed"
	stopped = "stopped"
	frozen  = "frozen"
)

// New starts to watch the system. The steps create that many Websites first. The watches and the connection to the
// query service last until the context ends.
func New(ctx context.Context, s *localsystem.System, console *report.Console, sites int) (*Story, error) {
	story := &Story{system: s, console: console, client: s.Client, sites: sites}

	return story, must.Attempt(func() {
		story.ring = s.Watch(ctx, localsystem.Ring, system.Objects("")...)
		story.query = system.Queries(ctx, s.Queries)
	})
}

// Step is a part of the story.
type Step struct {
	// Title describes what happens.
	Title string

	name string // of a mode
	do   func(context.Context)
}

// Steps returns the steps of the story.
func (s *Story) Steps() []Step {
	return []Step{
		{Title: fmt.Sprintf("%d shards join", shardsFirst), do: s.join},
		{Title: fmt.Sprintf("%d objects are created", s.sites), do: s.create},
		{Title: "a shard is killed (SIGKILL)", do: s.kill},
		{Title: "a shard stops (SIGTERM)", do: s.leave},
		{Title: "two shards join under load", do: s.grow},
		{Title: "a frozen shard is resumed", do: s.freeze},
		{Title: "the assigner is stopped", do: s.outage},
		{Title: "who owns what? (gRPC)", do: s.ask},
		{Title: "the ring is deleted under load", do: s.remove},
		{Title: "shards shard by themselves", do: s.embedded},
		{Title: "final checks", do: s.review},
	}
}

// Do runs a step and returns what was checked. If the step fails, Do saves all recorded versions beside the logs.
func (s *Story) Do(ctx context.Context, step Step) ([]string, error) {
	s.checked, s.began = nil, time.Now()

	err := must.Attempt(func() {
		recorded := s.versions()
		s.before, s.old = objects(nil).after(recorded), len(recorded)
		step.do(ctx)
	})
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}

	if err != nil {
		err = errors.Join(err, s.system.Dump(nil))
	}

	return s.checked, err
}

// versions returns all versions of objects and Leases that were recorded.
func (s *Story) versions() []check.Version { return s.ring.All() }

// objects returns the present objects.
func (s *Story) objects() objects { return objects(nil).after(s.ring.Newest()) }

// lease returns the versions of the Lease of a shard.
func (s *Story) lease(shard string) []check.Version {
	return slices.DeleteFunc(s.versions(), func(v check.Version) bool {
		return v.Kind != check.Lease || v.Name != shard || v.Deleted
	})
}

// reconciles returns what all processes have recorded.
func (s *Story) reconciles() []history.Span { return s.system.Spans("*") }

// ok reports a check that passed.
func (s *Story) ok(format string, args ...any) {
	s.console.OK(format, args...)
	s.checked = append(s.checked, fmt.Sprintf(format, args...))
}

// fault returns an error that a process has caused, with the end of its log.
func fault(p *process.Process, format string, args ...any) error {
	const lines = 8

	return fmt.Errorf("%s %w\n%s", p.Name, fmt.Errorf(format, args...), process.Tail(p.LogFile, lines))
}

// running returns the running shards in the order in which they were started.
func (s *Story) running() []*shard {
	return slices.DeleteFunc(slices.Clone(s.shards), func(shard *shard) bool { return shard.lost != "" })
}

// available returns the names of the running shards.
func (s *Story) available() []string {
	var names []string
	for _, shard := range s.running() {
		names = append(names, shard.Name)
	}

	return names
}

// serving returns the process that runs as the shard, which must exist.
func (s *Story) serving(name string) *shard {
	running := s.running()
	i := slices.IndexFunc(running, func(shard *shard) bool { return shard.Name == name })
	must.Hold(i >= 0, "no process runs as shard %q", name)

	return running[i]
}

// start starts shards under new names and with these flags, waits until they hold their Leases, and returns the names.
func (s *Story) start(ctx context.Context, n int, flags ...string) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("shard-%d", len(s.shards)+i+1))
	}

	must.Do(s.system.StartShards(ctx, flags, names...))

	for _, name := range names {
		s.shards = append(s.shards, &shard{Process: s.system.Process(name)})
	}

	return names
}

// end stops processes, which must stop gracefully.
func (s *Story) end(names ...string) {
	must.Do(s.system.End(names...))

	for _, name := range names {
		if p := s.system.Process(name); p.Err() != nil {
			must.Do(fault(p, "did not stop gracefully: %w", p.Err()))
		}
	}
}

// seconds formats the time since a point in time.
func seconds(since time.Time) string { return report.Seconds(time.Since(since)) }
