// Package target provides the system to measure: a control plane and the four services, started on this machine.
package target

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/usage"
	"github.com/clusterring/clusterring/tools/testkit/kubelettest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/metrics"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

// Names of what is measured, as in the results of [Local.Usage]. The others are those of [Services], and etcd.
const (
	Assigner   = services.Assigner
	Rebalancer = services.Rebalancer
	APIServer  = "apiserver"
)

// Services are the names of the services.
var Services = services.All

// Options configure the system.
type Options struct {
	// BinDir contains the binaries of the services, Assets those of the control plane.
	BinDir, Assets string
	// Profile makes every service serve profiles; see [Local.Profile].
	Profile bool
	// Progress receives progress lines.
	Progress io.Writer
}

// Local is a system that runs on this machine. Create it with [Start]. Its methods are safe for concurrent use.
type Local struct {
	*services.Group

	// Config and Client have administrator rights. Client does not cache, and knows the Kubernetes types and ClusterRings.
	Config *rest.Config
	Client client.Client
	// Writer is the configuration for writing objects, also with all rights. It uses the token of a ServiceAccount, as
	// shards do: the API server caches tokens, but verifies a client certificate in each request, which costs a twentieth
	// of a write.
	Writer *rest.Config

	progress io.Writer
	plane    *localplane.Plane
	pids     map[string]int // of the control plane
	queries  *grpc.ClientConn
}

// create creates those of the objects that do not exist.
func (l *Local) create(ctx context.Context, all ...client.Object) error {
	for _, o := range all {
		if err := client.IgnoreAlreadyExists(l.Client.Create(ctx, o)); err != nil {
			return fmt.Errorf("create %T %s: %w", o, client.ObjectKeyFromObject(o), err)
		}
	}

	return nil
}

// Namespace creates a namespace for objects and Leases. Its name begins with the prefix.
func (l *Local) Namespace(ctx context.Context, prefix string) (string, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-"}}
	err := l.create(ctx, ns)

	return ns.Name, err
}

// Metric returns the sum over the series of a metric of a service that have all the given labels, each written as
// name="value". Without any series it is 0. Each call costs the service some CPU time.
func (l *Local) Metric(ctx context.Context, name, metric string, labels ...string) (float64, error) {
	text, err := l.Serves(ctx, name)
	if err != nil {
		return 0, err
	}

	return metrics.Sum(text, metric, labels...)
}

// Serves returns what a service serves at /metrics.
func (l *Local) Serves(ctx context.Context, name string) (string, error) {
	text, err := read(ctx, &rest.Config{Host: l.Addresses(name).Metrics}, "/metrics")
	if err != nil {
		return "", fmt.Errorf("metrics of %s: %w", name, err)
	}

	return string(text), nil
}

// read reads a path with status 200.
func read(ctx context.Context, server *rest.Config, path string) ([]byte, error) {
	config := rest.CopyConfig(server)
	config.NegotiatedSerializer = scheme.Codecs

	c, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", config.Host, err)
	}

	body, err := c.Get().RequestURI(path).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", path, err)
	}

	return body, nil
}

const (
	// writer is the name of the ServiceAccount that writes objects; see rbac.yaml.
	writer = "load-writer"
	// ShardAccount is the name of the ServiceAccount of [Local.Pod].
	ShardAccount = "shard"
	// shownLines is the number of log lines in an error.
	shownLines = 5
)

// Start starts a control plane and the four services with one replica each, and returns when all are ready. Rings can
// shard ConfigMaps and the example's Websites. Call Stop on the result, also after an error, unless it is nil.
func Start(ctx context.Context, o Options) (*Local, error) {
	if err := process.CheckBinaries(o.BinDir, services.BuildHint, Services...); err != nil {
		return nil, err
	}

	fmt.Fprintln(o.Progress, "==> starting etcd and the API server")

	plane, err := localplane.Start(localplane.Options{
		Knows: v1alpha1.AddToScheme, BinDir: o.Assets, Log: o.Progress,
	})
	if err != nil {
		return nil, fmt.Errorf("start the control plane: %w", err)
	}

	l := &Local{
		progress: o.Progress, plane: plane, Config: plane.Config, Client: plane.Client,
		Group: services.New(services.Options{
			Plane: plane, BinDir: o.BinDir, LogDir: filepath.Join(plane.Dir(), "logs"), Profile: o.Profile,
			ShownLines: shownLines,
		}),
	}

	pids, err := plane.Processes()
	if err != nil {
		return l, fmt.Errorf("find the control plane: %w", err)
	}

	l.pids = map[string]int{APIServer: pids["kube-apiserver"], "etcd": pids["etcd"]}

	for _, step := range []func(context.Context) error{l.install, l.startServices} {
		if err := step(ctx); err != nil {
			return l, err
		}

		if ctx.Err() != nil {
			return l, context.Cause(ctx)
		}
	}

	return l, nil
}

func (l *Local) install(ctx context.Context) (err error) {
	fmt.Fprintln(l.progress, "==> installing deploy/base and the permissions on the measured resources")

	if err := l.plane.Install(ctx, "deploy/base", "deploy/example/crd", "deploy/example/namespace.yaml",
		"deploy/example/rbac.yaml", "tools/load/internal/target/rbac.yaml"); err != nil {
		return fmt.Errorf("install the manifests: %w", err)
	}

	l.Writer, err = l.As(ctx, writer)

	return err
}

func (l *Local) startServices(ctx context.Context) error {
	fmt.Fprintln(l.progress, "==> starting the services")

	const ports = 2

	free, err := process.FreePorts(ports)
	if err != nil {
		return err
	}

	if l.queries, err = grpc.NewClient(free[1], grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return fmt.Errorf("connect to the ring query service: %w", err)
	}

	args := map[string][]string{
		services.LeaseMonitor: {"--pods"},
		services.Assigner:     services.Webhook(free[0], free[0]),
		services.Rebalancer:   {"--settle-period=" + services.SettlePeriod.String()},
		services.RingQuery:    services.OpenQueries(free[1]),
	}

	var specs []services.Spec
	for _, name := range Services {
		specs = append(specs, services.Spec{Name: name, Binary: name, Args: args[name]})
	}

	return l.Start(ctx, specs...)
}

// As returns a configuration with the permissions of a ServiceAccount of the system namespace. The user agent is its
// name.
func (l *Local) As(ctx context.Context, name string) (*rest.Config, error) {
	kubeconfig, err := l.Kubeconfig(ctx, contract.SystemNamespace, name)
	if err != nil {
		return nil, err
	}

	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("act as %s: %w", name, err)
	}

	config.UserAgent = name

	return config, nil
}

// Pod creates a Pod that nothing runs, and returns its uid. Its account may edit the namespace.
func (l *Local) Pod(ctx context.Context, namespace, name string) (types.UID, error) {
	own := metav1.ObjectMeta{Namespace: namespace, Name: ShardAccount}
	pod := kubelettest.Pod(namespace, name)
	pod.Spec.ServiceAccountName = ShardAccount

	err := l.create(ctx, &corev1.ServiceAccount{ObjectMeta: own}, &rbacv1.RoleBinding{
		ObjectMeta: own, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: ShardAccount}},
	}, pod)

	return pod.UID, err
}

// Calm makes the API server collect its garbage. A collection costs as much CPU as hundreds of writes. If each trial
// starts right after one, the next collection is equally far away in all trials.
func (l *Local) Calm(ctx context.Context) error {
	_, err := read(ctx, l.Config, "/debug/pprof/heap?gc=1")
	return err
}

// Heap returns the memory of the API server that is in use after it has collected its garbage, in bytes.
func (l *Local) Heap(ctx context.Context) (float64, error) {
	if err := l.Calm(ctx); err != nil {
		return 0, err
	}

	text, err := read(ctx, l.Config, "/metrics")
	if err != nil {
		return 0, fmt.Errorf("metrics of the API server: %w", err)
	}

	return metrics.Sum(string(text), "go_memstats_heap_alloc_bytes")
}

// StateDir returns the state directory, which Stop removes.
func (l *Local) StateDir() string { return l.plane.Dir() }

// Queries returns a client of the ring query service.
func (l *Local) Queries() pb.DiagnosticsServiceClient {
	return pb.NewDiagnosticsServiceClient(l.queries)
}

// Usage returns a reader of what the services, the API server, and etcd use, of what else was launched, and of this
// tool.
func (l *Local) Usage() usage.Reader {
	return func() map[string]int {
		pids := maps.Clone(l.pids)
		pids["load"] = os.Getpid()

		for _, p := range l.Started() {
			if p.Running() {
				pids[p.Name] = p.PID()
			}
		}

		return pids
	}
}

// Stop stops everything that was started, and removes its state.
func (l *Local) Stop() error {
	var unasked error
	if l.queries != nil {
		unasked = l.queries.Close()
	}

	return errors.Join(l.Group.Stop(), l.plane.Stop(), unasked)
}

// sliceSeconds is the duration of one CPU profile. Longer profiles consist of several files, which `go tool pprof`
// merges.
const sliceSeconds = 2

// Profile profiles the services and the API server until the returned function is called. It writes CPU profiles to
// dir/name-service-cpu-N.pb.gz, and a heap profile at the end to dir/name-service-heap.pb.gz. [Options].Profile must be
// set. Profiling costs a few percent of CPU.
func (l *Local) Profile(ctx context.Context, dir, name string) (stop func() error) {
	var group errgroup.Group

	over, end := context.WithCancel(ctx)

	for _, process := range append([]string{APIServer}, Services...) {
		of := l.Config
		if process != APIServer {
			of = &rest.Config{Host: l.Addresses(process).Profiles}
		}

		save := func(path, suffix string) error {
			body, err := read(ctx, of, "/debug/pprof/"+path)
			if err != nil {
				return err
			}

			err = errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name+"-"+process+suffix), body, 0o600))
			if err != nil {
				return fmt.Errorf("write a profile: %w", err)
			}

			return nil
		}
		group.Go(func() error {
			for i := 0; over.Err() == nil; i++ {
				if err := save(fmt.Sprintf("profile?seconds=%d", sliceSeconds), fmt.Sprintf("-cpu-%d.pb.gz", i)); err != nil {
					return err
				}
			}

			return save("heap", "-heap.pb.gz")
		})
	}

	return func() error {
		end()

		if err := group.Wait(); err != nil && ctx.Err() == nil {
			return fmt.Errorf("profile the services: %w", err)
		}

		return nil
	}
}
