package localplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// temporaryPrefix begins the name of every temporary state directory. The id of the process that removes it follows.
const temporaryPrefix = "clusterring-plane-"

// RemoveState kills the processes of this user that have the state directory in their arguments, except the calling
// process and its ancestors, and removes the directory. It cleans up after a killed parent. It ignores a missing
// directory.
func RemoveState(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("find the state directory: %w", err)
	}

	errs := []error{killNaming(dir)}
	if err := os.RemoveAll(dir); err != nil {
		errs = append(errs, fmt.Errorf("remove the state directory: %w", err))
	}

	return errors.Join(errs...)
}

// killNaming kills the processes that name the directory, and waits until they are gone.
func killNaming(dir string) error {
	err := wait.PollUntilContextTimeout(context.Background(), pollInterval, stopTimeout, true,
		func(context.Context) (bool, error) {
			pids, err := processesNaming(dir)
			if err != nil {
				return false, err
			}

			for _, pid := range pids {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
					return false, fmt.Errorf("process %d: %w", pid, err)
				}
			}

			return len(pids) == 0, nil
		})
	if err != nil {
		return fmt.Errorf("kill the processes of %s: %w", dir, err)
	}

	return nil
}

// sweep removes temporary control planes of test processes that were killed or timed out.
func sweep() error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), temporaryPrefix+"*"))
	if err != nil {
		return fmt.Errorf("list left-over control planes: %w", err)
	}

	var errs []error

	for _, dir := range dirs {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), temporaryPrefix), "-")
		if pid, err := strconv.Atoi(owner); err == nil && !alive(pid) {
			errs = append(errs, RemoveState(dir))
		}
	}

	return errors.Join(errs...)
}

func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// processesNaming returns the ids of this user's processes with an argument that is dir or a path in it.
func processesNaming(dir string) ([]int, error) {
	all, err := listProcesses()
	if err != nil {
		return nil, err
	}

	spared := map[int]bool{}
	for pid := os.Getpid(); pid > 1 && !spared[pid]; pid = all[pid].parent {
		spared[pid] = true
	}

	var pids []int

	for pid, p := range all {
		if !spared[pid] && p.uid == os.Getuid() && namesPath(p.args, dir) {
			pids = append(pids, pid)
		}
	}

	return pids, nil
}

// SystemNamespace is the namespace that the services run in.
const SystemNamespace = "sharding-system"

// shared is the control plane of the test process.
var shared struct {
	sync.Mutex
	knows func(*runtime.Scheme) error
	plane *Plane
	err   error
}

// Main runs the tests of a package, stops the shared control plane if a test has started it, and then fails if a
// goroutine leaked. TestMain exits with its result. Signals also stop the control plane. Knows adds types to the scheme
// of the shared control plane's client; nil for none.
func Main(m *testing.M, knows func(*runtime.Scheme) error, options ...goleak.Option) int {
	shared.knows = knows

	ctrllog.SetLogger(logr.Discard()) // otherwise, the library prints a stack trace after 30 seconds

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)

	over := make(chan struct{})

	go func() {
		select {
		case <-signals:
			_ = stopShared() // the process exits anyway
			os.Exit(1)       //nolint:revive // the test run is interrupted
		case <-over:
		}
	}()

	code := m.Run()
	signal.Stop(signals)
	close(over)

	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the control plane:", err)

		code = max(code, 1)
	}

	if code == 0 {
		if err := goleak.Find(options...); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines leaked:", err)

			code = 1
		}
	}

	return code
}

// Shared returns the control plane of the test process, with deploy/base installed. The first call starts it. TestMain
// must use [Main], which stops it.
func Shared(t testing.TB) *Plane {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()

	if shared.plane == nil && shared.err == nil {
		shared.plane, shared.err = startShared()
	}

	if shared.err != nil {
		t.Fatalf("start a control plane: %v", shared.err)
	}

	return shared.plane
}

func startShared() (*Plane, error) {
	if err := sweep(); err != nil {
		return nil, err
	}

	p, err := Start(Options{Log: os.Stderr, Knows: shared.knows})
	if err != nil {
		return nil, err
	}

	if err := p.Install(context.Background(), "deploy/base"); err != nil {
		_ = p.Stop() // the first error is the cause
		return nil, err
	}

	return p, nil
}

func stopShared() error {
	shared.Lock()
	defer shared.Unlock()

	if shared.plane == nil {
		return nil
	}

	return shared.plane.Stop()
}

// Namespace creates a namespace and returns its name. It is not removed.
func (p *Plane) Namespace(t testing.TB) string {
	t.Helper()

	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := p.Client.Create(t.Context(), ns); err != nil {
		t.Fatalf("create a namespace: %v", err)
	}

	return ns.Name
}

// ServiceKubeconfig returns the path of a kubeconfig with the permissions of a service: those of its service account in
// the system namespace.
func (p *Plane) ServiceKubeconfig(t testing.TB, service string) string {
	t.Helper()

	path, err := p.ServiceAccountKubeconfig(t.Context(), SystemNamespace, service)
	if err != nil {
		t.Fatal(err)
	}

	return path
}
