// Package localsystem runs all of ClusterRing on this machine: a control plane, the services with the rights of their service
// accounts, and shards of the example controller, each as a process of its own.
package localsystem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/demo/internal/balance"
	"github.com/clusterring/clusterring/tools/lab/localplane"
	"github.com/clusterring/clusterring/tools/lab/process"
	"github.com/clusterring/clusterring/tools/lab/services"
)

const (
	// Ring is the name of the ring that deploy/example declares.
	Ring = "example"
	// ShardNamespace holds the Leases of the shards, ShardAccount is their service account there.
	ShardNamespace = "example"
	// ShardAccount is the service account of the shards.
	ShardAccount = "example-shard"

	// LeaseDuration is that of the shards' Leases: much shorter than in a cluster, so that nobody has to wait long for a
	// killed shard to be declared dead.
	LeaseDuration = 6 * time.Second
	// renewDeadline is how long a shard may fail to renew its Lease: nearly all of that, for this machine may be busy.
	renewDeadline = 5500 * time.Millisecond
	retryPeriod   = 800 * time.Millisecond

	// logs is the directory of the logs, below that of the state.
	logs = "logs"
)

// Console is where progress is shown.
type Console interface {
	Progress(format string, args ...any)
	OK(format string, args ...any)
}

// Options say what to run.
type Options struct {
	// BinDir holds the binaries of the services, the example, the kubectl plugin and grpcurl.
	BinDir string
	// Assets holds those of the control plane; empty means what localplane finds or builds.
	Assets string
	// StateDir holds all files.
	StateDir string
	Console  Console
}

// System is all that runs. Start makes it. Its methods are safe for concurrent use, but for Stop, which has to be the last.
type System struct {
	Options
	// Plane is the control plane.
	Plane *localplane.Plane

	group   *services.Group      // nil until the control plane runs
	front   *balance.Forwarder   // of the assigner's replicas
	open    string               // address of ringquery-1
	guarded string               // address of ringquery-2
	cert    services.Certificate // of ringquery-2
}

// binaries are what BinDir has to hold.
var binaries = slices.Concat(services.All, []string{"example", "kubectl-ring", "grpcurl"})

// CheckBinaries returns an error unless everything that is needed has been built.
func CheckBinaries(binDir string, others ...string) error {
	return process.CheckBinaries(binDir, slices.Concat(binaries, others)...)
}

// Start starts the control plane, installs the manifests and starts the services. It returns when all are ready. What it
// returns has to be stopped even if there is an error, unless it is nil.
func Start(ctx context.Context, o Options) (*System, error) {
	for _, dir := range []string{logs, "history"} {
		if err := os.MkdirAll(filepath.Join(o.StateDir, dir), 0o700); err != nil {
			return nil, fmt.Errorf("prepare the state directory: %w", err)
		}
	}

	s := &System{Options: o}
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
	begin := time.Now()
	s.Console.Progress("waiting for etcd, the API server and the controller manager")

	plane, err := localplane.Start(localplane.Options{Dir: s.StateDir, BinDir: s.Assets, ControllerManager: true, Log: os.Stderr})
	if err != nil {
		return fmt.Errorf("start the control plane: %w", err)
	}

	s.Plane = plane
	s.Console.OK("etcd, kube-apiserver and kube-controller-manager run (%s, %.1f s)", plane.Config.Host, time.Since(begin).Seconds())

	return nil
}

func (s *System) install(ctx context.Context) error {
	s.Console.Progress("installing deploy/base and deploy/example")

	if err := s.Plane.Install(ctx, "deploy/base", "deploy/example"); err != nil {
		return fmt.Errorf("install the manifests: %w", err)
	}
	s.Console.OK("deploy/base and deploy/example are installed: CRDs, service accounts, RBAC, ClusterRing %s", Ring)

	return nil
}

// Died gets an error when a process has ended though nobody has told it to.
func (s *System) Died() <-chan error { return s.group.Died() }

// LogFile returns the path of the log of a process.
func (s *System) LogFile(name string) string { return s.group.LogFile(name) }

// Processes returns all processes that were ever started: services and shards.
func (s *System) Processes() []*process.Process { return s.group.Started() }

// Stop stops everything: shards, services, control plane.
func (s *System) Stop() error {
	var errs []error
	if s.group != nil {
		errs = append(errs, s.group.Stop())
	}

	if s.front != nil {
		errs = append(errs, s.front.Close())
	}

	if s.Plane != nil {
		errs = append(errs, s.Plane.Stop())
	}

	return errors.Join(errs...)
}

// Display returns a path as short as it can be typed from the working directory.
func Display(path string) string {
	here, err := os.Getwd()
	if err != nil {
		return path
	}

	short, err := filepath.Rel(here, path)
	if err != nil || strings.HasPrefix(short, "..") {
		return path
	}

	if !strings.Contains(short, string(filepath.Separator)) {
		return "." + string(filepath.Separator) + short
	}

	return short
}
