package cluster

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// Forward configures kubectl port-forward.
type Forward struct {
	// Kubeconfig is the path of the kubeconfig.
	Kubeconfig string
	// Namespace and Target identify the target, for example service/ringquery.
	Namespace, Target string
	// Port is the port of the target.
	Port int
}

// Forward runs kubectl port-forward and returns the local address on which it listens. stop, which is never nil, stops kubectl and waits for
// its exit. The end of ctx also stops kubectl.
func (c *Cluster) Forward(ctx context.Context, f Forward) (address string, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)

	var complaint bytes.Buffer

	command := exec.CommandContext(ctx, c.kubectl, "port-forward", "--kubeconfig", f.Kubeconfig, "-n", f.Namespace, "--address", "127.0.0.1", //nolint:gosec // by the tests
		f.Target, fmt.Sprintf(":%d", f.Port))
	command.Stderr = &complaint

	out, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}

	if err != nil {
		cancel()
		return "", func() {}, fmt.Errorf("run %s port-forward: %w", c.kubectl, err)
	}

	stop = func() { cancel(); _ = command.Wait() }

	for lines := bufio.NewScanner(out); lines.Scan(); {
		if address, found := Forwarded(lines.Text()); found {
			return address, stop, nil
		}
	}
	stop()

	return "", func() {}, fmt.Errorf("%s port-forward to %s in namespace %s: %s", c.kubectl, f.Target, f.Namespace, strings.TrimSpace(complaint.String()))
}

// Forwarded returns the address in a line of kubectl port-forward such as "Forwarding from 127.0.0.1:40123 -> 8090".
func Forwarded(line string) (address string, found bool) {
	rest, found := strings.CutPrefix(line, "Forwarding from ")
	if !found {
		return "", false
	}

	address, _, found = strings.Cut(rest, " -> ")

	return address, found
}
