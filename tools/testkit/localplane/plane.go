// Package localplane runs a real Kubernetes control plane on this machine for tests and tools: etcd, kube-apiserver,
// and optionally kube-controller-manager, on free ports of 127.0.0.1, with RBAC, in a state directory.
//
// [Start] starts a control plane, and [Plane.Stop] stops it. [Plane.Install] applies the manifests of deploy/, so that
// services have the same permissions as in a cluster. Tests use [Main] and [Shared], which start one control plane per
// test process on first use.
//
// There is no kubelet and no scheduler. Without the controller manager, there is no garbage collection, and deleted
// namespaces are not emptied. Therefore each test creates a new namespace ([Plane.Namespace]).
//
// All processes have the state directory in their arguments, so that [RemoveState] finds the processes of a killed
// parent.
package localplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/clusterring/clusterring/tools/testkit/process"
)

// etcdQuota limits the size of etcd's database. The default of 2 GiB is tight for a million objects and their history.
const etcdQuota = "8589934592"

// processTimeout is how long etcd and the API server may take to start, and to stop, on a machine that also compiles.
const processTimeout = 2 * time.Minute

// Options configure a control plane. The zero value starts etcd and an API server in a temporary directory.
type Options struct {
	// Dir is the state directory for data, certificates, logs, and kubeconfigs. It is created if necessary, must not
	// contain another control plane, and remains after Stop. If it is empty, a temporary directory is used, which Stop
	// removes.
	Dir string
	// BinDir contains the binaries. If it is empty, Binaries finds or builds them.
	BinDir string
	// ControllerManager adds kube-controller-manager with some controllers: garbage collection, deletion of namespaces,
	// default service accounts, and aggregation of cluster roles.
	ControllerManager bool
	// Log receives the progress of a first build. It may be nil.
	Log io.Writer
	// Knows adds types to the scheme of the client beside those of Kubernetes; nil for none.
	Knows func(*runtime.Scheme) error
}

// Plane is a running control plane. Create it with Start. It is safe for concurrent use.
type Plane struct {
	// Config and Client have administrator rights. Client does not cache, and knows the types of Kubernetes and of
	// [Options.Knows].
	Config *rest.Config
	Client client.Client

	dir, binDir string
	temporary   bool
	env         *envtest.Environment
	logs        []*os.File
	manager     *process.Process // nil without kube-controller-manager

	stop    sync.Once
	stopErr error
}

// Start starts a control plane and returns when its API server is ready, after two to four seconds if the binaries
// exist.
func Start(opts Options) (*Plane, error) {
	p := &Plane{dir: opts.Dir, binDir: opts.BinDir}
	if p.binDir == "" {
		dir, err := Binaries(context.Background(), opts.Log)
		if err != nil {
			return nil, err
		}

		p.binDir = dir
	}

	if err := p.prepareDir(); err != nil {
		return nil, err
	}

	if err := p.start(opts); err != nil {
		return nil, errors.Join(err, p.Stop())
	}

	return p, nil
}

// Dir returns the absolute path of the state directory.
func (p *Plane) Dir() string { return p.dir }

// BinDir returns the directory of the binaries.
func (p *Plane) BinDir() string { return p.binDir }

// Stop stops all processes of the control plane and removes a temporary state directory. Further calls return the same
// result.
func (p *Plane) Stop() error {
	p.stop.Do(func() { p.stopErr = p.stopAll() })
	return p.stopErr
}

func (p *Plane) stopAll() error {
	var errs []error

	if p.manager != nil {
		if err := p.manager.Stop(stopTimeout); p.manager.Running() { // a killed process has stopped, too
			errs = append(errs, err)
		}
	}

	if p.env != nil {
		if err := p.env.Stop(); err != nil {
			errs = append(errs, fmt.Errorf("stop the control plane: %w", err))
		}
	}

	for _, f := range p.logs {
		errs = append(errs, f.Close())
	}

	if p.temporary {
		errs = append(errs, os.RemoveAll(p.dir))
	}

	return errors.Join(errs...)
}

func (p *Plane) prepareDir() error {
	if p.dir == "" {
		dir, err := os.MkdirTemp("", temporaryPrefix+strconv.Itoa(os.Getpid())+"-*")
		if err != nil {
			return fmt.Errorf("make a state directory: %w", err)
		}

		p.dir, p.temporary = dir, true
	}

	dir, err := filepath.Abs(p.dir)
	if err != nil {
		return fmt.Errorf("find the state directory: %w", err)
	}

	p.dir = dir
	if _, err := os.Stat(p.path("etcd")); err == nil {
		return fmt.Errorf("state directory %s already contains a control plane: stop it and remove the directory, or choose another one", p.dir)
	}

	for _, sub := range []string{"etcd", "apiserver", "controller-manager", "kubeconfig", "logs"} {
		if err := os.MkdirAll(p.path(sub), 0o700); err != nil {
			return fmt.Errorf("make the state directory: %w", err)
		}
	}

	return nil
}

func (p *Plane) path(elem ...string) string {
	return filepath.Join(append([]string{p.dir}, elem...)...)
}

func (p *Plane) start(opts Options) error {
	if err := p.startAPIServer(); err != nil {
		return err
	}

	c, err := NewClient(p.Config, opts.Knows)
	if err != nil {
		return err
	}

	p.Client = c
	if err := os.WriteFile(p.Kubeconfig(), p.env.KubeConfig, 0o600); err != nil {
		return fmt.Errorf("write the administrator's kubeconfig: %w", err)
	}

	if opts.ControllerManager {
		return p.startControllerManager()
	}

	return nil
}

// NewClient returns a client that does not cache, and knows the types of Kubernetes and those that knows adds, if it is
// not nil.
func NewClient(config *rest.Config, knows func(*runtime.Scheme) error) (client.Client, error) {
	if knows == nil {
		knows = func(*runtime.Scheme) error { return nil }
	}

	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), knows(scheme)); err != nil {
		return nil, fmt.Errorf("make a scheme: %w", err)
	}

	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}

	return c, nil
}

func (p *Plane) startAPIServer() error {
	etcdLog, err := p.log("etcd")
	if err != nil {
		return err
	}

	serverLog, err := p.log("kube-apiserver")
	if err != nil {
		return err
	}

	env := &envtest.Environment{
		BinaryAssetsDirectory: p.binDir, ControlPlaneStartTimeout: processTimeout, ControlPlaneStopTimeout: processTimeout,
	}
	env.ControlPlane.Etcd = &envtest.Etcd{
		Path: filepath.Join(p.binDir, "etcd"), DataDir: p.path("etcd"), Out: etcdLog, Err: etcdLog,
	}
	env.ControlPlane.Etcd.Configure().Set("quota-backend-bytes", etcdQuota)
	server := env.ControlPlane.GetAPIServer()
	server.Path, server.CertDir = filepath.Join(p.binDir, "kube-apiserver"), p.path("apiserver")
	server.Out, server.Err = serverLog, serverLog

	p.env = env
	if p.Config, err = env.Start(); err != nil {
		return fmt.Errorf("start the control plane (logs in %s):\n%s%w", p.path("logs"),
			tail(serverLog.Name(), etcdLog.Name()), err)
	}
	// Unused certificates for webhooks outside of the state directory.
	if err := os.RemoveAll(env.WebhookInstallOptions.LocalServingCertDir); err != nil {
		return fmt.Errorf("remove unused certificates: %w", err)
	}

	return nil
}

// log creates the log file of one process.
func (p *Plane) log(name string) (*os.File, error) {
	f, err := os.Create(p.path("logs", name+".log"))
	if err != nil {
		return nil, fmt.Errorf("create a log file: %w", err)
	}

	p.logs = append(p.logs, f)

	return f, nil
}

// assetsVariable names a directory with ready-made binaries, as in controller-runtime.
const assetsVariable = "KUBEBUILDER_ASSETS"

// Root returns the root directory of the repository that contains the working directory, and "" outside of it.
func Root() string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}

	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir
		}

		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}

		dir = parent
	}
}

// Binaries returns the directory that contains etcd, kube-apiserver, and kube-controller-manager: $KUBEBUILDER_ASSETS
// if it is set, or else the directory of tools/controlplane, which builds missing binaries into the user's cache. The
// first build takes minutes and prints its progress to progress, which may be nil.
func Binaries(ctx context.Context, progress io.Writer) (string, error) {
	if dir := os.Getenv(assetsVariable); dir != "" {
		return dir, process.CheckBinaries(dir, "see $"+assetsVariable, "etcd", "kube-apiserver")
	}

	root := Root()
	if root == "" {
		return "", fmt.Errorf("the working directory is not in the repository: cannot find tools/controlplane; set $%s to a directory with etcd and kube-apiserver", assetsVariable)
	}

	cmd := exec.CommandContext(ctx, "go", "run", ".")
	cmd.Dir = filepath.Join(root, "tools", "controlplane")

	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Stderr = progress
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }

	dir, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build the control plane (go run . in %s): %w", cmd.Dir, err)
	}

	return strings.TrimSpace(string(dir)), nil
}

// Processes returns the ids of the running child processes by program: etcd, kube-apiserver, and
// kube-controller-manager.
func (p *Plane) Processes() (map[string]int, error) {
	all, err := listProcesses()
	if err != nil {
		return nil, fmt.Errorf("find the processes of the control plane: %w", err)
	}

	pids := map[string]int{}

	for pid, info := range all {
		if path, _, _ := strings.Cut(info.args, " "); info.parent == os.Getpid() && namesPath(info.args, p.dir) {
			pids[filepath.Base(path)] = pid
		}
	}

	return pids, nil
}

// namesPath reports whether args contain dir as a whole path: /tmp/a, /tmp/a/b, --x=/tmp/a, but not /tmp/ab.
func namesPath(args, dir string) bool {
	return regexp.MustCompile(regexp.QuoteMeta(dir) + `([/ ,:]|$)`).MatchString(args)
}

// processInfo describes a process.
type processInfo struct {
	parent, uid int
	args        string
}

// listProcesses returns all processes by their ids, from /proc or, where that does not exist, from ps.
func listProcesses() (map[int]processInfo, error) {
	if processes, err := procfs.AllProcs(); err == nil {
		all := map[int]processInfo{}

		for _, p := range processes {
			args, errOfArgs := p.CmdLine()
			stat, errOfStat := p.Stat()
			status, errOfStatus := p.NewStatus()

			if errors.Join(errOfArgs, errOfStat, errOfStatus) == nil { // otherwise, it has ended meanwhile
				uid := int(status.UIDs[0]) //nolint:gosec // far from its limits
				all[p.PID] = processInfo{parent: stat.PPID, uid: uid, args: strings.Join(args, " ")}
			}
		}

		return all, nil
	}

	out, err := exec.Command("ps", "-axwwo", "pid=,ppid=,uid=,args=").Output()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}

	all := map[int]processInfo{}

	for line := range strings.Lines(string(out)) {
		var (
			pid int
			p   processInfo
		)

		if _, err := fmt.Sscan(line, &pid, &p.parent, &p.uid); err == nil {
			p.args = strings.Join(strings.Fields(line)[3:], " ")
			all[pid] = p
		}
	}

	return all, nil
}

const (
	startTimeout = 30 * time.Second
	stopTimeout  = 20 * time.Second
	pollInterval = 50 * time.Millisecond
)

// controllers are the controllers that tests and the demo need. Workload controllers are missing, because nothing runs
// Pods.
var controllers = []string{
	"garbage-collector-controller",
	"namespace-controller",
	"serviceaccount-controller",
	"clusterrole-aggregation-controller",
}

// startControllerManager starts kube-controller-manager and waits until it is healthy.
func (p *Plane) startControllerManager() error {
	free, err := process.FreePorts(1)
	if err != nil {
		return err
	}

	_, port, err := net.SplitHostPort(free[0])
	if err != nil {
		return fmt.Errorf("start kube-controller-manager: %w", err)
	}

	spec := process.Spec{
		Name: "kube-controller-manager", Path: filepath.Join(p.binDir, "kube-controller-manager"), LogFile: p.path("logs",
			"kube-controller-manager.log"),
		Args: []string{
			"--kubeconfig=" + p.Kubeconfig(),
			"--cert-dir=" + p.path("controller-manager"),
			"--controllers=" + strings.Join(controllers, ","),
			"--bind-address=127.0.0.1",
			"--secure-port=" + port,
			"--leader-elect=false",
			"--kube-api-qps=500", "--kube-api-burst=1000",
		},
	}
	if p.manager, err = process.Start(spec, nil); err != nil {
		return err
	}
	// The process has just created a self-signed certificate, and only its health matters.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true} //nolint:gosec // see above

	healthy := process.Readiness{URL: "https://127.0.0.1:" + port + "/healthz", Client: &http.Client{Transport: transport}}
	if err := p.manager.AwaitReady(context.Background(), healthy); err != nil {
		return fmt.Errorf("%w:\n%s", err, tail(spec.LogFile))
	}

	return nil
}

// tail returns the last lines of log files for an error message.
func tail(files ...string) string {
	const lines = 5

	var out strings.Builder
	for _, file := range files {
		fmt.Fprintf(&out, "  %s: %s\n", filepath.Base(file), process.Tail(file, lines))
	}

	return out.String()
}

// FreeAddress returns an address of the loopback interface with a free port. It does not return recently returned
// addresses. It fails the test if there is none.
func FreeAddress(t testing.TB) string {
	t.Helper()

	free, err := process.FreePorts(1)
	require.NoError(t, err)

	return free[0]
}
