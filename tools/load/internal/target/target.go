// Package target is what is measured: a control plane and the four services, started as processes of this machine ([Local]), or those
// of a cluster, where they are installed already.
package target

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

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

// Names of what is measured, as in the results of [Local.Usage].
const (
	LeaseMonitor = services.LeaseMonitor
	Assigner     = services.Assigner
	Rebalancer   = services.Rebalancer
	RingQuery    = services.RingQuery
	APIServer    = "apiserver"
	Etcd         = "etcd"
)

// Services are the names of the services.
var Services = services.All

const (
	pollInterval = 50 * time.Millisecond
	stopTimeout  = 20 * time.Second
	// patience is how long the services may take to do what is waited for.
	patience = 2 * time.Minute
)

// System is what is measured, wherever it runs. It is made by [Start] or [Connect]. Its methods are safe for concurrent use, but for Stop,
// which has to be the last.
type System struct {
	// Config and Client act as an administrator and do not limit their rate. Client reads from the API server, and knows Kubernetes'
	// types and ClusterRings.
	Config *rest.Config
	Client client.WithWatch
	// Writer is whom objects are written as, with all rights, too. On this machine it has the token of a ServiceAccount, as shards have:
	// an API server remembers tokens, but verifies a client certificate in each request, at the cost of a twentieth of a write.
	Writer *rest.Config

	place place
}

// place is where the services run.
type place interface {
	// metricsOf returns the metrics of each replica of a service.
	metricsOf(ctx context.Context, name string) ([]string, error)
	// remember has the object deleted by stop, if it would outlive that.
	remember(client.Object)
	// stop ends what was started, and removes what was created.
	stop() error
}

// newSystem makes the clients.
func newSystem(config *rest.Config, p place) (*System, error) {
	s := &System{Config: rest.CopyConfig(config), place: p}
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

// grant gives the services the rights on what is sharded in measurements, as whoever makes a ring does.
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
		s.place.remember(role)
	}
	return nil
}

// Namespace makes a new namespace for objects and Leases, whose name begins with the prefix, with labels of the given keys. Stop removes it
// from a cluster; here it lasts as long as the control plane.
func (s *System) Namespace(ctx context.Context, prefix string, labels ...string) (string, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-", Labels: map[string]string{}}}
	for _, key := range labels {
		ns.Labels[key] = "true"
	}
	if err := s.Client.Create(ctx, ns); err != nil {
		return "", fmt.Errorf("create a namespace: %w", err)
	}
	s.place.remember(ns)
	return ns.Name, nil
}

// Metric returns the sum over the series of a metric of a service (all its replicas) that have all the given labels, each written as
// name="value". Without any series it is 0. Each call costs the service some CPU time.
func (s *System) Metric(ctx context.Context, name, metric string, labels ...string) (float64, error) {
	texts, err := s.place.metricsOf(ctx, name)
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

// Requests returns how many requests a service has sent to the API server since it began, watches among them.
func (s *System) Requests(ctx context.Context, name string) (int, error) {
	n, err := s.Metric(ctx, name, "rest_client_requests_total")
	return int(n), err
}

// Stop stops everything that was started, and removes what was created in a cluster.
func (s *System) Stop() error { return s.place.stop() }

// rawGet reads a path of the API server.
func rawGet(ctx context.Context, config *rest.Config, path string) (string, error) {
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return "", fmt.Errorf("make a client of the API server: %w", err)
	}
	return get(ctx, httpClient, strings.TrimRight(config.Host, "/")+path)
}

// get returns what a URL answers with status 200.
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

// Until waits until the condition holds, for two minutes at most; what names it in the error.
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
