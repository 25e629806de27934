// Package localsystem runs all of ClusterRing on this machine: a control plane, the services with the permissions of
// their service accounts, and shards of the example controller, each as a process of its own.
package localsystem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

const (
	// Ring is the name of the ring that deploy/example declares.
	Ring = "example"

	// LeaseDuration is the duration of the shards' Leases: much shorter than in a cluster, so that nobody has to wait long
	// until a killed shard is dead.
	LeaseDuration = 6 * time.Second
	// renewDeadline limits the time without a renewal. It is nearly the duration, because this machine may be busy.
	renewDeadline = 5500 * time.Millisecond
	retryPeriod   = 800 * time.Millisecond

	// Each reconcile takes a while, and many run at once, so that two of one object would overlap if they could.
	workDuration = 250 * time.Millisecond
	concurrency  = 64

	// shownLines is the number of lines of a log in an error.
	shownLines = 8
)

// Names of the replicas of ringquery. RingQuery1 has neither TLS nor authentication, RingQuery2 has both.
const (
	RingQuery1 = services.RingQuery + "-1"
	RingQuery2 = services.RingQuery + "-2"
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
	*system.System
	Options
	// Queries is the address of RingQuery1, GuardedQueries the address of RingQuery2. CA is the file with the CA of its
	// certificate.
	Queries, GuardedQueries, CA string
}

// Run starts the control plane, installs the manifests, and starts the services. When all are ready, it calls use, and
// then stops everything. The context of use ends before that.
func Run(ctx context.Context, o Options, use func(context.Context, *System) error) (err error) {
	begin := time.Now()

	plane, err := localplane.Start(localplane.Options{
		Knows: func(s *runtime.Scheme) error {
			return errors.Join(v1alpha1.AddToScheme(s), examplev1alpha1.AddToScheme(s))
		},
		Dir: o.StateDir, BinDir: o.Assets, ControllerManager: true, Log: os.Stderr,
	})
	if err != nil {
		return fmt.Errorf("start the control plane: %w", err)
	}
	defer func() { err = errors.Join(err, plane.Stop()) }()
	o.Console.OK("etcd, kube-apiserver and kube-controller-manager run (%s, %s)", plane.Config.Host,
		report.Seconds(time.Since(begin)))

	if ctx.Err() != nil {
		return context.Cause(ctx)
	}

	if err := plane.Install(ctx, "deploy/base", "deploy/example"); err != nil {
		return fmt.Errorf("install the manifests: %w", err)
	}
	o.Console.OK("deploy/base and deploy/example are installed: CRDs, service accounts, RBAC, ClusterRing %s", Ring)

	s := &System{Options: o, System: system.New(plane.Client, filepath.Join(o.StateDir, "logs"),
		services.Options{Plane: plane, BinDir: o.BinDir, ShownLines: shownLines})}

	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()

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

	cert, err := services.NewCertificate(s.StateDir, RingQuery2)
	if err != nil {
		return err
	}

	s.CA = cert.CertFile
	begin := time.Now()

	err = s.Start(ctx,
		services.Spec{Name: services.LeaseMonitor, Binary: services.LeaseMonitor},
		services.Spec{Name: services.Assigner, Binary: services.Assigner, Args: services.Webhook(free[0], free[0])},
		services.Spec{Name: services.Rebalancer, Binary: services.Rebalancer,
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
			"each with a token of its own service account (%s)", report.Seconds(time.Since(begin)))
	}

	return err
}

// CarelessFile is the file in which a shard records what it wrote after it had lost its Lease.
func (s *System) CarelessFile(shard string) string {
	return filepath.Join(s.Dir, "careless-"+shard+".jsonl")
}

// StartShards starts processes of the example controller at once, with these flags besides the usual ones, and waits
// until each holds its Lease.
func (s *System) StartShards(ctx context.Context, flags []string, names ...string) error {
	var specs []services.Spec
	for _, name := range names {
		specs = append(specs, services.Spec{
			Name: name, Binary: "example", Namespace: system.ShardNamespace, Account: system.ShardAccount, Args: append([]string{
				"--shard-name=" + name, "--ring=" + Ring, "--lease-namespace=" + system.ShardNamespace,
				"--lease-duration=" + LeaseDuration.String(), "--lease-renew-deadline=" + renewDeadline.String(),
				"--lease-retry-period=" + retryPeriod.String(),
				"--careless-file=" + s.CarelessFile(name), "--history-file=" + s.History(name),
				"--work-duration=" + workDuration.String(), "--concurrency=" + strconv.Itoa(concurrency),
				"--kube-api-qps=150", "--kube-api-burst=150",
			}, flags...),
		})
	}

	return s.Start(ctx, specs...)
}
