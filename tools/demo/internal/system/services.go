package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/balance"
	"github.com/clusterring/clusterring/tools/lab/process"
)

const (
	readyTimeout = 60 * time.Second
	pollInterval = 100 * time.Millisecond
	// answerTimeout is how long one answer may take.
	answerTimeout = 10 * time.Second
	// settlePeriod is how long the rebalancer waits until it looks a last time, after a change of shards. Nobody wants to
	// watch it wait in every step.
	settlePeriod = time.Second
)

// service is a process that reports its health.
type service struct {
	name, binary string
	args         []string
	health       string // address
	process      *process.Process
}

// Names of what is started. The assigner and ringquery have two replicas. RingQuery1 answers everybody on this machine, without
// TLS; RingQuery2 has TLS and wants to know who asks.
const (
	LeaseMonitor = "leasemonitor"
	Assigner1    = "assigner-1"
	Assigner2    = "assigner-2"
	Rebalancer   = "rebalancer"
	RingQuery1   = "ringquery-1"
	RingQuery2   = "ringquery-2"
)

// startServices starts all services at once and waits until they are ready.
func (s *System) startServices(ctx context.Context) error {
	const ports = 2*6 + 4
	free, err := process.FreePorts(ports)
	if err != nil {
		return err
	}
	next := func() string {
		address := free[0]
		free = free[1:]
		return address
	}
	webhook1, webhook2 := next(), next()
	if s.front, err = balance.Listen(webhook1, webhook2); err != nil {
		return err
	}
	assigner := func(bind string) []string {
		return []string{"--webhook-bind-address=" + bind, "--webhook-mode=url", "--webhook-url=https://" + s.front.Address()}
	}
	s.open, s.guarded = next(), next()
	if s.cert, err = newCertificate(filepath.Join(s.StateDir, "tls")); err != nil {
		return err
	}
	for _, service := range []*service{
		{name: LeaseMonitor, binary: "leasemonitor"},
		{name: Assigner1, binary: "assigner", args: assigner(webhook1)},
		{name: Assigner2, binary: "assigner", args: assigner(webhook2)},
		{name: Rebalancer, binary: "rebalancer", args: []string{"--settle-period=" + settlePeriod.String()}},
		{name: RingQuery1, binary: "ringquery", args: []string{"--grpc-bind-address=" + s.open, "--plaintext", "--authentication=none"}},
		{name: RingQuery2, binary: "ringquery", args: []string{
			"--grpc-bind-address=" + s.guarded, "--ca-mode=file", "--tls-cert-file=" + s.cert.cert, "--tls-private-key-file=" + s.cert.key,
			"--access-cache-ttl=0s", // who gets a right has it at once
		}},
	} {
		// A service has no more rights than in a cluster.
		kubeconfig, err := s.Plane.ServiceAccountKubeconfig(ctx, v1alpha1.SystemNamespace, service.binary)
		if err != nil {
			return err
		}
		service.health = next()
		service.args = append(service.args, "--kubeconfig="+kubeconfig, "--log-format=json",
			"--health-probe-bind-address="+service.health, "--metrics-bind-address="+next())
		s.services = append(s.services, service)
	}
	begin := time.Now()
	if err := s.StartServices(ctx, LeaseMonitor, Assigner1, Assigner2, Rebalancer, RingQuery1, RingQuery2); err != nil {
		return err
	}
	s.Console.OK("leasemonitor, 2 × assigner, rebalancer and 2 × ringquery are ready, each with a token of its own service account (%.1f s)",
		time.Since(begin).Seconds())
	return nil
}

// StartServices starts services that do not run, at once, and waits until they are ready.
func (s *System) StartServices(ctx context.Context, names ...string) error {
	for _, name := range names {
		service, err := s.service(name)
		if err != nil {
			return err
		}
		if service.process, err = s.start(service.name, service.binary, service.args); err != nil {
			return err
		}
	}
	for _, name := range names {
		service, err := s.service(name)
		if err != nil {
			return err
		}
		if err := s.awaitReady(ctx, service.process, service.health); err != nil {
			return err
		}
	}
	return nil
}

// StopServices asks services to stop, at once, and waits until they have.
func (s *System) StopServices(names ...string) error {
	var errs []error
	var told []*process.Process
	for _, name := range names {
		service, err := s.service(name)
		if err == nil {
			told = append(told, service.process)
			err = service.process.Terminate()
		}
		errs = append(errs, err)
	}
	for _, p := range told {
		errs = append(errs, p.AwaitExit(stopTimeout))
		if err := p.Err(); err != nil {
			errs = append(errs, &FaultError{Process: p.Name, Err: fmt.Errorf("%s did not stop in order: %w", p.Name, err)})
		}
	}
	return errors.Join(errs...)
}

func (s *System) service(name string) (*service, error) {
	for _, service := range s.services {
		if service.name == name {
			return service, nil
		}
	}
	return nil, fmt.Errorf("there is no service %s", name)
}

// Unhealthy returns the services that do not say they are ready, each with its answer.
func (s *System) Unhealthy(ctx context.Context) []error {
	var errs []error
	for _, service := range s.services {
		if ok, answer := ready(ctx, service.health); !ok {
			errs = append(errs, &FaultError{Process: service.name, Err: fmt.Errorf("%s is not ready: %s", service.name, answer)})
		}
	}
	return errs
}

// QueryAddress returns the address of the query service that answers everybody, without TLS.
func (s *System) QueryAddress() string { return s.open }

// GuardedQueryAddress returns the address of the query service that has TLS and answers those who have the right to ask. The file
// ca is PEM and has the authority of its certificate.
func (s *System) GuardedQueryAddress() (address, ca string) { return s.guarded, s.cert.ca }

// awaitReady waits until the process says that it is ready.
func (s *System) awaitReady(ctx context.Context, p *process.Process, health string) error {
	answer := ""
	err := wait.PollUntilContextTimeout(ctx, pollInterval, readyTimeout, true, func(ctx context.Context) (bool, error) {
		if !p.Running() {
			return false, fmt.Errorf("it has ended: %w", orExitCode(p.Err()))
		}
		var ok bool
		ok, answer = ready(ctx, health)
		s.Console.Progress("waiting until %s is ready: %s", p.Name, answer)
		return ok, nil
	})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &FaultError{Process: p.Name, Err: fmt.Errorf("%s did not become ready (%s): %w", p.Name, answer, err)}
}

// ready asks a process for its readiness and returns its answer in one line.
func ready(ctx context.Context, address string) (ok bool, answer string) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz?verbose", http.NoBody)
	if err != nil {
		return false, err.Error()
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false, "no answer yet"
	}
	body, _ := io.ReadAll(response.Body)
	_ = response.Body.Close() // was only read
	if response.StatusCode == http.StatusOK {
		return true, "ready"
	}
	var failing []string
	for line := range strings.Lines(string(body)) {
		if check, fails := strings.CutPrefix(line, "[-]"); fails {
			failing = append(failing, strings.TrimSpace(check))
		}
	}
	return false, strings.Join(failing, ", ")
}
