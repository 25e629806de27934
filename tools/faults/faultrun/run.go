package faultrun

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/faults/proxy"
	"github.com/clusterring/clusterring/tools/lab/judge"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/record"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

const (
	// patience limits the time of each wait.
	patience = 40 * time.Second
	// bound limits the time that an object is without an available shard while a shard is available. A killed service is
	// back after a second.
	bound = 10 * time.Second
)

// again is the pause before a process that exited by itself is restarted.
const again = 300 * time.Millisecond

// Member is a process of a run with its proxy.
type Member struct {
	// Name is the binary of a service, with the suffix "-2" for a second replica, or the name of a shard.
	Name string
	// Proxy runs from the beginning of the run.
	Proxy *proxy.Proxy

	binary string
	ring   string // of a shard
	// account is the service account of a shard.
	account string
	args    []string
	// announced reports that the shard's Lease announces its Pod.
	announced bool
	pod       *corev1.Pod

	mu        sync.Mutex
	processes []*process.Process
	histories atomic.Int32
}

// Process returns the latest process; nil before the first start.
func (m *Member) Process() *process.Process {
	m.mu.Lock()
	defer m.mu.Unlock()

	if len(m.processes) == 0 {
		return nil
	}

	return m.processes[len(m.processes)-1]
}

// Lives returns the lives of all processes so far.
func (m *Member) Lives() []process.Life {
	m.mu.Lock()
	defer m.mu.Unlock()

	var lives []process.Life
	for _, p := range m.processes {
		lives = append(lives, p.Lives()...)
	}

	return lives
}

// IsShard reports whether it is a shard.
func (m *Member) IsShard() bool { return m.ring != "" }

// Run is one run: its processes with their proxies, and its rings.
type Run struct {
	*Runner
	dir     string
	rings   []*ring
	queries []string // addresses of ringquery
	stop    context.CancelFunc

	written atomic.Int32 // writes to Websites so far, which alternate between the versions

	took []string

	mu      sync.Mutex
	phase   Phase
	members map[string]*Member
	order   []*Member
	frozen  []check.Frozen
	shards  map[string]bool // expected to hold their Leases
}

// newRun returns a run without processes.
func (s *Runner) newRun(dir string) *Run {
	return &Run{
		Runner: s, dir: dir, members: map[string]*Member{}, shards: map[string]bool{}, phase: Begin, stop: func() {},
	}
}

// enter creates the proxies of the run and starts recording. No process runs yet.
func (run *Run) enter(ctx context.Context, c Case) {
	must.Do(os.MkdirAll(run.dir, 0o700))
	run.clear(ctx, c.rings())
	run.setCurrent(run)

	recording, stop := context.WithCancel(context.WithoutCancel(ctx))
	run.stop = stop

	for _, spec := range c.rings() {
		recorder := must.Get(record.Start(recording, run.plane.Config, record.Options{
			Ring: spec.Name, Labels: record.Labels{Shard: contract.ShardLabel(spec.Name), Drain: contract.DrainLabel(spec.Name)},
			LeaseNamespace: shardNamespace, Objects: spec.recorded(),
		}))
		run.rings = append(run.rings, &ring{RingSpec: spec, recorder: recorder})
	}

	run.addServices(ctx, c)

	for _, r := range run.rings {
		for _, name := range r.Shards {
			run.add(ctx, &Member{
				Name: name, binary: r.binary(), ring: r.Name, account: r.account(), announced: r.Pods, args: r.shardArgs(name, c),
			})
		}
	}

	if c.Prepare != nil {
		c.Prepare(run)
	}
}

func (run *Run) addServices(ctx context.Context, c Case) {
	webhook := ""

	for i := range c.replicas() {
		for _, binary := range c.services() {
			name := binary
			if i > 0 {
				name = fmt.Sprint(binary, "-", i+1)
			}

			args := []string{"--metrics-bind-address=0", "--health-probe-bind-address=0", "--leader-elect=false"}
			if c.replicas() > 1 {
				args = append(args[:2], "--leader-elect-lease-duration=2s", "--leader-elect-renew-deadline=1500ms",
					"--leader-elect-retry-period=300ms")
			}

			switch binary {
			case Rebalancer:
				args = append(args, "--settle-period=100ms", "--drain-timeout=5s")
			case RingQuery:
				free := must.Get(process.FreePorts(1))
				run.queries = append(run.queries, free[0])
				args = append(args[:2:2], "--plaintext", "--grpc-bind-address="+free[0]) // without leader election
			case Assigner:
				free := must.Get(process.FreePorts(1))
				if webhook == "" {
					webhook = free[0] // the API server calls only the first replica
				}

				args = append(args, services.Webhook(free[0], webhook)...)
			case LeaseMonitor:
				if slices.ContainsFunc(c.rings(), func(r RingSpec) bool { return r.Pods }) {
					args = append(args, "--pods")
				}
			}

			run.add(ctx, &Member{Name: name, binary: binary, args: args})
		}
	}
}

// add creates the proxy of a process.
func (run *Run) add(ctx context.Context, m *Member) {
	m.Proxy = must.Get(proxy.Start(proxy.Options{
		Name: m.Name, Server: run.plane.Config, Ignore: uncounted, Clock: clock.RealClock{},
	}))
	m.args = append(m.args, "--kubeconfig="+run.kubeconfigPath(m.Name))
	run.members[m.Name], run.order = m, append(run.order, m)

	if m.IsShard() {
		run.authenticate(ctx, m)
	} else {
		must.Do(m.Proxy.Kubeconfig(run.kubeconfigs[m.binary], run.kubeconfigPath(m.Name)))
	}
}

// uncounted reports whether a write does not affect objects: events and leader election.
func uncounted(write proxy.Write) bool {
	switch write.Resource {
	case "events":
		return true
	case "leases":
		return write.Namespace == contract.SystemNamespace
	}

	return false
}

// Member returns the process with the name, which must exist.
func (run *Run) Member(name string) *Member { return run.members[name] }

// Members returns all services, or all shards.
func (run *Run) Members(shards bool) []*Member {
	var found []*Member

	for _, m := range run.order {
		if m.IsShard() == shards {
			found = append(found, m)
		}
	}

	return found
}

// Phase returns the current phase.
func (run *Run) Phase() Phase {
	run.mu.Lock()
	defer run.mu.Unlock()

	return run.phase
}

func (run *Run) enterPhase(p Phase) {
	run.mu.Lock()
	defer run.mu.Unlock()

	run.phase = p
}

// Start starts a process that is not running.
func (run *Run) Start(m *Member) {
	if m.IsShard() {
		run.Expect(m.Name, true)
	}
	m.mu.Lock() // held until the process is known
	defer m.mu.Unlock()

	args := slices.Clone(m.args)
	if m.pod != nil {
		args = append(args, "--pod-uid="+string(m.pod.UID))
	}

	spec := process.Spec{
		Name: m.Name, Path: filepath.Join(run.bin, m.binary), Args: args,
		LogFile: filepath.Join(run.dir, m.Name+".log"), Again: again,
	}
	if m.IsShard() {
		spec.More = func() []string {
			return []string{fmt.Sprintf("--history-file=%s/history-%s-%d.jsonl", run.dir, m.Name, m.histories.Add(1))}
		}
	}

	m.processes = append(m.processes, must.Get(process.Start(spec, nil)))
}

// Expect sets whether the shard is expected to hold its Lease.
func (run *Run) Expect(shard string, holds bool) {
	run.mu.Lock()
	defer run.mu.Unlock()

	if holds {
		run.shards[shard] = true
	} else {
		delete(run.shards, shard)
	}
}

// Froze records that a process was frozen.
func (run *Run) Froze(f check.Frozen) {
	run.mu.Lock()
	defer run.mu.Unlock()

	run.frozen = append(run.frozen, f)
}

// leave stops all processes, proxies, and recorders of the run.
func (run *Run) leave() error {
	err := run.endAll()
	run.setCurrent(nil)

	for _, m := range run.order {
		m.Proxy.Stop()
	}
	run.stop()

	for _, r := range run.rings {
		r.recorder.Wait()
	}

	return err
}

func (run *Run) endAll() error {
	var errs []error

	for _, m := range run.order {
		if p := m.Process(); p != nil {
			errs = append(errs, p.Destroy())
		}
	}

	return errors.Join(errs...)
}

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
	// During is called in a phase after its actions, before the wait until all objects are in place. After is called after
	// that wait.
	During, After map[Phase]func(context.Context, *Run)
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
	run := s.newRun(dir)
	result := Result{Uncounted: map[string]int{}, Err: must.Attempt(func() {
		run.enter(ctx, c)
		run.play(ctx, c)
	})}
	end := record.Now()
	left := run.leave()
	gathered, incomplete := run.records()

	violations, runs, err := run.judge(gathered, end)
	for _, v := range violations {
		if slices.Contains(c.Uncounted, v.Invariant) {
			result.Uncounted[v.Invariant]++
		} else {
			result.Violations = append(result.Violations, v)
		}
	}

	result.Err = errors.Join(result.Err, left, incomplete, err, run.panics())
	result.Ended, result.Took = run.ended(), run.took

	for _, r := range runs {
		result.Spans += len(r.Spans)
		result.Versions += len(r.Versions)
	}

	if !result.OK() {
		result.Err = errors.Join(result.Err, run.dump(runs))
	}

	return result
}

// play runs the phases of the case.
func (run *Run) play(ctx context.Context, c Case) {
	nothing := func(context.Context, *Run) {}
	inPlace := func(ctx context.Context, run *Run) { run.AwaitInPlace(ctx) }

	for _, s := range scenario {
		if c.Phases != nil && s.phase != Begin && s.phase != Delete && !slices.Contains(c.Phases, s.phase) {
			continue
		}

		begin := record.Now()
		run.enterPhase(s.phase)

		for _, do := range []func(context.Context, *Run){s.play, c.During[s.phase], inPlace, c.After[s.phase]} {
			if do == nil {
				do = nothing
			}

			if err := must.Attempt(func() { do(ctx, run) }); err != nil {
				must.Do(fmt.Errorf("phase %s: %w", s.phase, err))
			}
		}

		run.took = append(run.took, fmt.Sprintf("%s %.1f s", s.phase, (record.Now()-begin).Seconds()))
	}
}

// Await waits until look returns no problems. The error lists the remaining problems.
func (run *Run) Await(ctx context.Context, what string, look func(context.Context) []string) {
	err := must.Attempt(func() {
		must.Await(ctx, patience, func(ctx context.Context) string { return strings.Join(look(ctx), "\n    ") })
	})
	if err != nil {
		must.Do(fmt.Errorf("wait until %s: %w", what, err))
	}
}

// Until waits until a condition holds.
func (run *Run) Until(ctx context.Context, what string, holds func() bool) {
	run.Await(ctx, what, func(context.Context) []string {
		if holds() {
			return nil
		}

		return []string{"not yet"}
	})
}

// AwaitInPlace waits until I7 holds, and exactly the expected shards hold their Leases.
func (run *Run) AwaitInPlace(ctx context.Context) {
	run.Await(ctx, "all objects are in place (I7)", func(ctx context.Context) []string {
		problems := append(run.statusProblems(ctx), run.objectProblems()...)
		if len(problems) > 0 {
			return problems
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

// Versions returns the versions recorded so far of all rings.
func (run *Run) Versions() []check.Version {
	var all []check.Version
	for _, r := range run.rings {
		all = append(all, must.Get(r.recorder.Versions())...)
	}

	return all
}

// Newest returns the newest versions of all objects: for an object of two rings, one for each.
func (run *Run) Newest() []check.Version {
	var all []check.Version
	for _, r := range run.rings {
		all = append(all, r.recorder.Newest()...)
	}

	return all
}

// pages returns on which Websites the shards of the example still have work.
func (run *Run) pages(ctx context.Context) []string {
	var problems []string

	for _, r := range run.left() {
		if r.binary() != shardBinary {
			continue
		}

		for _, namespace := range r.Namespaces {
			for _, key := range must.Get(judge.Unrendered(ctx, run.client, client.InNamespace(namespace))) {
				problems = append(problems, "the work on Website "+key.String()+" is not done")
			}
		}
	}

	return problems
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

// AtWork reports whether a shard is in a reconcile, according to its history.
func (run *Run) AtWork(shard string) bool {
	reader, err := run.work(shard)
	return err == nil && slices.ContainsFunc(reader.Spans(), func(s check.Span) bool { return s.End == 0 })
}
