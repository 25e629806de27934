package target

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/localplane"
	"github.com/clusterring/clusterring/tools/lab/process"
	"github.com/clusterring/clusterring/tools/lab/services"
	"github.com/clusterring/clusterring/tools/load/internal/usage"
)

const (
	// statePrefix begins the name of every temporary state directory.
	statePrefix = "clusterring-load-"
	// writerName is the name of the ServiceAccount that writes objects, and of its role binding.
	writerName = "load-writer"
	// shownLines is the number of log lines in an error.
	shownLines = 5
)

// Options configure the system. BinDir is required.
type Options struct {
	// BinDir contains the binaries of the services, Assets those of the control plane. If Assets is empty, localplane finds or builds them.
	BinDir, Assets string
	// StateDir is a new directory for data, logs, and kubeconfigs. If it is empty, a temporary directory is used, which Stop removes.
	StateDir string
	// Args are additional arguments by service name.
	Args map[string][]string
	// Profile makes every service serve profiles; see [Local.Profile].
	Profile bool
	// Progress receives progress lines.
	Progress io.Writer
}

// Local is a system that runs on this machine. Create it with [Start].
type Local struct {
	*System
	*services.Group

	options   Options
	temporary bool
	plane     *localplane.Plane
	pids      map[string]int // of the control plane
	queries   string         // address of ringquery
}

// Start starts a control plane and the four services with one replica each, and returns when all are ready. Rings can shard ConfigMaps and
// the example's Websites. Call Stop on the result, also after an error, unless it is nil.
func Start(ctx context.Context, o Options) (*Local, error) {
	if err := process.CheckBinaries(o.BinDir, Services...); err != nil {
		return nil, err
	}

	l := &Local{options: o}
	if o.StateDir == "" {
		dir, err := os.MkdirTemp("", statePrefix+"*")
		if err != nil {
			return nil, fmt.Errorf("make a state directory: %w", err)
		}

		l.options.StateDir, l.temporary = dir, true
	}

	for _, step := range []func(context.Context) error{l.startPlane, l.install, l.startServices} {
		if err := step(ctx); err != nil {
			return l, err
		}

		if ctx.Err() != nil {
			return l, context.Cause(ctx)
		}
	}

	return l, nil
}

func (l *Local) startPlane(context.Context) error {
	l.progress("starting etcd and the API server")

	plane, err := localplane.Start(localplane.Options{Dir: l.options.StateDir, BinDir: l.options.Assets, Log: l.options.Progress})
	if err != nil {
		return fmt.Errorf("start the control plane: %w", err)
	}

	l.plane = plane
	l.Group = services.New(services.Options{
		Plane: plane, BinDir: l.options.BinDir, LogDir: filepath.Join(l.options.StateDir, "logs"), Profile: l.options.Profile, ShownLines: shownLines,
	})

	pids, err := plane.Processes()
	if err != nil {
		return fmt.Errorf("find the control plane: %w", err)
	}

	l.pids = map[string]int{}
	for name, program := range map[string]string{APIServer: "kube-apiserver", Etcd: "etcd"} {
		pid, ok := pids[program]
		if !ok {
			return fmt.Errorf("there is no process %s of %s", program, plane.Dir())
		}

		l.pids[name] = pid
	}

	l.System, err = newSystem(plane.Config, l)

	return err
}

func (l *Local) install(ctx context.Context) error {
	l.progress("installing deploy/base and the permissions on the measured resources")

	if err := l.grant(ctx); err != nil {
		return err
	}

	if err := l.plane.Install(ctx, "deploy/base", "deploy/example/crd"); err != nil {
		return fmt.Errorf("install the manifests: %w", err)
	}

	return l.becomeWriter(ctx)
}

func (l *Local) startServices(ctx context.Context) error {
	l.progress("starting the services")

	const ports = 2

	free, err := process.FreePorts(ports)
	if err != nil {
		return err
	}

	l.queries = free[1]
	own := map[string][]string{
		Assigner:   services.Webhook(free[0], free[0]),
		Rebalancer: {"--settle-period=" + services.SettlePeriod.String()},
		RingQuery:  services.OpenQueries(l.queries),
	}

	var specs []services.Spec
	for _, name := range Services {
		specs = append(specs, services.Spec{Name: name, Binary: name, Args: append(own[name], l.options.Args[name]...)})
	}

	return l.Start(ctx, specs...)
}

// becomeWriter creates the ServiceAccount that writes objects.
func (l *Local) becomeWriter(ctx context.Context) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: writerName}}

	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: writerName},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}},
	}
	if err := errors.Join(l.Client.Create(ctx, account), l.Client.Create(ctx, binding)); err != nil {
		return fmt.Errorf("create the ServiceAccount that writes objects: %w", err)
	}

	var err error

	l.Writer, err = l.As(ctx, account.Namespace, account.Name)

	return err
}

// As returns a configuration with the permissions of an existing ServiceAccount. The user agent is the name of the account.
func (l *Local) As(ctx context.Context, namespace, name string) (*rest.Config, error) {
	kubeconfig, err := l.Kubeconfig(ctx, namespace, name)
	if err != nil {
		return nil, fmt.Errorf("act as ServiceAccount %s/%s: %w", namespace, name, err)
	}

	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("act as ServiceAccount %s/%s: %w", namespace, name, err)
	}

	config.UserAgent = name

	return config, nil
}

// Calm makes the API server collect its garbage. A collection costs as much CPU as hundreds of writes. If each trial starts right after
// one, the next collection is equally far away in all trials.
func (l *Local) Calm(ctx context.Context) error {
	if _, err := rawGet(ctx, l.Writer, "/debug/pprof/heap?gc=1"); err != nil {
		return fmt.Errorf("make the API server collect its garbage: %w", err)
	}

	return nil
}

// Etcd returns the URL of etcd.
func (l *Local) Etcd() string { return l.plane.Etcd() }

// StateDir returns the state directory.
func (l *Local) StateDir() string { return l.options.StateDir }

// RingQueryAddress returns the address of the ring query service, which serves without TLS and authentication.
func (l *Local) RingQueryAddress() string { return l.queries }

// Processes returns the ids of all running processes by name.
func (l *Local) Processes() map[string]int {
	pids := maps.Clone(l.pids)
	for _, p := range l.Started() {
		if p.Running() {
			pids[p.Name] = p.PID()
		}
	}

	return pids
}

// Usage returns a reader of what the services, the API server, and etcd use, and of what else was launched.
func (l *Local) Usage() usage.Reader { return usage.Reader{Processes: l.Processes} }

func (l *Local) metricsOf(ctx context.Context, name string) ([]string, error) {
	at := l.Addresses(name).Metrics
	if at == "" {
		return nil, fmt.Errorf("there is no service %s", name)
	}

	text, err := get(ctx, http.DefaultClient, "http://"+at+"/metrics")

	return []string{text}, err
}

// remember does nothing: all objects end with the control plane.
func (*Local) remember(client.Object) {}

// Stop stops everything that was started.
func (l *Local) Stop() error { return l.stop() }

func (l *Local) stop() error {
	var errs []error
	if l.Group != nil {
		errs = append(errs, l.Group.Stop())
	}

	if l.plane != nil {
		errs = append(errs, l.plane.Stop())
	}

	if l.temporary {
		errs = append(errs, os.RemoveAll(l.options.StateDir))
	}

	return errors.Join(errs...)
}

func (l *Local) progress(format string, args ...any) {
	fmt.Fprintf(l.options.Progress, "==> "+format+"\n", args...)
}
