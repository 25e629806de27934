package localplane

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	local "github.com/clusterring/clusterring/tools/localplane/process"
)

const (
	startTimeout = 30 * time.Second
	stopTimeout  = 20 * time.Second
	pollInterval = 50 * time.Millisecond
)

// controllers are those whose work tests and demo rely on. Workloads are not among them: nothing runs Pods here.
var controllers = []string{
	"garbage-collector-controller",
	"namespace-controller",
	"serviceaccount-controller",
	"clusterrole-aggregation-controller",
}

// startControllerManager starts kube-controller-manager and waits until it is healthy.
func (p *Plane) startControllerManager() error {
	if err := checkBinary(p.binDir, "kube-controller-manager"); err != nil {
		return fmt.Errorf("start kube-controller-manager: %w", err)
	}
	free, err := local.FreePorts(1)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(free[0])
	if err != nil {
		return fmt.Errorf("start kube-controller-manager: %w", err)
	}
	out, err := p.log("kube-controller-manager")
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(p.binDir, "kube-controller-manager"),
		"--kubeconfig="+p.Kubeconfig(),
		"--cert-dir="+p.path("controller-manager"),
		"--controllers="+strings.Join(controllers, ","),
		"--bind-address=127.0.0.1",
		"--secure-port="+port,
		"--leader-elect=false",
		"--kube-api-qps=500", "--kube-api-burst=1000",
	)
	cmd.Stdout, cmd.Stderr = out, out
	if p.manager, err = startProcess(cmd); err != nil {
		return err
	}
	if err := p.manager.waitHealthy("https://127.0.0.1:" + port + "/healthz"); err != nil {
		return fmt.Errorf("%w:\n%s", err, tail(out.Name()))
	}
	return nil
}

// process is a child process.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

func startProcess(cmd *exec.Cmd) (*process, error) {
	// In a process group of its own, a Ctrl-C at the terminal reaches the parent alone, which stops it in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	p := &process{cmd: cmd, exited: make(chan struct{})}
	go func() {
		defer close(p.exited)
		_ = cmd.Wait() // how a process ended matters only before it was healthy, and then its log tells more
	}()
	return p, nil
}

// waitHealthy waits until the process answers with 200.
func (p *process) waitHealthy(url string) error {
	// The process has made its own certificate a moment ago; whether it lives is all we ask.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true} //nolint:gosec // see above
	httpClient := &http.Client{Transport: transport, Timeout: time.Second}
	err := wait.PollUntilContextTimeout(context.Background(), pollInterval, startTimeout, true, func(ctx context.Context) (bool, error) {
		select {
		case <-p.exited:
			return false, errors.New("it has exited")
		default:
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return false, err //nolint:wrapcheck // wrapped below
		}
		response, err := httpClient.Do(request)
		if err != nil {
			return false, nil //nolint:nilerr // not up yet
		}
		return response.StatusCode == http.StatusOK, response.Body.Close()
	})
	if err != nil {
		return fmt.Errorf("%s did not become healthy: %w", filepath.Base(p.cmd.Path), err)
	}
	return nil
}

// stop asks the process to end, and kills it when it does not in time.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", filepath.Base(p.cmd.Path), err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", filepath.Base(p.cmd.Path), err)
	}
	<-p.exited
	return nil
}

// tail returns the last lines of log files, for an error message; files that cannot be read have no lines.
func tail(files ...string) string {
	const lines = 5
	var out strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil || len(content) == 0 {
			continue
		}
		all := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
		for _, line := range all[max(0, len(all)-lines):] {
			fmt.Fprintf(&out, "  %s: %s\n", filepath.Base(file), line)
		}
	}
	return out.String()
}
