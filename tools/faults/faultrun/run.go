package faultrun

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/website"
	"github.com/clusterring/clusterring/tools/faults/proxy"
	"github.com/clusterring/clusterring/tools/lab/ringstatus"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

const (
	// patience limits the time of each wait.
	patience = 40 * time.Second
	// bound limits the time that an object is without an available shard while a shard is available. A killed service is back after a
	// second.
	bound = 10 * time.Second
)

// Case is one run: the scenario with a fault.
type Case struct {
	// Name describes the fault.
	Name string
	// Replicas is the number of replicas of each service, which elect a leader. Zero means one.
	Replicas int
	// Query adds ringquery to the services.
	Query bool
	// Rings are the rings of the run; nil means one, named [Ring]. The last one is deleted at the end.
	Rings []RingSpec
	// WorkDuration is added to the duration of each reconcile. Zero means 20 ms.
	WorkDuration time.Duration
	// Prepare, unless nil, is called before any process starts, for example to set hooks on proxies.
	Prepare func(*Run)
	// Phases are the phases to run; nil means all. Begin and Delete always run.
	Phases []Phase
	// Uncounted lists invariants whose violations are only counted, in [Result.Uncounted].
	Uncounted []string
	// During is called in a phase after its actions, before the wait until all objects are in place. After is called after that wait.
	During, After map[Phase]func(context.Context, *Run) error
}

func (c Case) replicas() int { return max(1, c.Replicas) }

func (c Case) rings() []RingSpec {
	if c.Rings != nil {
		return c.Rings
	}

	return theOne
}

func (c Case) services() []string {
	if !slices.ContainsFunc(c.rings(), func(r RingSpec) bool { return !r.Embedded }) {
		return nil
	}

	all := []string{LeaseMonitor, Assigner, Rebalancer}
	if c.Query {
		all = append(all, RingQuery)
	}

	return all
}

func (c Case) workDuration() time.Duration {
	return cmp.Or(c.WorkDuration, 20*time.Millisecond)
}

// Result is the result of a run.
type Result struct {
	// Violations are the violated guarantees.
	Violations []check.Violation
	// Uncounted counts the violations of the invariants in [Case.Uncounted].
	Uncounted map[string]int
	// Err is why the run could not be judged, or which condition was never reached.
	Err error
	// Ended lists the processes that exited by themselves, with the reason.
	Ended []string
	// Took lists the duration of each phase.
	Took []string
	// Spans and Versions are the numbers of recorded reconciles and versions.
	Spans, Versions int
}

// OK reports whether the run had no error and no violation.
func (r Result) OK() bool { return r.Err == nil && len(r.Violations) == 0 }

// String lists violations and errors.
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

// Run runs the scenario with the fault of the case. It writes logs and histories to the directory.
func (s *Runner) Run(ctx context.Context, dir string, c Case) Result {
	run, err := s.enter(ctx, dir, c)
	if err != nil {
		if run != nil {
			err = errors.Join(err, run.leave())
		}

		return Result{Err: err}
	}

	if c.Prepare != nil {
		c.Prepare(run)
	}

	result := Result{Err: run.play(ctx, c)}
	if result.Err == nil {
		run.enterPhase(Delete)

		result.Err = run.delete(ctx)
		if after := c.After[Delete]; after != nil && result.Err == nil {
			result.Err = after(ctx, run)
		}
	}

	end := record.Now()
	result.Err = errors.Join(result.Err, run.leave())

	gathered, err := run.records()
	result.Err = errors.Join(result.Err, err)
	violations, runs, err := run.judge(gathered, end)

	result.Uncounted = map[string]int{}
	for _, v := range violations {
		if slices.Contains(c.Uncounted, v.Invariant) {
			result.Uncounted[v.Invariant]++
		} else {
			result.Violations = append(result.Violations, v)
		}
	}

	result.Err = errors.Join(result.Err, err)
	result.Ended, result.Took = run.ended(), run.took

	result.Err = errors.Join(result.Err, run.panics())
	for _, r := range runs {
		result.Spans += len(r.Spans)
		result.Versions += len(r.Versions)
	}

	if !result.OK() {
		result.Err = errors.Join(result.Err, run.dump(runs))
	}

	return result
}

// play runs all phases except the last.
func (run *Run) play(ctx context.Context, c Case) error {
	for _, s := range scenario {
		if c.Phases != nil && s.phase != Begin && !slices.Contains(c.Phases, s.phase) {
			continue
		}

		begin := record.Now()
		run.enterPhase(s.phase)

		inPlace := func(ctx context.Context, run *Run) error { return run.AwaitInPlace(ctx) }
		for _, do := range []func(context.Context, *Run) error{s.play, c.During[s.phase], inPlace, c.After[s.phase]} {
			if do == nil {
				continue
			}

			if err := do(ctx, run); err != nil {
				return fmt.Errorf("phase %s: %w", s.phase, err)
			}
		}

		run.took = append(run.took, fmt.Sprintf("%s %.1f s", s.phase, (record.Now()-begin).Seconds()))
	}

	return nil
}

// Await waits until look returns no problems. The error lists the remaining problems.
func (run *Run) Await(ctx context.Context, what string, look func() []string) error {
	return run.await(ctx, what, func(context.Context) ([]string, error) { return look(), nil })
}

func (run *Run) await(ctx context.Context, what string, look func(context.Context) ([]string, error)) error {
	var problems []string

	err := wait.PollUntilContextTimeout(ctx, pollInterval, patience, true, func(ctx context.Context) (bool, error) {
		var err error

		problems, err = look(ctx)

		return len(problems) == 0, err
	})
	if err != nil {
		return fmt.Errorf("timeout after %s: %s: %w\n    %s", patience, what, err, strings.Join(problems, "\n    "))
	}

	return nil
}

// AwaitInPlace waits until I7 holds, and exactly the expected shards hold their Leases.
func (run *Run) AwaitInPlace(ctx context.Context) error {
	return run.await(ctx, "all objects are in place (I7)", func(ctx context.Context) ([]string, error) {
		problems, err := run.statusProblems(ctx)
		if err != nil {
			return nil, err
		}

		problems = append(problems, run.objectProblems()...)
		if len(problems) > 0 {
			return problems, nil
		}

		return run.pages(ctx)
	})
}

// GivenUp returns the versions recorded so far by which shards released objects, by shard.
func (run *Run) GivenUp() map[string][]check.Version {
	numbers, found := map[uint64]string{}, map[string][]check.Version{}
	for _, m := range run.Members(true) {
		givenUp(numbers, m)
	}

	for _, r := range run.rings {
		versions, _ := r.recorder.Versions() // judge checks whether they are complete
		for _, v := range versions {
			if shard, ok := numbers[v.Number]; ok {
				found[shard] = append(found[shard], v)
			}
		}
	}

	return found
}

// Versions returns the versions recorded so far of all rings. It returns an error if a record is incomplete.
func (run *Run) Versions() ([]check.Version, error) {
	var (
		all  []check.Version
		errs []error
	)

	for _, r := range run.rings {
		versions, err := r.recorder.Versions()
		all, errs = append(all, versions...), append(errs, err)
	}

	return all, errors.Join(errs...)
}

// Newest returns the newest versions of all objects: for an object of two rings, one for each.
func (run *Run) Newest() []check.Version {
	var all []check.Version
	for _, r := range run.rings {
		all = append(all, r.recorder.Newest()...)
	}

	return all
}

// ringProblems returns the problems of a ring's status, given that all objects are in place.
func ringProblems(ring *v1alpha1.ClusterRing, shards string) []string {
	problems := ringstatus.Problems(ring, len(strings.Fields(shards)))
	if a := ring.Status.Assignment; a == nil || a.Fingerprint == "" || a.Unassigned+a.Misplaced+a.Draining > 0 {
		problems = append(problems, fmt.Sprintf("the ring's assignment: %+v", a))
	}

	return problems
}

// pages returns which ConfigMaps of the example do not contain the page of their Website.
func (run *Run) pages(ctx context.Context) ([]string, error) {
	var problems []string

	for _, r := range run.left() {
		for _, namespace := range r.Namespaces {
			if r.binary() == workerBinary {
				continue
			}

			var (
				sites      examplev1alpha1.WebsiteList
				configMaps corev1.ConfigMapList
				in         = client.InNamespace(namespace)
			)

			if err := errors.Join(run.client.List(ctx, &sites, in), run.client.List(ctx, &configMaps, in)); err != nil {
				return nil, fmt.Errorf("read all objects: %w", err)
			}

			data := map[string]map[string]string{}
			for i := range configMaps.Items {
				data[configMaps.Items[i].Name] = configMaps.Items[i].Data
			}

			for i := range sites.Items {
				if name := sites.Items[i].Name; !maps.Equal(data[name], website.Render(sites.Items[i].Spec)) {
					problems = append(problems, "the ConfigMap of Website "+namespace+"/"+name+" does not have its page")
				}
			}
		}
	}

	return problems, nil
}

// records collects the histories of all processes.
func (run *Run) records() (check.Run, error) {
	records := check.Run{Frozen: run.frozen, Bound: bound}
	ended := map[int]time.Duration{}

	for _, m := range run.Members(true) {
		for _, life := range m.Lives() {
			if !life.Ended.IsZero() {
				ended[life.PID] = record.At(life.Ended)
			}
		}
	}

	reader, err := run.work("*")
	if err != nil {
		return records, fmt.Errorf("collect the records: %w", err)
	}

	records.Spans = history.Close(reader.Spans(), ended, record.Now())

	return records, nil
}

// work reads the reconciles that a shard has recorded in all of its lives; "*" means all shards.
func (run *Run) work(shard string) (*history.Reader, error) {
	files, err := filepath.Glob(filepath.Join(run.dir, "history-"+shard+"-*.jsonl"))
	if err != nil {
		return nil, fmt.Errorf("find histories: %w", err)
	}

	return record.Histories(files...)
}

// givenUp records the versions by which a shard released objects.
func givenUp(all map[uint64]string, m *Member) {
	for _, d := range m.Proxy.Done() {
		if BySharder(d.Write) {
			continue // the process has done it for the ring, not as this shard
		}

		next, present := d.Labels()[contract.ShardLabel(m.ring)]

		number, err := strconv.ParseUint(d.ResourceVersion, 10, 64)
		if err == nil && present && (next == nil || *next != m.Name) && d.Status == http.StatusOK {
			all[number] = m.Name
		}
	}
}

// BySharder reports whether a write is one of the embedded sharder, which runs beside a shard.
func BySharder(write proxy.Write) bool { return strings.HasPrefix(write.Agent, "sharder-") }

// ended lists the processes that exited by themselves.
func (run *Run) ended() []string {
	var found []string

	for _, m := range run.order {
		for _, life := range m.Lives() {
			if !life.Ended.IsZero() && !life.Told {
				found = append(found, fmt.Sprintf("%s (process %d, %v)%s", m.Name, life.PID, life.Err, run.lastError(m)))
			}
		}
	}

	return found
}

// lastError returns the last error in the log of a process.
func (run *Run) lastError(m *Member) string {
	content, err := os.ReadFile(filepath.Join(run.dir, m.Name+".log"))
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

// panics searches the logs for panics and data races.
func (run *Run) panics() error {
	var errs []error

	for _, m := range run.order {
		found, err := process.Find(filepath.Join(run.dir, m.Name+".log"), 1, "panic:", "DATA RACE", "Observed a panic")
		if err == nil && len(found) > 0 { // a process that never started has no log
			errs = append(errs, fmt.Errorf("the log of %s has %q", m.Name, found[0]))
		}
	}

	return errors.Join(errs...)
}

// dump saves the records of a failed run.
func (run *Run) dump(runs []check.Run) error {
	var out strings.Builder
	for i, records := range runs {
		fmt.Fprintln(&out, "ring", run.rings[i].Name)

		for _, v := range records.Versions {
			fmt.Fprintln(&out, v)
		}

		for _, s := range records.Spans {
			fmt.Fprintln(&out, s)
		}
	}

	for _, m := range run.order {
		for _, d := range m.Proxy.Done() {
			fmt.Fprintf(&out, "write %s: %s -> %d, version %s, lost %t\n", m.Name, d.Write, d.Status, d.ResourceVersion, d.Lost)
		}
	}

	if err := os.WriteFile(filepath.Join(run.dir, "records.txt"), []byte(out.String()), 0o600); err != nil {
		return fmt.Errorf("save the records: %w", err)
	}

	return nil
}
