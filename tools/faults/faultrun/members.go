package faultrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/faults/proxy"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/record"
	"github.com/clusterring/clusterring/tools/testkit/services"
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
	// announced says that the shard's Lease announces its Pod.
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

// enter creates the proxies of a run and starts recording. No process runs yet.
func (s *Runner) enter(ctx context.Context, dir string, c Case) (*Run, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a directory for logs: %w", err)
	}

	if err := s.clear(ctx, c.rings()); err != nil {
		return nil, err
	}

	run := &Run{Runner: s, dir: dir, members: map[string]*Member{}, shards: map[string]bool{}, phase: Begin}
	recording, stop := context.WithCancel(context.WithoutCancel(ctx))
	run.stop = stop

	for _, spec := range c.rings() {
		recorder, err := record.Start(recording, s.plane.Config, record.Options{
			Ring: spec.Name, Labels: record.Labels{Shard: contract.ShardLabel(spec.Name), Drain: contract.DrainLabel(spec.Name)},
			LeaseNamespace: shardNamespace, Objects: spec.recorded(),
		})
		if err != nil {
			return run, fmt.Errorf("begin to record: %w", err)
		}

		run.rings = append(run.rings, &ring{RingSpec: spec, recorder: recorder})
	}

	if err := run.addServices(ctx, c); err != nil {
		return run, err
	}

	for _, r := range run.rings {
		for _, name := range r.Shards {
			if err := run.add(ctx, &Member{Name: name, binary: r.binary(), ring: r.Name, account: r.account(), announced: r.Pods, args: r.shardArgs(name, c)}); err != nil {
				return run, err
			}
		}
	}
	s.setCurrent(run)

	return run, nil
}

func (run *Run) addServices(ctx context.Context, c Case) error {
	webhook := ""

	for i := range c.replicas() {
		for _, binary := range c.services() {
			name := binary
			if i > 0 {
				name = fmt.Sprint(binary, "-", i+1)
			}

			args := []string{"--metrics-bind-address=0", "--health-probe-bind-address=0", "--leader-elect=false"}
			if c.replicas() > 1 {
				args = append(args[:2], "--leader-elect-lease-duration=2s", "--leader-elect-renew-deadline=1500ms", "--leader-elect-retry-period=300ms")
			}

			switch binary {
			case Rebalancer:
				args = append(args, "--settle-period=100ms", "--drain-timeout=5s")
			case RingQuery:
				free, err := process.FreePorts(1)
				if err != nil {
					return err
				}

				run.queries = append(run.queries, free[0])
				args = append(args[:2:2], "--plaintext", "--grpc-bind-address="+free[0]) // without leader election
			case Assigner:
				free, err := process.FreePorts(1)
				if err != nil {
					return err
				}

				if webhook == "" {
					webhook = free[0] // the API server calls only the first replica
				}

				args = append(args, services.Webhook(free[0], webhook)...)
			case LeaseMonitor:
				if slices.ContainsFunc(c.rings(), func(r RingSpec) bool { return r.Pods }) {
					args = append(args, "--pods")
				}
			}

			if err := run.add(ctx, &Member{Name: name, binary: binary, args: args}); err != nil {
				return err
			}
		}
	}

	return nil
}

// add creates the proxy of a process.
func (run *Run) add(ctx context.Context, m *Member) error {
	p, err := proxy.Start(proxy.Options{Name: m.Name, Server: run.plane.Config, Ignore: uncounted, Clock: clock.RealClock{}})
	if err != nil {
		return fmt.Errorf("make the proxy of %s: %w", m.Name, err)
	}

	m.Proxy, m.args = p, append(m.args, "--kubeconfig="+run.kubeconfigPath(m.Name))
	run.members[m.Name], run.order = m, append(run.order, m)

	if m.IsShard() {
		return run.authenticate(ctx, m)
	}

	return p.Kubeconfig(run.kubeconfigs[m.binary], run.kubeconfigPath(m.Name))
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
func (run *Run) Start(m *Member) error {
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
		Name: m.Name, Path: filepath.Join(run.bin, m.binary), Args: args, LogFile: filepath.Join(run.dir, m.Name+".log"), Again: again,
	}
	if m.IsShard() {
		spec.More = func() []string {
			return []string{fmt.Sprintf("--history-file=%s/history-%s-%d.jsonl", run.dir, m.Name, m.histories.Add(1))}
		}
	}

	p, err := process.Start(spec, nil)
	if err != nil {
		return fmt.Errorf("start a process: %w", err)
	}

	m.processes = append(m.processes, p)

	return nil
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

// AtWork reports whether a shard is in a reconcile, according to its history.
func (run *Run) AtWork(shard string) bool {
	reader, err := run.work(shard)
	return err == nil && slices.ContainsFunc(reader.Spans(), func(s check.Span) bool { return s.End == 0 })
}
