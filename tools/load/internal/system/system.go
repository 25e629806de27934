// Package system is what is measured: a control plane and the four services, started as processes of this machine, each service
// with a token of its own service account; or those of a cluster, where they are installed already.
package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/process"
	"github.com/clusterring/clusterring/tools/load/internal/usage"
	"github.com/clusterring/clusterring/tools/localplane"
)

// Names of what is measured, as in the results of [System.Usage].
const (
	LeaseMonitor = "leasemonitor"
	Assigner     = "assigner"
	Rebalancer   = "rebalancer"
	RingQuery    = "ringquery"
	APIServer    = "apiserver"
	Etcd         = "etcd"
)

// Services are the names of the services.
var Services = []string{LeaseMonitor, Assigner, Rebalancer, RingQuery}

const (
	readyTimeout = 60 * time.Second
	stopTimeout  = 20 * time.Second
	pollInterval = 50 * time.Millisecond
	// statePrefix begins the name of every temporary state directory.
	statePrefix = "clusterring-load-"
)

// Options say what to start. BinDir has to be set for [Start].
type Options struct {
	// BinDir holds the binaries of the services. Assets holds those of the control plane; empty means what localplane finds or builds.
	BinDir, Assets string
	// StateDir is a new directory for data, logs and kubeconfigs. Empty means a temporary one, which Stop removes.
	StateDir string
	// Args are more arguments of services, by their names.
	Args map[string][]string
	// Profile has every service serve profiles: see [System.Profile].
	Profile bool
	// Progress gets a line for each thing that takes a while.
	Progress io.Writer
}

// System is what is measured. [Start] or [Connect] makes it. Its methods are safe for concurrent use, but for Stop, which has to be
// the last.
type System struct {
	// Config and Client act as an administrator and do not limit their rate. Client reads from the API server, and knows Kubernetes'
	// types and ClusterRings.
	Config *rest.Config
	Client client.WithWatch
	// Writer is whom objects are written as, with all rights, too. Here it has the token of a ServiceAccount, as shards have: an API
	// server remembers tokens, but verifies a client certificate in each request, at the cost of a twentieth of a write.
	Writer *rest.Config

	options   Options
	plane     *localplane.Plane // nil for a cluster
	cluster   *cluster          // nil here
	temporary bool
	services  map[string]*service
	death     chan error
	undo      []func(context.Context) error // in reverse order

	accounts sync.Mutex // held while somebody becomes an account

	mu      sync.Mutex
	running map[string]*process.Process
	pids    map[string]int // of the control plane
}

// Start starts a control plane and the four services, one replica each, and returns when all are ready. ConfigMaps and the example's
// Websites can be sharded there. What it returns has to be stopped even if there is an error, unless it is nil.
func Start(ctx context.Context, o Options) (*System, error) {
	if err := process.CheckBinaries(o.BinDir, Services...); err != nil {
		return nil, err
	}
	s := &System{options: o, services: map[string]*service{}, death: make(chan error, 1), running: map[string]*process.Process{}}
	if o.StateDir == "" {
		dir, err := os.MkdirTemp("", statePrefix+"*")
		if err != nil {
			return nil, fmt.Errorf("make a state directory: %w", err)
		}
		s.options.StateDir, s.temporary = dir, true
	}
	for _, step := range []func(context.Context) error{s.startPlane, s.install, s.startServices} {
		if err := step(ctx); err != nil {
			return s, err
		}
		if ctx.Err() != nil {
			return s, context.Cause(ctx)
		}
	}
	return s, nil
}

func (s *System) startPlane(context.Context) error {
	s.progress("starting etcd and the API server")
	plane, err := localplane.Start(localplane.Options{Dir: s.options.StateDir, BinDir: s.options.Assets, Log: s.options.Progress})
	if err != nil {
		return fmt.Errorf("start the control plane: %w", err)
	}
	s.plane = plane
	pids, err := plane.Processes()
	if err != nil {
		return fmt.Errorf("find the control plane: %w", err)
	}
	s.pids = map[string]int{}
	for name, program := range map[string]string{APIServer: "kube-apiserver", Etcd: "etcd"} {
		pid, ok := pids[program]
		if !ok {
			return fmt.Errorf("there is no process %s of %s", program, plane.Dir())
		}
		s.pids[name] = pid
	}
	return s.use(plane.Config)
}

// use makes the clients.
func (s *System) use(config *rest.Config) error {
	s.Config = rest.CopyConfig(config)
	s.Config.QPS = -1
	s.Writer = s.Config
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("register the types: %w", err)
	}
	var err error
	if s.Client, err = client.NewWithWatch(s.Config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	return nil
}

func (s *System) install(ctx context.Context) error {
	s.progress("installing deploy/base, and rights on what is measured")
	if err := s.grant(ctx); err != nil {
		return err
	}
	if err := s.plane.Install(ctx, "deploy/base", "deploy/example/crd"); err != nil {
		return fmt.Errorf("install the manifests: %w", err)
	}
	return s.becomeWriter(ctx)
}

// Local reports whether all that is measured are processes of this machine.
func (s *System) Local() bool { return s.plane != nil }

// Etcd returns the URL of the etcd of this machine; empty for a cluster.
func (s *System) Etcd() string {
	if !s.Local() {
		return ""
	}
	return s.plane.Etcd()
}

// Usage returns a reader of what services, API server and etcd use, and what was launched besides.
func (s *System) Usage() usage.Reader {
	if s.Local() {
		return usage.Local{Processes: s.Processes}
	}
	return usage.NewMetrics(s.cluster.metrics)
}

// Processes returns the process ids of all that runs on this machine, by name.
func (s *System) Processes() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	pids := map[string]int{}
	maps.Copy(pids, s.pids)
	for name, p := range s.running {
		if p.Running() {
			pids[name] = p.PID()
		}
	}
	return pids
}

// Died gets an error when a process has ended though nobody has told it to.
func (s *System) Died() <-chan error { return s.death }

// StateDir returns the directory of what runs on this machine.
func (s *System) StateDir() string { return s.options.StateDir }

// LogFile returns the path of the log of a process of this machine.
func (s *System) LogFile(name string) string {
	return filepath.Join(s.options.StateDir, "logs", name+".log")
}

// Stop stops everything that was started, and removes what was created in a cluster.
func (s *System) Stop() error {
	var errs []error
	if !s.Local() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		for _, undo := range slices.Backward(s.undo) {
			errs = append(errs, undo(ctx))
		}
	}
	s.mu.Lock()
	var stopping []*process.Process
	for _, p := range s.running {
		stopping = append(stopping, p)
	}
	s.mu.Unlock()
	for _, p := range stopping {
		errs = append(errs, p.Terminate())
	}
	for _, p := range stopping {
		errs = append(errs, p.AwaitExit(stopTimeout))
	}
	if s.plane != nil {
		errs = append(errs, s.plane.Stop())
	}
	if s.temporary {
		errs = append(errs, os.RemoveAll(s.options.StateDir))
	}
	return errors.Join(errs...)
}

func (s *System) progress(format string, args ...any) {
	fmt.Fprintf(s.options.Progress, "==> "+format+"\n", args...)
}
