// Package scenario tells the story of the demo: it does something to a running system, waits for the result, and
// verifies what is guaranteed for that case.
//
// A step reads as a list: what fails in it ends it; see package must. [Story.Do] returns the error.
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/must"
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
	began   time.Time
	before  objects // when the step began
	old     int     // number of versions that had been recorded when the step began
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

// kinds are the kinds of sharded objects in deploy/example.
var kinds = []string{check.Website, check.ConfigMap, check.Fleet, check.Ship}

// gvk returns the group, version, and kind of one of the kinds.
func gvk(kind string) schema.GroupVersionKind {
	return record.Resource(kind).GroupVersion().WithKind(kind)
}

// New starts to watch the system. The watches and the connection to the query service last until the context ends.
func New(ctx context.Context, s *localsystem.System, console *report.Console, o Options) (*Story, error) {
	story := &Story{Options: o, system: s, console: console, client: s.Plane.Client}
	if err := examplev1alpha1.AddToScheme(story.client.Scheme()); err != nil {
		return nil, fmt.Errorf("add the example to the client's scheme: %w", err)
	}

	recorded := record.Options{
		Ring: localsystem.Ring,
		Labels: record.Labels{
			Shard: contract.ShardLabel(localsystem.Ring), Drain: contract.DrainLabel(localsystem.Ring),
		},
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

// Step is a part of the story.
type Step struct {
	// Name is what a user selects a mode by; empty for the steps of [Story.Steps].
	Name string
	// Title describes what happens.
	Title string
	// Suspects are the processes whose logs are most relevant if the step fails.
	Suspects []string

	do func(context.Context)
}

// Steps returns the steps of the story.
func (s *Story) Steps() []Step {
	leases := []string{localsystem.LeaseMonitor, localsystem.Rebalancer}
	labels := []string{localsystem.Assigner, localsystem.Rebalancer}

	return []Step{
		{Title: fmt.Sprintf("%d shards join", s.Shards), Suspects: leases, do: s.join},
		{Title: fmt.Sprintf("%d objects are created", s.Objects), Suspects: labels, do: s.create},
		{Title: "a shard is killed (SIGKILL)", Suspects: leases, do: s.kill},
		{Title: "a shard stops (SIGTERM)", Suspects: leases, do: s.leave},
		{Title: "two shards join under load", Suspects: []string{localsystem.Rebalancer}, do: s.grow},
		{Title: "a frozen shard is resumed", Suspects: leases, do: s.freeze},
		{Title: "the assigner is stopped", Suspects: labels, do: s.outage},
		{Title: "who owns what? (gRPC)", Suspects: []string{localsystem.RingQuery1}, do: s.ask},
		{Title: "the ring is deleted under load", Suspects: labels, do: s.remove},
		{Title: "shards shard by themselves", Suspects: []string{localsystem.Rebalancer}, do: s.embedded},
		{Title: "final checks", do: s.review},
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

// Do runs a step and returns what was checked. If the step fails, Do saves all recorded versions in a file beside the
// logs.
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
		err = errors.Join(err, s.dump())
	}

	return s.checked, err
}

// dump saves all recorded versions.
func (s *Story) dump() error {
	versions, err := s.recorder.Versions()

	var text []byte
	for _, v := range versions {
		text = fmt.Appendln(text, v)
	}

	err = errors.Join(err, os.WriteFile(filepath.Join(s.system.StateDir, "logs", "objects.log"), text, 0o600))
	if err != nil {
		return fmt.Errorf("save the versions of objects: %w", err)
	}

	return nil
}

// versions returns all versions of objects and Leases that were recorded.
func (s *Story) versions() []check.Version {
	versions, err := s.recorder.Versions()
	must.Do(err)

	return versions
}

// objects returns the present objects.
func (s *Story) objects() objects { return objects(nil).after(s.recorder.Newest()) }

// lease returns the versions of the Lease of a shard.
func (s *Story) lease(shard string) []check.Version {
	return slices.DeleteFunc(s.versions(), func(v check.Version) bool {
		return v.Kind != check.Lease || v.Name != shard || v.Deleted
	})
}

// stored reads the metadata of all objects of the sharded kinds from the API server, by kind, namespace, and name.
func (s *Story) stored(ctx context.Context, options ...client.ListOption) map[string]metav1.PartialObjectMetadata {
	all := map[string]metav1.PartialObjectMetadata{}

	for _, kind := range kinds {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk(kind))
		must.Do(s.client.List(ctx, list, options...))

		for i := range list.Items {
			all[kind+" "+client.ObjectKeyFromObject(&list.Items[i]).String()] = list.Items[i]
		}
	}

	return all
}

// reconciles returns what all shards have recorded, including lost shards.
func (s *Story) reconciles() []history.Span {
	var names []string
	for _, shard := range s.shards {
		names = append(names, shard.Name)
	}

	return s.spansSince(0, names...)
}

// spansSince returns the reconciles that processes have begun and recorded since a point in time.
func (s *Story) spansSince(since time.Duration, processes ...string) []history.Span {
	var files []string
	for _, name := range processes {
		files = append(files, s.system.HistoryFile(name))
	}

	reader, err := record.Histories(files...)
	must.Do(err)

	return slices.DeleteFunc(reader.Spans(), func(span history.Span) bool { return span.Start < since })
}

// spansOf returns the reconciles of a process, and the number of those that have not ended.
func spansOf(all []history.Span, pid int) (spans []history.Span, open int) {
	for _, span := range all {
		if span.PID != pid {
			continue
		}

		spans = append(spans, span)
		if span.End == 0 {
			open++
		}
	}

	return spans, open
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

// serving returns the process that runs as the shard, which must exist.
func (s *Story) serving(name string) *shard {
	running := s.running()
	i := slices.IndexFunc(running, func(shard *shard) bool { return shard.serve == name })
	must.Hold(i >= 0, "no process runs as shard %q", name)

	return running[i]
}

// start starts shards under new names and with these flags, waits until they hold their Leases, and returns the names.
func (s *Story) start(ctx context.Context, n int, flags ...string) []string {
	var names []string

	for _, shard := range s.startAs(ctx, "--shard-name", n, flags) {
		shard.serve = shard.Name
		names = append(names, shard.Name)
	}

	return names
}

// startAs starts processes under new names, which the given flag tells them.
func (s *Story) startAs(ctx context.Context, identity string, n int, flags []string) []*shard {
	first := len(s.shards)

	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("shard-%d", first+i+1))
	}

	must.Do(s.system.StartShards(ctx, identity, flags, names...))

	for _, name := range names {
		s.shards = append(s.shards, &shard{Process: s.system.Process(name)})
	}

	return s.shards[first:]
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

// ring returns the ClusterRing.
func (s *Story) ring(ctx context.Context) *v1alpha1.ClusterRing {
	ring := &v1alpha1.ClusterRing{}
	must.Do(s.client.Get(ctx, client.ObjectKey{Name: localsystem.Ring}, ring))

	return ring
}

// seconds formats the time since a point in time.
func seconds(since time.Time) string { return report.Seconds(time.Since(since)) }
