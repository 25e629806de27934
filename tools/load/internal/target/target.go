// Package target provides the system to measure: a control plane and the four services, either started on this machine ([Local]), or
// already installed on a cluster.
package target

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/localplane/metrics"
	"github.com/clusterring/clusterring/tools/lab/services"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
)

// Names of what is measured, as in the results of [Local.Usage]. The others are those of [Services], and etcd.
const (
	Assigner   = services.Assigner
	Rebalancer = services.Rebalancer
	APIServer  = "apiserver"
)

// FencedRing is the name of the ring whose fence the assigner may write.
const FencedRing = "load-fenced"

// Services are the names of the services.
var Services = services.All

const (
	pollInterval = 50 * time.Millisecond
	stopTimeout  = 20 * time.Second
	// patience limits waits for the services.
	patience = 2 * time.Minute
)

// System is the system to measure, wherever it runs. Create it with [Start] or [Connect]. Its methods are safe for concurrent use, except
// Stop, which must be called last.
type System struct {
	// Config and Client have administrator rights and no rate limit. Client does not cache, and knows the Kubernetes types and ClusterRings.
	Config *rest.Config
	Client client.WithWatch
	// Writer is the configuration for writing objects, also with all rights. On this machine it uses the token of a ServiceAccount, as
	// shards do: the API server caches tokens, but verifies a client certificate in each request, which costs a twentieth of a write.
	Writer *rest.Config

	// metrics returns the metrics of each replica of a service.
	metrics func(ctx context.Context, name string) ([]string, error)

	mu      sync.Mutex
	created []client.Object
}

// newSystem creates the clients.
func newSystem(config *rest.Config) (*System, error) {
	s := &System{Config: rest.CopyConfig(config)}
	s.Config.QPS = -1
	s.Writer = s.Config

	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register the types: %w", err)
	}

	var err error
	if s.Client, err = client.NewWithWatch(s.Config, client.Options{Scheme: scheme}); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}

	return s, nil
}

// grant gives the services the permissions on the measured resources, as the creator of a ring does.
func (s *System) grant(ctx context.Context) error {
	for label, verbs := range map[string][]string{
		v1alpha1.LabelAggregateToRebalancer: {"get", "list", "watch", "patch"},
		v1alpha1.LabelAggregateToRingQuery:  {"get", "list", "watch"},
	} {
		role := &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "load:" + filepath.Base(label), Labels: map[string]string{label: "true"}},
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{objects.ConfigMaps.Resource}, Verbs: verbs},
				{APIGroups: []string{objects.Deployments.Group}, Resources: []string{objects.Deployments.Resource}, Verbs: verbs},
				{APIGroups: []string{objects.Websites.Group}, Resources: []string{objects.Websites.Resource}, Verbs: verbs},
			},
		}
		if err := client.IgnoreAlreadyExists(s.Client.Create(ctx, role)); err != nil {
			return fmt.Errorf("grant rights to the services: %w", err)
		}
		s.remember(role)
	}

	fence := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "load:fence", Labels: map[string]string{v1alpha1.LabelAggregateToAssigner: "true"}},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{admissionregistrationv1.GroupName}, Resources: []string{"validatingadmissionpolicybindings"},
			ResourceNames: []string{v1alpha1.FenceName(FencedRing)}, Verbs: []string{"create", "patch", "update", "delete"},
		}},
	}
	if err := client.IgnoreAlreadyExists(s.Client.Create(ctx, fence)); err != nil {
		return fmt.Errorf("grant the fence to the assigner: %w", err)
	}
	s.remember(fence)

	return nil
}

func (s *System) remember(o client.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.created = append(s.created, o)
}

// Stop removes the created objects. A control plane on this machine is stopped by [Local.Stop] instead.
func (s *System) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()

	var errs []error
	for _, o := range slices.Backward(s.created) {
		errs = append(errs, client.IgnoreNotFound(s.Client.Delete(ctx, o)))
	}

	return errors.Join(errs...)
}

// Namespace creates a namespace for objects and Leases. Its name begins with the prefix, and it has labels with the given keys. On a
// cluster, Stop removes it.
func (s *System) Namespace(ctx context.Context, prefix string, labels ...string) (string, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-", Labels: map[string]string{}}}
	for _, key := range labels {
		ns.Labels[key] = "true"
	}

	if err := s.Client.Create(ctx, ns); err != nil {
		return "", fmt.Errorf("create a namespace: %w", err)
	}
	s.remember(ns)

	return ns.Name, nil
}

// Metric returns the sum over the series of a metric of a service (all its replicas) that have all the given labels, each written as
// name="value". Without any series it is 0. Each call costs the service some CPU time.
func (s *System) Metric(ctx context.Context, name, metric string, labels ...string) (float64, error) {
	texts, err := s.metrics(ctx, name)
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

// Requests returns the number of requests, including watches, that a service has sent to the API server since its start.
func (s *System) Requests(ctx context.Context, name string) (float64, error) {
	return s.Metric(ctx, name, "rest_client_requests_total")
}

// rawGet reads a path of the API server.
func rawGet(ctx context.Context, config *rest.Config, path string) (string, error) {
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return "", fmt.Errorf("make a client of the API server: %w", err)
	}

	return get(ctx, httpClient, strings.TrimRight(config.Host, "/")+path)
}

// get returns the body of a response with status 200.
func get(ctx context.Context, client *http.Client, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", fmt.Errorf("get %s: %w", url, err)
	}

	response, err := client.Do(request)
	if err != nil {
		return "", fmt.Errorf("get %s: %w", url, err)
	}

	defer func() { _ = response.Body.Close() }() // was only read

	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", response.StatusCode, body)
	}

	if err != nil {
		return "", fmt.Errorf("get %s: %w", url, err)
	}

	return string(body), nil
}

// Until waits at most two minutes until the condition holds. The text what describes the condition in the error.
func Until(ctx context.Context, what string, condition func(context.Context) (bool, error)) error {
	err := wait.PollUntilContextTimeout(ctx, pollInterval, patience, true, condition)
	if err != nil && ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), fmt.Errorf("while waiting until %s", what))
	}

	if err != nil {
		return fmt.Errorf("wait until %s: %w", what, err)
	}

	return nil
}
