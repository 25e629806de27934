// Package scenario runs the steps of the demo: shards join, crash, leave, freeze, and resume under load, a service fails, and the ring is
// deleted. Each step does something to the system and then checks what is guaranteed for that case.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/record"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

// Options set the size of the story.
type Options struct {
	// Shards is the number of shards that join first, at least 3, because two of them are lost.
	Shards int
	// Objects is the number of Websites that are created first.
	Objects int
}

// Validate returns an error if the options are invalid.
func (o Options) Validate() error {
	const fewest, mostShards, mostObjects = 3, 20, 20_000
	switch {
	case o.Shards < fewest || o.Shards > mostShards:
		return fmt.Errorf("--shards must be between %d and %d (two of them are lost), not %d", fewest, mostShards, o.Shards)
	case o.Objects < 1 || o.Objects > mostObjects:
		return fmt.Errorf("--objects must be between 1 and %d, not %d", mostObjects, o.Objects)
	}

	return nil
}

// Story is a running demo. Create it with New. It is not safe for concurrent use.
type Story struct {
	Options
	system  *localsystem.System
	console *report.Console

	client   client.Client
	query    diagnosticsv1alpha1.DiagnosticsServiceClient
	recorder *record.Recorder

	spec    *v1alpha1.ClusterRingSpec // of deploy/example, once the ring was deleted
	shards  []*shard                  // all that were ever started
	pauses  []check.Frozen            // times in which a shard was frozen
	created int                       // Websites
	fleets  int

	// Of the current step.
	fail    context.CancelCauseFunc
	began   time.Time
	before  observe.Objects // when the step began
	old     int             // number of versions that had been recorded when the step began
	checked []string
}

// shard is a shard of the story.
type shard struct {
	*process.Process
	lost  string // how; empty for a running shard
	serve string // the shard's name; empty for a process that waits for a slot
}

// How a shard may be lost.
const (
	killed  = "killed"
	stopped = "stopped"
	frozen  = "frozen"
)

// New starts to watch the system. The watches and the connection to the query service last until the context ends.
func New(ctx context.Context, s *localsystem.System, console *report.Console, o Options) (*Story, error) {
	story := &Story{Options: o, system: s, console: console, client: s.Plane.Client}
	if err := examplev1alpha1.AddToScheme(story.client.Scheme()); err != nil {
		return nil, fmt.Errorf("add the example to the client's scheme: %w", err)
	}

	recorded := record.Options{
		Ring: localsystem.Ring, Labels: record.Labels{Shard: contract.ShardLabel(localsystem.Ring), Drain: contract.DrainLabel(localsystem.Ring)},
		LeaseNamespace: localsystem.ShardNamespace,
	}
	for _, kind := range kinds {
		recorded.Objects = append(recorded.Objects, record.Objects{Kind: kind})
	}

	var err error
	if story.recorder, err = record.Start(ctx, s.Plane.Config, recorded); err != nil {
		return nil, err
	}

	conn, err := grpc.NewClient(s.Queries, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("make a client for queries: %w", err)
	}

	context.AfterFunc(ctx, func() { _ = conn.Close() }) // nobody asks any more

	story.query = diagnosticsv1alpha1.NewDiagnosticsServiceClient(conn)

	return story, nil
}

// action is a part of a step.
type action = func(context.Context) error

// inOrder runs actions until one fails.
func inOrder(ctx context.Context, actions ...action) error {
	for _, do := range actions {
		if err := do(ctx); err != nil {
			return err
		}
	}

	return nil
}

// Step is a part of the story.
type Step struct {
	// Title describes what happens.
	Title string
	// Suspects are the processes whose logs are most relevant if the step fails.
	Suspects []string

	do action
}

// Steps returns the steps of the story.
func (s *Story) Steps() []Step {
	assigners := []string{localsystem.Assigner1, localsystem.Assigner2}

	return []Step{
		{fmt.Sprintf("%d shards join", s.Shards), []string{localsystem.LeaseMonitor, localsystem.Rebalancer}, s.join},
		{fmt.Sprintf("%d objects are created", s.Objects), append(assigners, localsystem.Rebalancer), s.create},
		{"a shard is killed (SIGKILL)", []string{localsystem.LeaseMonitor, localsystem.Rebalancer}, s.kill},
		{"a shard stops (SIGTERM)", []string{localsystem.Rebalancer, localsystem.LeaseMonitor}, s.leave},
		{"two shards join under load", []string{localsystem.Rebalancer}, s.grow},
		{"a frozen shard is resumed", []string{localsystem.LeaseMonitor, localsystem.Rebalancer}, s.freeze},
		{"the assigner is stopped", append(assigners, localsystem.Rebalancer), s.outage},
		{"who owns what? (gRPC)", []string{localsystem.RingQuery1}, s.ask},
		{"the ring is deleted under load", append(assigners, localsystem.Rebalancer), s.remove},
		{"shards shard by themselves", []string{localsystem.Rebalancer}, s.embedded},
		{"final checks", nil, s.review},
	}
}

// Prologue lets the first shards join and creates the first objects.
func (s *Story) Prologue(ctx context.Context) error {
	for _, step := range s.Steps()[:2] {
		if _, err := s.Do(ctx, step); err != nil {
			return err
		}
	}

	return nil
}

// Do runs a step and returns what was checked. If the step fails, Do saves all recorded versions in a file beside the logs.
func (s *Story) Do(ctx context.Context, step Step) ([]string, error) {
	ctx, s.fail = context.WithCancelCause(ctx)
	defer s.fail(nil)

	recorded := s.versions()
	s.checked, s.began, s.before, s.old = nil, time.Now(), observe.Objects(nil).After(recorded), len(recorded)

	err := step.do(ctx)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}

	if err != nil {
		err = errors.Join(err, s.dump())
	}

	return s.checked, err
}

// failOn makes the step fail if there is an error: nothing that is read afterwards matters.
func (s *Story) failOn(err error) {
	if err != nil {
		s.fail(err)
	}
}

// dump saves all recorded versions.
func (s *Story) dump() error {
	var text []byte
	for _, v := range s.versions() {
		text = fmt.Appendln(text, v)
	}

	if err := os.WriteFile(filepath.Join(s.system.StateDir, "logs", "objects.log"), text, 0o600); err != nil {
		return fmt.Errorf("save the versions of objects: %w", err)
	}

	return nil
}

// versions returns all versions of objects and Leases that were recorded. If the record is incomplete, the step fails.
func (s *Story) versions() []check.Version {
	versions, err := s.recorder.Versions()
	s.failOn(err)

	return versions
}

// objects returns the present objects.
func (s *Story) objects() observe.Objects { return observe.Objects(nil).After(s.recorder.Newest()) }

// lease returns the versions of the Lease of a shard. If the record is incomplete, the step fails.
func (s *Story) lease(shard string) []check.Version {
	return slices.DeleteFunc(s.versions(), func(v check.Version) bool { return v.Kind != check.Lease || v.Name != shard || v.Deleted })
}

// reconciles returns what all shards have recorded, including lost shards. If it cannot be read, the step fails.
func (s *Story) reconciles() []history.Span {
	var names []string
	for _, shard := range s.shards {
		names = append(names, shard.Name)
	}

	spans, err := s.spansSince(0, names...)
	if err != nil {
		s.fail(err)
		return nil
	}

	return spans
}

// ok reports a check that passed.
func (s *Story) ok(format string, args ...any) {
	s.console.OK(format, args...)
	s.checked = append(s.checked, fmt.Sprintf(format, args...))
}

// wrong returns an error with the first few findings, nil if there are none.
func wrong[T any](what string, findings []T) error {
	const few = 5

	if len(findings) == 0 {
		return nil
	}

	errs := []error{fmt.Errorf("%s: %d times", what, len(findings))}
	for _, finding := range findings[:min(few, len(findings))] {
		errs = append(errs, fmt.Errorf("%v", finding))
	}

	return errors.Join(errs...)
}

// fault returns an error that a process has caused.
func fault(p *process.Process, format string, args ...any) error {
	return &services.FaultError{Process: p.Name, Err: fmt.Errorf(p.Name+" "+format, args...)}
}

// running returns the running shards in the order in which they were started.
func (s *Story) running() []*shard {
	return slices.DeleteFunc(slices.Clone(s.shards), func(shard *shard) bool { return shard.lost != "" })
}

// available returns the names of the running shards, without processes that wait for a slot.
func (s *Story) available() []string {
	var names []string

	for _, shard := range s.running() {
		if shard.serve != "" {
			names = append(names, shard.serve)
		}
	}

	return names
}

// start starts shards under new names and with these flags, waits until they hold their Leases, and returns the names.
func (s *Story) start(ctx context.Context, n int, flags ...string) ([]string, error) {
	names, err := s.startAs(ctx, "--shard-name", n, flags)
	for _, shard := range s.running() {
		if slices.Contains(names, shard.Name) {
			shard.serve = shard.Name
		}
	}

	return names, err
}

// startAs starts processes under new names, which the given flag tells them, and returns the names.
func (s *Story) startAs(ctx context.Context, identity string, n int, flags []string) ([]string, error) {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("shard-%d", len(s.shards)+i+1))
	}

	if err := s.system.StartShards(ctx, identity, flags, names...); err != nil {
		return nil, err
	}

	for _, name := range names {
		s.shards = append(s.shards, &shard{Process: s.system.Process(name)})
	}

	return names, nil
}

// end stops processes, which must stop gracefully.
func (s *Story) end(names ...string) error {
	if err := s.system.End(names...); err != nil {
		return err
	}

	for _, name := range names {
		if p := s.system.Process(name); p.Err() != nil {
			return fault(p, "did not stop gracefully: %w", p.Err())
		}
	}

	return nil
}

// ring returns the ClusterRing.
func (s *Story) ring(ctx context.Context) (*v1alpha1.ClusterRing, error) {
	ring := &v1alpha1.ClusterRing{}
	if err := s.client.Get(ctx, client.ObjectKey{Name: localsystem.Ring}, ring); err != nil {
		return nil, fmt.Errorf("get the ClusterRing: %w", err)
	}

	return ring, nil
}

// seconds formats the time since a point in time.
func seconds(since time.Time) string { return report.Seconds(time.Since(since)) }
