package stage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/faults/check"
	"github.com/clusterring/clusterring/tools/faults/process"
	"github.com/clusterring/clusterring/tools/faults/proxy"
	"github.com/clusterring/clusterring/tools/faults/record"
)

const shardBinary = "example"

// Member is a process of a run and the proxy that it goes through.
type Member struct {
	// Name is that of the process: a service's binary, for a second replica with "-2", or a shard's name.
	Name string
	// Proxy is there from the beginning, Process once it was started.
	Proxy   *proxy.Proxy
	Process *process.Process

	binary string
	args   []string
}

// IsShard says whether it is a shard.
func (m *Member) IsShard() bool { return m.binary == shardBinary }

// World is one run.
type World struct {
	*Stage
	dir      string
	recorder *record.Recorder
	stop     context.CancelFunc

	mu      sync.Mutex
	phase   Phase
	members map[string]*Member
	order   []*Member
	frozen  []check.Frozen
	shards  map[string]bool // that are expected to hold their Leases
}

// Shards of the scenario.
var shardNames = []string{"a", "b", "c", "d"}

// enter makes the proxies of a run and begins to record it. Nothing runs yet.
func (s *Stage) enter(ctx context.Context, dir string, c Case) (*World, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a directory for logs: %w", err)
	}
	if err := s.clear(ctx); err != nil {
		return nil, err
	}
	w := &World{Stage: s, dir: dir, members: map[string]*Member{}, shards: map[string]bool{}, phase: Begin}
	recording, stop := context.WithCancel(context.WithoutCancel(ctx))
	w.stop = stop
	var err error
	w.recorder, err = record.Start(recording, s.plane.Config, record.Options{Ring: Ring, Namespace: Namespace, LeaseNamespace: shardNamespace})
	if err != nil {
		stop()
		return nil, fmt.Errorf("begin to record: %w", err)
	}
	if err := w.addServices(c); err != nil {
		return w, err
	}
	for _, name := range shardNames {
		err := w.add(name, shardBinary, "--ring="+Ring, "--shard-name="+name, "--lease-namespace="+shardNamespace,
			"--lease-duration=1s", "--lease-renew-deadline=900ms", "--lease-retry-period=200ms",
			"--work-duration="+c.workDuration().String(), "--metrics-bind-address=0", "--health-probe-bind-address=0")
		if err != nil {
			return w, err
		}
	}
	return w, nil
}

func (w *World) addServices(c Case) error {
	webhook := ""
	for i := range c.replicas() {
		for _, binary := range []string{LeaseMonitor, Assigner, Rebalancer} {
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
			case Assigner:
				address, err := freeAddress()
				if err != nil {
					return err
				}
				if webhook == "" {
					webhook = address // the API server asks the first replica alone
				}
				args = append(args, "--webhook-bind-address="+address, "--webhook-mode=url", "--webhook-url=https://"+webhook)
			}
			if err := w.add(name, binary, args...); err != nil {
				return err
			}
		}
	}
	return nil
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return listener.Addr().String(), listener.Close() //nolint:wrapcheck // it was just opened
}

// add makes the proxy of a process.
func (w *World) add(name, binary string, args ...string) error {
	p, err := proxy.Start(proxy.Options{Name: name, Server: w.plane.Config, Ignore: uncounted, Clock: clock.RealClock{}})
	if err != nil {
		return fmt.Errorf("make the proxy of %s: %w", name, err)
	}
	m := &Member{Name: name, Proxy: p, binary: binary, args: append(args, "--kubeconfig="+w.kubeconfigPath(name))}
	w.members[name], w.order = m, append(w.order, m)
	return p.Kubeconfig(w.kubeconfigs[binary], w.kubeconfigPath(name))
}

// uncounted are the writes that no object depends on: events, leader election, and what shards write into their own Leases.
func uncounted(w proxy.Write) bool {
	switch w.Resource {
	case "events":
		return true
	case "leases":
		return w.Namespace == v1alpha1.SystemNamespace
	}
	return false
}

// Member returns the process of that name; there must be one.
func (w *World) Member(name string) *Member { return w.members[name] }

// Members returns all services, or all shards.
func (w *World) Members(shards bool) []*Member {
	var found []*Member
	for _, m := range w.order {
		if m.IsShard() == shards {
			found = append(found, m)
		}
	}
	return found
}

// Phase returns where the scenario is.
func (w *World) Phase() Phase {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.phase
}

func (w *World) enterPhase(p Phase) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.phase = p
}

// start starts a process.
func (w *World) start(m *Member) error {
	if m.IsShard() {
		w.expect(m.Name, true)
	}
	p, err := process.Start(process.Spec{
		Name: m.Name, Path: filepath.Join(w.bin, m.binary), LogFile: filepath.Join(w.dir, m.Name+".log"),
		Args: func(restarts int) []string {
			if !m.IsShard() {
				return m.args
			}
			return append(m.args, fmt.Sprintf("--history-file=%s", filepath.Join(w.dir, fmt.Sprintf("history-%s-%d.jsonl", m.Name, restarts))))
		},
	})
	if err != nil {
		return fmt.Errorf("start a process: %w", err)
	}
	m.Process = p
	return nil
}

// expect says whether the shard shall hold its Lease from now on.
func (w *World) expect(shard string, holds bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if holds {
		w.shards[shard] = true
	} else {
		delete(w.shards, shard)
	}
}

// Froze notes that a process was stopped from outside.
func (w *World) Froze(f check.Frozen) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frozen = append(w.frozen, f)
}

// leave ends every process and all else of the run.
func (w *World) leave() error {
	var errs []error
	for _, m := range w.order {
		if m.Process != nil {
			errs = append(errs, m.Process.Retire(syscall.SIGKILL, stopTimeout))
		}
	}
	for _, m := range w.order {
		m.Proxy.Stop()
	}
	w.stop()
	w.recorder.Wait()
	return errors.Join(errs...)
}
