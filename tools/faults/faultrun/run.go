package faultrun

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/history"
	"github.com/clusterring/clusterring/tools/example/website"
	"github.com/clusterring/clusterring/tools/faults/proxy"
	"github.com/clusterring/clusterring/tools/lab/check"
	"github.com/clusterring/clusterring/tools/lab/process"
	"github.com/clusterring/clusterring/tools/lab/record"
)

const (
	// patience is how long a phase may take; longer is stuck.
	patience = 40 * time.Second
	// bound is how long an object may be without an available shard while there is one. A service that was killed needs
	// a second to be back.
	bound = 10 * time.Second
)

// Case is one run: the scenario and a fault.
type Case struct {
	// Name says what is wrong in this run.
	Name string
	// Replicas is the number of replicas of each service; several elect a leader. Zero means one.
	Replicas int
	// Query adds ringquery to the services.
	Query bool
	// Rings are those of the run; nil means one, named [Ring]. The last one is deleted in the end.
	Rings []RingSpec
	// WorkDuration is how long each reconcile takes longer. Zero means 20 ms.
	WorkDuration time.Duration
	// Prepare, unless nil, is called before any process runs, to set hooks on proxies.
	Prepare func(*World)
	// Phases are those that are played; nil means all. Begin and Delete are always played.
	Phases []Phase
	// Uncounted names invariants that the run is not judged by: where they are broken is counted in [Result.Uncounted].
	Uncounted []string
	// During is called in a phase, when what happens in it has happened, and before it is waited for that all is in place;
	// After when all was in place.
	During, After map[Phase]func(context.Context, *World) error
}

func (c Case) replicas() int { return max(1, c.Replicas) }

func (c Case) rings() []RingSpec {
	if c.Rings != nil {
		return c.Rings
	}
	return theOne
}

func (c Case) services() []string {
	all := []string{LeaseMonitor, Assigner, Rebalancer}
	if c.Query {
		all = append(all, RingQuery)
	}
	return all
}

func (c Case) workDuration() time.Duration {
	if c.WorkDuration > 0 {
		return c.WorkDuration
	}
	return 20 * time.Millisecond
}

// Result is what came of a run.
type Result struct {
	// Violations are the promises that were broken.
	Violations []check.Violation
	// Uncounted are how many violations there were of invariants that the run is not judged by.
	Uncounted map[string]int
	// Err says why the run could not be judged, or what never happened.
	Err error
	// Ended are the processes that ended though nobody had told them to, with the reason.
	Ended []string
	// Took says how long each phase took.
	Took []string
	// Spans and Versions count what was recorded.
	Spans, Versions int
}

// OK says whether nothing was wrong.
func (r Result) OK() bool { return r.Err == nil && len(r.Violations) == 0 }

// String lists what was wrong.
func (r Result) String() string {
	var out strings.Builder
	for _, v := range r.Violations {
		fmt.Fprintln(&out, v)
	}
	if r.Err != nil {
		fmt.Fprintln(&out, r.Err)
	}
	for _, e := range r.Ended {
		fmt.Fprintln(&out, "ended by itself:", e)
	}
	return out.String()
}

// Run plays the scenario with the fault of the case. Logs and histories go to the directory.
func (s *Runner) Run(ctx context.Context, dir string, c Case) Result {
	w, err := s.enter(ctx, dir, c)
	if err != nil {
		if w != nil {
			err = errors.Join(err, w.leave())
		}
		return Result{Err: err}
	}
	if c.Prepare != nil {
		c.Prepare(w)
	}
	result := Result{Err: w.play(ctx, c)}
	if result.Err == nil {
		w.enterPhase(Delete)
		result.Err = w.delete(ctx)
		if after := c.After[Delete]; after != nil && result.Err == nil {
			result.Err = after(ctx, w)
		}
	}
	end := record.Now()
	result.Err = errors.Join(result.Err, w.leave())

	gathered, err := w.records()
	result.Err = errors.Join(result.Err, err)
	violations, runs, err := w.judge(gathered, end)
	result.Uncounted = map[string]int{}
	for _, v := range violations {
		if slices.Contains(c.Uncounted, v.Invariant) {
			result.Uncounted[v.Invariant]++
		} else {
			result.Violations = append(result.Violations, v)
		}
	}
	result.Err = errors.Join(result.Err, err)
	result.Ended, result.Took = w.ended(), w.took
	result.Err = errors.Join(result.Err, w.panics())
	for _, r := range runs {
		result.Spans += len(r.Spans)
		result.Versions += len(r.Versions)
	}
	if !result.OK() {
		result.Err = errors.Join(result.Err, w.dump(runs))
	}
	return result
}

// play goes through all phases but the last.
func (w *World) play(ctx context.Context, c Case) error {
	for _, s := range scenario {
		if c.Phases != nil && s.phase != Begin && !slices.Contains(c.Phases, s.phase) {
			continue
		}
		begin := record.Now()
		w.enterPhase(s.phase)
		for _, do := range []func(context.Context, *World) error{
			func(ctx context.Context, w *World) error { return s.play(w, ctx) },
			c.During[s.phase],
			func(ctx context.Context, w *World) error { return w.AwaitInPlace(ctx) },
			c.After[s.phase],
		} {
			if do == nil {
				continue
			}
			if err := do(ctx, w); err != nil {
				return fmt.Errorf("phase %s: %w", s.phase, err)
			}
		}
		w.took = append(w.took, fmt.Sprintf("%s %.1f s", s.phase, (record.Now()-begin).Seconds()))
	}
	return nil
}

// Await waits until there are no problems any more, and else names them.
func (w *World) Await(ctx context.Context, what string, look func() []string) error {
	return w.await(ctx, what, func(context.Context) ([]string, error) { return look(), nil })
}

func (w *World) await(ctx context.Context, what string, look func(context.Context) ([]string, error)) error {
	var problems []string
	err := wait.PollUntilContextTimeout(ctx, pollInterval, patience, true, func(ctx context.Context) (bool, error) {
		var err error
		problems, err = look(ctx)
		return len(problems) == 0, err
	})
	if err != nil {
		return fmt.Errorf("stuck: waited %s until %s: %w\n    %s", patience, what, err, strings.Join(problems, "\n    "))
	}
	return nil
}

// AwaitInPlace waits until all is as I7 wants it, with the shards that are expected to hold their Leases.
func (w *World) AwaitInPlace(ctx context.Context) error {
	return w.await(ctx, "all is in place (I7)", func(ctx context.Context) ([]string, error) {
		problems, err := w.statusProblems(ctx)
		if err != nil {
			return nil, err
		}
		problems = append(problems, w.objectProblems()...)
		if len(problems) > 0 {
			return problems, nil
		}
		return w.pages(ctx)
	})
}

// GivenUp returns the versions in which a shard has given an object up, with that shard: what is recorded of them so far.
func (w *World) GivenUp() map[string][]check.Version {
	numbers, found := map[uint64]string{}, map[string][]check.Version{}
	for _, m := range w.Members(true) {
		givenUp(numbers, m)
	}
	for _, r := range w.rings {
		versions, _ := r.recorder.Versions() // whether they are complete is asked at the end
		for _, v := range versions {
			if shard, ok := numbers[v.Number]; ok {
				found[shard] = append(found[shard], v)
			}
		}
	}
	return found
}

// Versions returns all that is recorded so far of the objects of all rings. The error says that something is missing.
func (w *World) Versions() ([]check.Version, error) {
	var (
		all  []check.Version
		errs []error
	)
	for _, r := range w.rings {
		versions, err := r.recorder.Versions()
		all, errs = append(all, versions...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// Newest returns the newest versions of all that is recorded: of an object of two rings, one for each.
func (w *World) Newest() []check.Version {
	var all []check.Version
	for _, r := range w.rings {
		all = append(all, r.recorder.Newest()...)
	}
	return all
}

// ringProblems says what in a ring's status is not as it should be once all is in place.
func ringProblems(ring *v1alpha1.ClusterRing, shards string) []string {
	problems := check.Status(ring, len(strings.Fields(shards)))
	if a := ring.Status.Assignment; a == nil || a.Fingerprint == "" || a.Unassigned+a.Misplaced+a.Draining > 0 {
		problems = append(problems, fmt.Sprintf("the ring's assignment: %+v", a))
	}
	return problems
}

// pages says which ConfigMaps do not have the page of their Website, where the example makes them.
func (w *World) pages(ctx context.Context) ([]string, error) {
	var problems []string
	for _, r := range w.left() {
		for _, namespace := range r.Namespaces {
			if r.binary() == workerBinary {
				continue
			}
			found, err := w.pagesIn(ctx, namespace)
			if err != nil {
				return nil, err
			}
			problems = append(problems, found...)
		}
	}
	return problems, nil
}

func (w *World) pagesIn(ctx context.Context, namespace string) ([]string, error) {
	var sites examplev1alpha1.WebsiteList
	var configMaps corev1.ConfigMapList
	err := errors.Join(w.client.List(ctx, &sites, client.InNamespace(namespace)), w.client.List(ctx, &configMaps, client.InNamespace(namespace)))
	if err != nil {
		return nil, fmt.Errorf("read all objects: %w", err)
	}
	data := map[string]map[string]string{}
	for i := range configMaps.Items {
		data[configMaps.Items[i].Name] = configMaps.Items[i].Data
	}
	var problems []string
	for i := range sites.Items {
		if name := sites.Items[i].Name; !maps.Equal(data[name], website.Render(sites.Items[i].Spec)) {
			problems = append(problems, "the ConfigMap of Website "+namespace+"/"+name+" does not have its page")
		}
	}
	return problems, nil
}

// records puts together what processes have recorded.
func (w *World) records() (check.Run, error) {
	run := check.Run{Frozen: w.frozen, Bound: bound}
	ended := map[int]time.Duration{}
	for _, m := range w.Members(true) {
		for _, life := range m.Lives() {
			if !life.Ended.IsZero() {
				ended[life.PID] = record.At(life.Ended)
			}
		}
	}
	reader, err := w.work("*")
	if err != nil {
		return run, fmt.Errorf("gather the records: %w", err)
	}
	run.Spans = history.Close(reader.Spans(), ended, record.Now())
	return run, nil
}

// work reads what a shard has recorded of its reconciles in all of its lives; of all shards for "*".
func (w *World) work(shard string) (*history.Reader, error) {
	files, err := filepath.Glob(filepath.Join(w.dir, "history-"+shard+"-*.jsonl"))
	if err != nil {
		return nil, fmt.Errorf("find histories: %w", err)
	}
	return record.Histories(files...)
}

// givenUp notes which versions a shard wrote to give an object up.
func givenUp(all map[uint64]string, m *Member) {
	for _, d := range m.Proxy.Done() {
		next, present := d.Labels()[v1alpha1.ShardLabel(m.ring)]
		if number := versionNumber(d); present && (next == nil || *next != m.Name) && d.Status == 200 && number > 0 {
			all[number] = m.Name
		}
	}
}

func versionNumber(d proxy.Done) uint64 {
	var number uint64
	if _, err := fmt.Sscan(d.ResourceVersion, &number); err != nil {
		return 0
	}
	return number
}

// ended lists the processes that ended by themselves.
func (w *World) ended() []string {
	var found []string
	for _, m := range w.order {
		for _, life := range m.Lives() {
			if !life.Ended.IsZero() && !life.Told {
				found = append(found, fmt.Sprintf("%s (process %d, %v)%s", m.Name, life.PID, life.Err, w.lastError(m)))
			}
		}
	}
	return found
}

// lastError returns what a process said last of why it ended.
func (w *World) lastError(m *Member) string {
	content, err := os.ReadFile(filepath.Join(w.dir, m.Name+".log"))
	if err != nil {
		return ""
	}
	text := ""
	for line := range strings.Lines(string(content)) {
		if said, is := strings.CutPrefix(line, "error: "); is {
			text = ": " + strings.TrimSpace(said)
		}
	}
	return text
}

// panics looks through the logs.
func (w *World) panics() error {
	var errs []error
	for _, m := range w.order {
		found, err := process.Find(filepath.Join(w.dir, m.Name+".log"), 1, "panic:", "DATA RACE", "Observed a panic")
		if err == nil && len(found) > 0 { // a process that never started has no log
			errs = append(errs, fmt.Errorf("the log of %s has %q", m.Name, found[0]))
		}
	}
	return errors.Join(errs...)
}

// dump saves the records of a run that went wrong.
func (w *World) dump(runs []check.Run) error {
	var out strings.Builder
	for i, run := range runs {
		fmt.Fprintln(&out, "ring", w.rings[i].Name)
		for _, v := range run.Versions {
			fmt.Fprintln(&out, v)
		}
		for _, s := range run.Spans {
			fmt.Fprintln(&out, s)
		}
	}
	for _, m := range w.order {
		for _, d := range m.Proxy.Done() {
			fmt.Fprintf(&out, "write %s: %s -> %d, version %s, lost %t\n", m.Name, d.Write, d.Status, d.ResourceVersion, d.Lost)
		}
	}
	if err := os.WriteFile(filepath.Join(w.dir, "records.txt"), []byte(out.String()), 0o600); err != nil {
		return fmt.Errorf("save the records: %w", err)
	}
	return nil
}
