// Package localsystem runs all of ClusterRing on this machine: a control plane, the services with the permissions of
// their service accounts, and shards of the example controller, each as a process of its own.
package localsystem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

const (
	// Ring is the name of the ring that deploy/example declares.
	Ring = "example"
	// ShardNamespace contains the Leases of the shards and their service account.
	ShardNamespace = "example"
	shardAccount   = "example-shard"

	// LeaseDuration is the duration of the shards' Leases: much shorter than in a cluster, so that nobody has to wait long
	// until a killed shard is dead.
	LeaseDuration = 6 * time.Second
	// renewDeadline limits the time without a renewal. It is nearly the duration, because this machine may be busy.
	renewDeadline = 5500 * time.Millisecond
	retryPeriod   = 800 * time.Millisecond

	// Each reconcile takes a while, and many run at once, so that two of one object would overlap if they could.
	workDuration = 250 * time.Millisecond
	concurrency  = 64
)

// Names of the services. Ringquery has two replicas: RingQuery1 has neither TLS nor authentication, RingQuery2 has
// both.
const (
	LeaseMonitor = services.LeaseMonitor
	Assigner     = services.Assigner
	Rebalancer   = services.Rebalancer
	RingQuery1   = "ringquery-1"
	RingQuery2   = "ringquery-2"
)

// Options configure a system.
type Options struct {
	// BinDir contains the binaries of the services, the example, the kubectl plugin, and grpcurl.
	BinDir string
	// Assets contains the binaries of the control plane.
	Assets string
	// StateDir contains all files.
	StateDir string
	Console  *report.Console
}

// System is a running system. [Run] starts and stops it. It is safe for concurrent use.
type System struct {
	*services.Group
	Options
	// Plane is the control plane.
	Plane *localplane.Plane
	// Queries is the address of RingQuery1, GuardedQueries the address of RingQuery2. CA is the file with the CA of its
	// certificate.
	Queries, GuardedQueries, CA string
}

// CheckBinaries returns an error unless the directory contains all binaries that a system needs, and the others.
func CheckBinaries(binDir string, others ...string) error {
	return process.CheckBinaries(binDir,
		slices.Concat(services.All, []string{"example", "kubectl-ring", "grpcurl"}, others)...)
}

// Run starts the control plane, installs the manifests, and starts the services. When all are ready, it calls use, and
// then stops everything. The context of use ends before that.
func Run(ctx context.Context, o Options, use func(context.Context, *System) error) (err error) {
	for _, dir := range []string{"logs", "history"} {
		if err := os.MkdirAll(filepath.Join(o.StateDir, dir), 0o700); err != nil {
			return fmt.Errorf("prepare the state directory: %w", err)
		}
	}

	begin := time.Now()
	o.Console.Progress("waiting for etcd, the API server and the controller manager")

	plane, err := localplane.Start(localplane.Options{
		Knows: v1alpha1.AddToScheme, Dir: o.StateDir, BinDir: o.Assets, ControllerManager: true, Log: os.Stderr,
	})
	if err != nil {
		return fmt.Errorf("start the control plane: %w", err)
	}
	defer func() { err = errors.Join(err, plane.Stop()) }()
	o.Console.OK("etcd, kube-apiserver and kube-controller-manager run (%s, %.1f s)", plane.Config.Host,
		time.Since(begin).Seconds())

	if ctx.Err() != nil {
		return context.Cause(ctx)
	}

	o.Console.Progress("installing deploy/base and deploy/example")

	if err := plane.Install(ctx, "deploy/base", "deploy/example"); err != nil {
		return fmt.Errorf("install the manifests: %w", err)
	}
	o.Console.OK("deploy/base and deploy/example are installed: CRDs, service accounts, RBAC, ClusterRing %s", Ring)

	s := &System{Options: o, Plane: plane, Group: services.New(services.Options{
		Plane: plane, BinDir: o.BinDir, LogDir: filepath.Join(o.StateDir, "logs"),
		Waiting: func(name, answer string) { o.Console.Progress("waiting until %s is ready: %s", name, answer) },
	})}

	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		o.Console.Progress("stopping everything")

		err = errors.Join(err, s.Stop())
	}()

	if err := s.startServices(ctx); err != nil {
		return err
	}

	return use(ctx, s)
}

// startServices starts all services at once and waits until they are ready.
func (s *System) startServices(ctx context.Context) error {
	const ports = 3

	free, err := process.FreePorts(ports)
	if err != nil {
		return err
	}

	s.Queries, s.GuardedQueries = free[1], free[2]

	cert, err := services.NewCertificate(s.StateDir, RingQuery2, time.Now())
	if err != nil {
		return err
	}

	s.CA = cert.CertFile
	begin := time.Now()

	err = s.Start(ctx,
		services.Spec{Name: LeaseMonitor, Binary: services.LeaseMonitor},
		services.Spec{Name: Assigner, Binary: services.Assigner, Args: services.Webhook(free[0], free[0])},
		services.Spec{Name: Rebalancer, Binary: services.Rebalancer,
			Args: []string{"--settle-period=" + services.SettlePeriod.String()}},
		services.Spec{Name: RingQuery1, Binary: services.RingQuery, Args: services.OpenQueries(s.Queries)},
		services.Spec{Name: RingQuery2, Binary: services.RingQuery, Args: []string{
			"--grpc-bind-address=" + s.GuardedQueries, "--ca-mode=file",
			"--tls-cert-file=" + cert.CertFile, "--tls-private-key-file=" + cert.KeyFile,
			"--access-cache-ttl=0s", // a new permission is effective immediately
		}},
	)
	if err == nil {
		s.Console.OK("leasemonitor, assigner, rebalancer and 2 × ringquery are ready, "+
			"each with a token of its own service account (%.1f s)", time.Since(begin).Seconds())
	}

	return err
}

// ReadyServices returns an error for each service that is not ready.
func (s *System) ReadyServices(ctx context.Context) error {
	return s.Ready(ctx, LeaseMonitor, Assigner, Rebalancer, RingQuery1, RingQuery2)
}

// HistoryFile is the file in which a shard records its reconciles.
func (s *System) HistoryFile(shard string) string {
	return filepath.Join(s.StateDir, "history", shard+".jsonl")
}

// CarelessFile is the file in which a shard records what it wrote after it had lost its Lease.
func (s *System) CarelessFile(shard string) string {
	return filepath.Join(s.StateDir, "history", shard+".careless.jsonl")
}

// StartShards starts processes of the example controller at once, with these flags besides the usual ones, and waits
// until each holds its Lease or, if it takes a slot, holds one or waits for one. identity is the flag that tells a
// process its name.
func (s *System) StartShards(ctx context.Context, identity string, flags []string, names ...string) error {
	var specs []services.Spec
	for _, name := range names {
		specs = append(specs, services.Spec{
			Name: name, Binary: "example", Namespace: ShardNamespace, Account: shardAccount, Args: append([]string{
				identity + "=" + name, "--ring=" + Ring, "--lease-namespace=" + ShardNamespace,
				"--lease-duration=" + LeaseDuration.String(), "--lease-renew-deadline=" + renewDeadline.String(),
				"--lease-retry-period=" + retryPeriod.String(),
				"--careless-file=" + s.CarelessFile(name), "--history-file=" + s.HistoryFile(name),
				"--work-duration=" + workDuration.String(), "--concurrency=" + strconv.Itoa(concurrency),
				"--kube-api-qps=150", "--kube-api-burst=150",
			}, flags...),
		})
	}

	return s.Start(ctx, specs...)
}

// ShardKubeconfig returns the path of a kubeconfig for a shard that somebody else starts.
func (s *System) ShardKubeconfig(ctx context.Context, name string) (string, error) {
	return s.Plane.PodKubeconfig(ctx, ShardNamespace, shardAccount, name)
}

// Display returns a path that can be typed in the working directory: a relative one for files below it.
func Display(path string) string {
	here, err := os.Getwd()
	if below, is := strings.CutPrefix(path, here+string(filepath.Separator)); is && err == nil {
		return "." + string(filepath.Separator) + below
	}

	return path
}
