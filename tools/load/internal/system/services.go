package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/process"
	"github.com/clusterring/clusterring/tools/localplane/metrics"
)

// settlePeriod is how long the rebalancer waits until it looks a last time, after a change of shards. Measurements would wait, too.
const settlePeriod = time.Second

// service is one of the four.
type service struct {
	name                   string
	args                   []string
	health, metrics, pprof string // addresses; pprof may be empty
}

func (s *System) startServices(ctx context.Context) error {
	s.progress("starting the services")
	const ports = 3
	free, err := process.FreePorts(ports*len(Services) + 2)
	if err != nil {
		return err
	}
	next := func() string {
		address := free[0]
		free = free[1:]
		return address
	}
	webhook := next()
	own := map[string][]string{
		Assigner:   {"--webhook-bind-address=" + webhook, "--webhook-mode=url", "--webhook-url=https://" + webhook},
		Rebalancer: {"--settle-period=" + settlePeriod.String()},
		RingQuery:  {"--grpc-bind-address=" + next(), "--plaintext", "--authentication=none"},
	}
	for _, name := range Services {
		// A service has no more rights than in a cluster.
		kubeconfig, err := s.plane.ServiceAccountKubeconfig(ctx, v1alpha1.SystemNamespace, name)
		if err != nil {
			return err
		}
		service := &service{name: name, health: next(), metrics: next()}
		service.args = append([]string{
			"--kubeconfig=" + kubeconfig, "--log-format=json", "--health-probe-bind-address=" + service.health, "--metrics-bind-address=" + service.metrics,
		}, own[name]...)
		if s.options.Profile {
			service.pprof = next()
			service.args = append(service.args, "--pprof-bind-address="+service.pprof)
		}
		service.args = append(service.args, s.options.Args[name]...)
		s.services[name] = service
	}
	for _, name := range Services {
		if err := s.launchService(name); err != nil {
			return err
		}
	}
	for _, name := range Services {
		if err := s.awaitReady(ctx, name, "http://"+s.services[name].health+"/readyz", http.DefaultClient); err != nil {
			return err
		}
	}
	return nil
}

func (s *System) launchService(name string, more ...string) error {
	args := slices.Concat(s.services[name].args, more)
	return s.launch(process.Spec{Name: name, Path: filepath.Join(s.options.BinDir, name), Args: args, LogFile: s.LogFile(name)})
}

// Restart stops a service of this machine and starts it again, this time with more arguments, and returns when it is ready.
func (s *System) Restart(ctx context.Context, name string, more ...string) error {
	service, ok := s.services[name]
	if !ok {
		return fmt.Errorf("there is no service %s on this machine", name)
	}
	if err := s.End(name); err != nil {
		return err
	}
	if err := s.launchService(name, more...); err != nil {
		return err
	}
	return s.awaitReady(ctx, name, "http://"+service.health+"/readyz", http.DefaultClient)
}

// Launch starts another process to be measured under the name, and returns when the URL is answered with status 200. End ends it;
// Stop does so, too.
func (s *System) Launch(ctx context.Context, spec process.Spec, url string, client *http.Client) error {
	if spec.LogFile == "" {
		spec.LogFile = s.LogFile(spec.Name)
	}
	if err := s.launch(spec); err != nil {
		return err
	}
	return s.awaitReady(ctx, spec.Name, url, client)
}

// End stops a process of this machine.
func (s *System) End(name string) error {
	s.mu.Lock()
	p := s.running[name]
	delete(s.running, name)
	s.mu.Unlock()
	if p == nil {
		return fmt.Errorf("there is no process %s", name)
	}
	return p.Stop(stopTimeout)
}

func (s *System) launch(spec process.Spec) error {
	p, err := process.Start(spec, func(p *process.Process) {
		select {
		case s.death <- fmt.Errorf("%s has ended by itself: %w\n%s", p.Name, orExitCode(p.Err()), process.Tail(p.LogFile, shownLines)):
		default: // one death is enough
		}
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[spec.Name] = p
	return nil
}

// shownLines of a log are part of an error.
const shownLines = 5

func orExitCode(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// awaitReady waits until a process says that it is ready.
func (s *System) awaitReady(ctx context.Context, name, url string, client *http.Client) error {
	s.mu.Lock()
	p := s.running[name]
	s.mu.Unlock()
	answer := "no answer"
	err := wait.PollUntilContextTimeout(ctx, pollInterval, readyTimeout, true, func(ctx context.Context) (bool, error) {
		if !p.Running() {
			return false, fmt.Errorf("it has ended: %w", orExitCode(p.Err()))
		}
		body, status, err := get(ctx, client, url)
		if err != nil {
			return false, nil //nolint:nilerr // not up yet
		}
		answer = string(body)
		return status == http.StatusOK, nil
	})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%s did not become ready (%s): %w\n%s", name, answer, err, process.Tail(p.LogFile, shownLines))
}

// getOK returns what a URL answers with status 200.
func getOK(ctx context.Context, client *http.Client, url string) (string, error) {
	body, status, err := get(ctx, client, url)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("get %s: status %d: %s", url, status, body)
	}
	return string(body), err
}

func get(ctx context.Context, client *http.Client, url string) (body []byte, status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, 0, fmt.Errorf("get %s: %w", url, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, 0, fmt.Errorf("get %s: %w", url, err)
	}
	defer func() { _ = response.Body.Close() }() // was only read
	if body, err = io.ReadAll(response.Body); err != nil {
		return nil, 0, fmt.Errorf("get %s: %w", url, err)
	}
	return body, response.StatusCode, nil
}

// Metric returns the sum over the series of a metric of a service (all its replicas), or of the API server, that have all the given
// labels, each written as name="value". Without any series it is 0. Asking costs the service some CPU time.
func (s *System) Metric(ctx context.Context, name, metric string, labels ...string) (float64, error) {
	texts, err := s.metricsOf(ctx, name)
	if err != nil {
		return 0, fmt.Errorf("read metrics of %s: %w", name, err)
	}
	total := 0.0
	for _, text := range texts {
		value, err := metrics.Sum(text, metric, labels...)
		if err != nil {
			return 0, fmt.Errorf("read metrics of %s: %w", name, err)
		}
		total += value
	}
	return total, nil
}

func (s *System) metricsOf(ctx context.Context, name string) ([]string, error) {
	if name == APIServer {
		text, err := rawGet(ctx, s.Config, "/metrics")
		return []string{text}, err
	}
	if !s.Local() {
		return s.cluster.metricsOf(ctx, name)
	}
	service, ok := s.services[name]
	if !ok {
		return nil, fmt.Errorf("there is no service %s", name)
	}
	text, err := getOK(ctx, http.DefaultClient, "http://"+service.metrics+"/metrics")
	return []string{text}, err
}

// Requests returns how many requests a service has sent to the API server since it began, watches among them.
func (s *System) Requests(ctx context.Context, name string) (int, error) {
	n, err := s.Metric(ctx, name, "rest_client_requests_total")
	return int(n), err
}
