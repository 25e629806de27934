package faultrun

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/example/website"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/proxy"
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

// Member is a process of a run with its proxy. The name is the binary of a service, with the suffix "-2" for a second
// replica, or the name of a shard.
type Member struct {
	*services.Member
	ring string // of a shard
	// announced reports that the shard's Lease announces its Pod.
	announced bool
	pod       *corev1.Pod
}

// IsShard reports whether it is a shard.
func (m *Member) IsShard() bool { return m.ring != "" }

// Run is one run: its processes with their proxies, and its rings.
type Run struct {
	*Runner
	system  *system.System
	rings   []*ring
	queries []string // addresses of ringquery
	stop    context.CancelFunc

	took    []string
	members []*Member

	mu     sync.Mutex
	phase  Phase
	frozen []check.Frozen
	shards map[string]bool // expected to hold their Leases
}

// newRun returns a run without processes.
func (s *Runner) newRun(dir string) *Run {
	return &Run{
		Runner: s, shards: map[string]bool{}, phase: Begin, stop: func() {},
		system: system.New(s.client, dir, services.Options{Plane: s.plane, BinDir: s.bin, Proxies: true, Again: again}),
	}
}

// enter creates the proxies of the run and starts recording. No process runs yet.
func (run *Run) enter(ctx context.Context, c Case) {
	must.Do(os.MkdirAll(run.system.Dir, 0o700))
	run.clear(ctx, c.Rings)

	recording, stop := context.WithCancel(context.WithoutCancel(ctx))
	run.stop = stop

	for _, spec := range c.Rings {
		run.rings = append(run.rings, &ring{
			RingSpec: spec, watched: run.system.Watch(recording, spec.Name, spec.recorded()...),
		})
	}

	run.addServices(ctx, c)

	for _, r := range run.rings {
		for _, name := range r.Shards {
			m := &Member{ring: r.Name, announced: r.Pods}
			run.add(ctx, m, services.Spec{
				Name: name, Binary: r.binary(), Namespace: system.ShardNamespace, Account: r.account(), Args: r.shardArgs(name, c),
				More: func() []string {
					args := []string{"--history-file=" + run.system.History(name)}
					if m.pod != nil {
						args = append(args, "--pod-uid="+string(m.pod.UID))
					}

					return args
				},
			})
			run.announce(ctx, m)
		}
	}

	if c.Prepare != nil {
		c.Prepare(run)
	}
}

func (run *Run) addServices(ctx context.Context, c Case) {
	webhook := ""

	for i := range c.Replicas {
		for _, binary := range c.services() {
			name := binary
			if i > 0 {
				name = fmt.Sprint(binary, "-", i+1)
			}

			args := []string{"--leader-elect=false"}
			if c.Replicas > 1 {
				args = []string{"--leader-elect-lease-duration=2s", "--leader-elect-renew-deadline=1500ms",
					"--leader-elect-retry-period=300ms"}
			}

			switch binary {
			case Rebalancer:
				args = append(args, "--settle-period=100ms", "--drain-timeout=5s")
			case RingQuery:
				free := must.Get(process.FreePorts(1))
				run.queries = append(run.queries, free[0])
				args = []string{"--plaintext", "--grpc-bind-address=" + free[0]} // without leader election
			case Assigner:
				free := must.Get(process.FreePorts(1))
				if webhook == "" {
					webhook = free[0] // the API server calls only the first replica
				}

				args = append(args, services.Webhook(free[0], webhook)...)
			case LeaseMonitor:
				if slices.ContainsFunc(c.Rings, func(r RingSpec) bool { return r.Pods }) {
					args = append(args, "--pods")
				}
			}

			run.add(ctx, &Member{}, services.Spec{Name: name, Binary: binary, Args: args})
		}
	}
}

// add adds a process, which does not run yet.
func (run *Run) add(ctx context.Context, m *Member, spec services.Spec) {
	m.Member = must.Get(run.system.Add(ctx, spec))
	run.members = append(run.members, m)
}

// Member returns the process with the name, which must exist.
func (run *Run) Member(name string) *Member {
	return run.members[slices.IndexFunc(run.members, func(m *Member) bool { return m.Name == name })]
}

// Members returns all services, or all shards.
func (run *Run) Members(shards bool) []*Member {
	var found []*Member

	for _, m := range run.members {
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

	must.Do(run.system.Begin(m.Member))
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
	err := run.system.Destroy()
	run.stop()

	for _, r := range run.rings {
		r.watched.Wait()
	}

	return err
}

// Case is one run: the scenario with a fault.
type Case struct {
	// Name describes the fault.
	Name string
	// Replicas is the number of replicas of each service, which elect a leader. Zero means one.
	Replicas int
	// Query adds ringquery to the services.
	Query bool
	// Rings are the rings of the run; nil means one. The last one is deleted at the end.
	Rings []RingSpec
	// WorkDuration is added to the duration of each reconcile. Zero means 20 ms.
	WorkDuration time.Duration
	// Prepare, unless nil, is called before any process starts, for example to set hooks on proxies.
	Prepare func(*Run)
	// Phases are the phases to run; nil means all. Begin and Delete always run.
	Phases []Phase
	// Broken is an invariant that the shards of this case do not keep.
	Broken string
	// Skip, unless nil, is asked when it is the case's turn.
	Skip func() bool
	// During is called in a phase after its actions, before the wait until all objects are in place. After is called after
	// that wait.
	During, After map[Phase]func(context.Context, *Run)
}

// complete sets what the case says nothing about.
func (c *Case) complete() {
	c.Replicas, c.WorkDuration = max(1, c.Replicas), cmp.Or(c.WorkDuration, 20*time.Millisecond)

	c.Rings = slices.Clone(c.Rings)
	if len(c.Rings) == 0 {
		c.Rings = make([]RingSpec, 1)
	}

	for i := range c.Rings {
		r := &c.Rings[i]
		if r.Name == "" {
			r.Name, r.Namespaces = Ring, []string{Namespace}
		}

		if r.Shards == nil {
			r.Shards = []string{"a", "b", "c", "d"}
		}
	}
}

func (c *Case) services() []string {
	if !slices.ContainsFunc(c.Rings, func(r RingSpec) bool { return !r.Embedded }) {
		return nil
	}

	all := []string{LeaseMonitor, Assigner, Rebalancer}
	if c.Query {
		all = append(all, RingQuery)
	}

	return all
}

// Result is the result of a run.
type Result struct {
	// Violations are the violated guarantees.
	Violations []check.Violation
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
	c.complete()

	run := s.newRun(dir)
	result := Result{Err: must.Attempt(func() {
		run.enter(ctx, c)
		run.play(ctx, c)
	})}
	end := record.Now()
	left := run.leave()

	var spans []check.Span

	judged := must.Attempt(func() {
		spans = run.system.Closed(run.system.Spans("*"))
		violations, versions := run.judge(check.Run{Spans: spans, Frozen: run.frozen, Bound: bound}, end)
		result.Spans, result.Versions = len(spans), versions
		result.Violations = slices.DeleteFunc(violations,
			func(v check.Violation) bool { return v.Invariant == c.Broken })
	})

	result.Err = errors.Join(result.Err, left, judged, run.system.Logged("panic:", "DATA RACE", "Observed a panic"))
	result.Ended, result.Took = run.ended(), run.took

	if !result.OK() {
		result.Err = errors.Join(result.Err, run.system.Dump(spans))
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

// Await repeats a part of the scenario until it does not fail.
func (run *Run) Await(ctx context.Context, what string, part func(context.Context)) {
	if err := must.Attempt(func() { must.Until(ctx, patience, part) }); err != nil {
		must.Do(fmt.Errorf("wait until %s: %w", what, err))
	}
}

// Until waits until a condition holds.
func (run *Run) Until(ctx context.Context, what string, holds func() bool) {
	run.Await(ctx, what, func(context.Context) { must.Hold(holds(), "not yet") })
}

// AwaitInPlace waits until I7 holds, and exactly the expected shards hold their Leases.
func (run *Run) AwaitInPlace(ctx context.Context) {
	run.Await(ctx, "all objects are in place (I7)", func(ctx context.Context) {
		run.ready(ctx)

		for _, r := range run.left() {
			must.None(r.Name, r.watched.ObjectProblems(r.watched.Holders(), false))

			for _, namespace := range r.Namespaces {
				if !r.Plain {
					must.None("Websites on which there is work",
						must.Get(website.Unrendered(ctx, run.client, client.InNamespace(namespace))))
				}
			}
		}
	})
}

// Versions returns the versions recorded so far of all rings.
func (run *Run) Versions() []check.Version {
	var all []check.Version
	for _, r := range run.rings {
		all = append(all, r.watched.All()...)
	}

	return all
}

// Newest returns the newest versions of all objects: for an object of two rings, one for each.
func (run *Run) Newest() []check.Version {
	var all []check.Version
	for _, r := range run.rings {
		all = append(all, r.watched.Newest()...)
	}

	return all
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

	for _, m := range run.members {
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
	errs, _ := process.Find(run.system.LogFile(m.Name), math.MaxInt, "error: ") // for people
	if len(errs) == 0 {
		return ""
	}

	return ": " + errs[len(errs)-1]
}

// AtWork reports whether a shard is in a reconcile, according to its history.
func (run *Run) AtWork(shard string) bool {
	return slices.ContainsFunc(run.system.Spans(shard), func(s check.Span) bool { return s.End == 0 })
}
