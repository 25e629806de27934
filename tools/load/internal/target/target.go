// Package target provides the system to measure: a control plane and the four services, started on this machine.
package target

import (
	"context"
	"errors"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/metrics"
	"github.com/clusterring/clusterring/tools/testkit/services"
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
	// patience limits waits for the services.
	patience = 2 * time.Minute
)

// System is how the system to measure is reached. Its methods are safe for concurrent use.
type System struct {
	// Config and Client have administrator rights and no rate limit. Client does not cache, and knows the Kubernetes types and ClusterRings.
	Config *rest.Config
	Client client.Client
	// Writer is the configuration for writing objects, also with all rights. It uses the token of a ServiceAccount, as shards do: the API server
	// caches tokens, but verifies a client certificate in each request, which costs a twentieth of a write.
	Writer *rest.Config

	clients kubernetes.Interface
	// metrics returns the metrics of a service.
	metrics func(ctx context.Context, name string) (string, error)
}

// newSystem creates the clients.
func newSystem(config *rest.Config) (s *System, err error) {
	s = &System{Config: rest.CopyConfig(config)}

	s.Config.QPS = -1
	if s.Client, err = localplane.NewClient(s.Config, v1alpha1.AddToScheme); err != nil {
		return nil, err
	}

	if s.clients, err = kubernetes.NewForConfig(s.Config); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}

	return s, nil
}

// grant gives the services the permissions on the measured resources, as the creator of a ring does.
func (s *System) grant(ctx context.Context) error {
	role := func(name, label string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "load:" + name, Labels: map[string]string{label: "true"}}, Rules: rules}
	}
	measured := func(verbs ...string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{objects.ConfigMaps.Resource}, Verbs: verbs},
			{APIGroups: []string{objects.Deployments.Group}, Resources: []string{objects.Deployments.Resource}, Verbs: verbs},
			{APIGroups: []string{objects.Websites.Group}, Resources: []string{objects.Websites.Resource}, Verbs: verbs},
		}
	}

	return s.create(ctx,
		role("aggregate-to-rebalancer", contract.LabelAggregateToRebalancer, measured("get", "list", "watch", "patch")...),
		role("aggregate-to-ringquery", contract.LabelAggregateToRingQuery, measured("get", "list", "watch")...),
		role("fence", contract.LabelAggregateToAssigner, rbacv1.PolicyRule{
			APIGroups: []string{admissionregistrationv1.GroupName}, Resources: []string{"validatingadmissionpolicybindings"},
			ResourceNames: []string{contract.FenceName(FencedRing)}, Verbs: []string{"create", "patch", "update", "delete"},
		}),
	)
}

// create creates those of the objects that do not exist.
func (s *System) create(ctx context.Context, all ...client.Object) error {
	for _, o := range all {
		if err := client.IgnoreAlreadyExists(s.Client.Create(ctx, o)); err != nil {
			return fmt.Errorf("create %T %s: %w", o, client.ObjectKeyFromObject(o), err)
		}
	}

	return nil
}

// Namespace creates a namespace for objects and Leases. Its name begins with the prefix.
func (s *System) Namespace(ctx context.Context, prefix string) (string, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-"}}
	err := s.create(ctx, ns)

	return ns.Name, err
}

// Metric returns the sum over the series of a metric of a service that have all the given labels, each written as
// name="value". Without any series it is 0. Each call costs the service some CPU time.
func (s *System) Metric(ctx context.Context, name, metric string, labels ...string) (float64, error) {
	text, err := s.metrics(ctx, name)
	if err != nil {
		return 0, fmt.Errorf("read metrics of %s: %w", name, err)
	}

	total, err := metrics.Sum(text, metric, labels...)
	if err != nil {
		return 0, fmt.Errorf("read metrics of %s: %w", name, err)
	}

	return total, nil
}

// Requests returns the number of requests, including watches, that a service has sent to the API server since its start.
func (s *System) Requests(ctx context.Context, name string) (float64, error) {
	return s.Metric(ctx, name, "rest_client_requests_total")
}

// get reads a path of the API server.
func (s *System) get(ctx context.Context, path string) ([]byte, error) {
	body, err := s.clients.Discovery().RESTClient().Get().RequestURI(path).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("get %s of the API server: %w", path, err)
	}

	return body, nil
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
