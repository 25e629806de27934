// Package scenario runs the steps of the demo: shards join, crash, leave, freeze, and resume under load, a service fails, and the ring is
// deleted. Each step does something to the system and then checks what is guaranteed for that case.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	apimeta "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/process"
)

// The sharded resources of deploy/example.
var (
	websiteGVK   = schema.GroupVersionKind{Group: "example.clusterring.dev", Version: "v1alpha1", Kind: "Website"}
	websitesGVR  = websiteGVK.GroupVersion().WithResource(websites)
	configMapGVR = schema.GroupVersionResource{Version: "v1", Resource: configMaps}
	fleetGVK     = websiteGVK.GroupVersion().WithKind("Fleet")
	shipGVK      = websiteGVK.GroupVersion().WithKind("Ship")
	shardedKinds = []schema.GroupVersionKind{websiteGVK, {Version: "v1", Kind: "ConfigMap"}, fleetGVK, shipGVK}
)

const (
	websites   = "websites"
	configMaps = "configmaps"
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

	client client.Client
	query  diagnosticsv1alpha1.DiagnosticsServiceClient
	conn   *grpc.ClientConn

	objects *observe.Objects
	fleets  *observe.Objects // and their Ships
	leases  *observe.Leases

	shards  []*process.Process          // all that were ever started; a name may occur twice
	named   int                         // number of shard names used so far
	lost    map[*process.Process]string // lost shards: how
	pauses  []pause                     // times in which a shard was frozen
	created int                         // Websites
	checked []string                    // by the current step
}

// New starts to watch the system. The watches last until the context ends.
func New(ctx context.Context, s *localsystem.System, console *report.Console, o Options) (*Story, error) {
	config := rest.CopyConfig(s.Plane.Config)
	config.QPS = -1 // no client-side rate limit

	scheme := apimeta.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme), examplev1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make a scheme: %w", err)
	}

	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}

	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for Leases: %w", err)
	}

	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for metadata: %w", err)
	}

	story := &Story{Options: o, system: s, console: console, client: c, lost: map[*process.Process]string{}}
	if story.objects, err = observe.WatchObjects(ctx, meta, localsystem.Ring, websitesGVR, configMapGVR); err != nil {
		return nil, err
	}

	group := websiteGVK.GroupVersion()
	if story.fleets, err = observe.WatchObjects(ctx, meta, localsystem.Ring, group.WithResource(fleets), group.WithResource(ships)); err != nil {
		return nil, err
	}

	if story.leases, err = observe.WatchLeases(ctx, typed, localsystem.ShardNamespace, localsystem.Ring); err != nil {
		return nil, err
	}

	story.conn, err = grpc.NewClient(s.QueryAddress(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("make a client for queries: %w", err)
	}

	story.query = diagnosticsv1alpha1.NewDiagnosticsServiceClient(story.conn)

	return story, nil
}

// Close ends the connection to the query service.
func (s *Story) Close() error {
	if err := s.conn.Close(); err != nil {
		return fmt.Errorf("end the connection for queries: %w", err)
	}

	return nil
}

// Step is a part of the story.
type Step struct {
	// Title says what happens.
	Title string
	// Suspects are the processes whose logs are most relevant if the step fails.
	Suspects []string
	do       func(ctx context.Context) error
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
		{"final checks", nil, s.review},
	}
}

// Do runs a step and returns what was checked.
func (s *Story) Do(ctx context.Context, step Step) ([]string, error) {
	s.checked = nil

	err := step.do(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}

	return s.checked, err
}

// ok reports a check that passed.
func (s *Story) ok(format string, args ...any) {
	s.console.OK(format, args...)
	s.checked = append(s.checked, fmt.Sprintf(format, args...))
}

// wrong returns an error with the first few findings, nil if there are none.
func wrong(what string, findings []string) error {
	const few = 5

	if len(findings) == 0 {
		return nil
	}

	errs := []error{fmt.Errorf("%s: %d times", what, len(findings))}
	for _, finding := range findings[:min(few, len(findings))] {
		errs = append(errs, errors.New(finding))
	}

	return errors.Join(errs...)
}

// available returns the names of the running shards in the order in which they were started.
func (s *Story) available() []string {
	var names []string

	for _, shard := range s.shards {
		if _, gone := s.lost[shard]; !gone {
			names = append(names, shard.Name)
		}
	}

	return names
}

func (s *Story) isAvailable(shard string) bool { return slices.Contains(s.available(), shard) }

// start starts shards under new names and waits until they hold their Leases.
func (s *Story) start(ctx context.Context, n int) ([]string, error) {
	var names []string

	for range n {
		s.named++
		names = append(names, fmt.Sprintf("shard-%d", s.named))
	}

	started, err := s.system.StartShards(ctx, names...)
	s.shards = append(s.shards, started...)

	return names, err
}

// How a shard may be lost.
const (
	killed  = "killed"
	stopped = "stopped"
	frozen  = "frozen"
)

// victim returns the first running shard, and marks it as lost.
func (s *Story) victim(how string) *process.Process {
	for _, shard := range s.shards {
		if _, gone := s.lost[shard]; !gone {
			s.lost[shard] = how
			return shard
		}
	}

	return nil
}

// living returns the running process with the name of a shard, nil if there is none.
func (s *Story) living(name string) *process.Process {
	for _, shard := range s.shards {
		if _, gone := s.lost[shard]; !gone && shard.Name == name {
			return shard
		}
	}

	return nil
}

// seconds formats the time since a point in time.
func seconds(since time.Time) string { return report.Seconds(time.Since(since)) }

// Prologue lets the first shards join and creates the first objects.
func (s *Story) Prologue(ctx context.Context) error {
	if err := s.join(ctx); err != nil {
		return err
	}

	return s.create(ctx)
}
