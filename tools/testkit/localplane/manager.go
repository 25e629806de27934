package localplane

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/testkit/process"
)

const (
	startTimeout = 30 * time.Second
	stopTimeout  = 20 * time.Second
	pollInterval = 50 * time.Millisecond
)

// controllers are the controllers that tests and the demo need. Workload controllers are missing, because nothing runs Pods.
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

	free, err := process.FreePorts(1)
	if err != nil {
		return err
	}

	_, port, err := net.SplitHostPort(free[0])
	if err != nil {
		return fmt.Errorf("start kube-controller-manager: %w", err)
	}

	spec := process.Spec{
		Name: "kube-controller-manager", Path: filepath.Join(p.binDir, "kube-controller-manager"), LogFile: p.path("logs", "kube-controller-manager.log"),
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

// tail returns the last lines of log files for an error message. It skips files that cannot be read.
func tail(files ...string) string {
	const lines = 5

	var out strings.Builder

	for _, file := range files {
		for line := range strings.Lines(process.Tail(file, lines)) {
			fmt.Fprintf(&out, "  %s: %s\n", filepath.Base(file), strings.TrimRight(line, "\n"))
		}
	}

	return out.String()
}

// FreeAddress returns an address of the loopback interface with a free port. It does not return recently returned addresses. It fails the
// test if there is none.
func FreeAddress(t testing.TB) string {
	t.Helper()

	free, err := process.FreePorts(1)
	require.NoError(t, err)

	return free[0]
}
