// Package assigner is the service that gives every new object its shard, in the very write that creates it.
//
// Every replica serves the admission webhook and keeps its own state: package rings follows ClusterRings and Leases,
// package admission decides, package webhook answers; package certs, which ringquery uses as well, keeps the
// certificate. The leader also registers the webhook with the API server (package registration). Nothing here ever
// refuses a user's write: objects that the assigner misses are found by the rebalancer.
package assigner

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/assigner/registration"
	"github.com/clusterring/clusterring/services/assigner/rings"
	"github.com/clusterring/clusterring/services/assigner/webhook"
	"github.com/clusterring/clusterring/services/internal/certs"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/leases"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// name of the service, its field manager and, by default, its Kubernetes Service.
const name = "assigner"

const long = `The assigner assigns a shard to every new object of a ring, in the same write that creates the object.

It reads   ClusterRings and the Leases of their shards. If the controller of an object is itself controlled, as a ReplicaSet
           is, it also reads that controller.
It decides which shard an object belongs to. This depends only on the name of the object, or of the object that it follows,
           and on the set of available shards.
It writes  the shard label, as an admission webhook; one MutatingWebhookConfiguration per ring and one
           ValidatingAdmissionPolicyBinding per ring with a fence (only the leader); the ring's conditions WebhookRegistered
           and Fenced; and, with --ca-mode secret, the Secret of its own certificates.

It never refuses a write. If it cannot assign an object, the write succeeds anyway, and the rebalancer assigns the object
within seconds. The same happens if no assigner answers. Run any number of replicas: all of them answer.`

const example = `  # in a cluster, behind the Service sharding-system/assigner, with certificates of its own
  assigner

  # beside an API server on this machine
  assigner --kubeconfig admin.conf --webhook-mode url --webhook-url https://127.0.0.1:9443

  # with certificates from cert-manager, mounted as files
  assigner --ca-mode cert-manager --cert-manager-inject-ca-from sharding-system/assigner \
    --tls-cert-file /tls/tls.crt --tls-private-key-file /tls/tls.key`

func init() {
	metrics.Registry.MustRegister(webhook.Collectors()...)
	metrics.Registry.MustRegister(registration.Collectors()...)
}

// NewCommand returns the command of the service. Each command may run once. Several commands may run in one process;
// they share its metrics.
func NewCommand() *cobra.Command {
	s := &service{}

	return kit.NewCommand(kit.Service{
		Name:           name,
		Short:          "Assigns a shard to every new object of a ring",
		Long:           long,
		Example:        example,
		LeaderElection: true,
		AddFlags:       s.addFlags,
		Validate:       s.validate,
		Configure:      s.configure,
		Setup:          s.setup,
	})
}

// service is one run of the assigner.
type service struct{ options }

// configure restricts what is cached to what is needed.
func (s *service) configure(common *kit.Options, o *manager.Options) {
	o.Cache.ByObject[&admissionregistrationv1.MutatingWebhookConfiguration{}] = kit.WithManagers(kit.OfRing())
	o.Cache.ByObject[&admissionregistrationv1.ValidatingAdmissionPolicyBinding{}] = kit.WithManagers(kit.OfRing())
	o.Cache.ByObject[&v1alpha1.PolicyParameter{}] = kit.WithManagers(cache.ByObject{})
	o.Cache.ByObject[&admissionregistrationv1.ValidatingAdmissionPolicy{}] = cache.ByObject{
		Field: fields.OneTermEqualSelector("metadata.name", contract.FencePolicyName),
	}
	o.Cache.ByObject[&corev1.Secret{}] = cache.ByObject{
		Namespaces: map[string]cache.Config{common.Namespace: {
			FieldSelector: fields.OneTermEqualSelector("metadata.name", s.secret.Name),
		}},
	}
}

func (s *service) setup(ctx context.Context, rt *kit.Runtime) error {
	mgr := rt.Manager
	target := s.target(rt.Options.Namespace)

	source, err := s.certificates(rt, target)
	if err != nil {
		return err
	}

	clients, err := s.clientCAs(rt)
	if err != nil {
		return err
	}

	index := membership.NewIndex()
	if _, err := leases.Follow(mgr, rt.AddReady, index); err != nil {
		return err
	}

	known, err := resources.Follow(mgr, rt.Clock, rt.Log)
	if err != nil {
		return err
	}

	reach, err := registration.NewReach(mgr, target, rt.Clock)
	if err != nil {
		return err
	}

	ancestors, err := ancestorsOf(mgr, rt.Clock)
	if err != nil {
		return err
	}

	// Replicas that do not lead need the paths, too.
	if _, err := mgr.GetCache().GetInformer(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{}); err != nil {
		return fmt.Errorf("follow webhook configurations: %w", err)
	}

	store := &rings.Store{Client: mgr.GetClient(), Index: index, Resources: known, Forget: webhook.Forget}

	r := &registration.Reconciler{
		Client:    mgr.GetClient(),
		Live:      mgr.GetAPIReader(),
		Resources: known,
		Bundle:    source,
		Target:    target,
		Status:    clusterring.StatusWriter{Client: mgr.GetClient(), Owner: name, Clock: rt.Clock},
		Reach:     reach,
		Restores:  kit.NewRestores(rt.Clock),
	}

	handler := &webhook.Handler{
		Rings: store, Registered: registration.Registered(mgr.GetClient()), Ancestors: ancestors,
		Bodies: webhook.NewBodies(), Clock: rt.Clock, Log: rt.Log,
		Notices: webhook.NewNotices(mgr.GetClient(), mgr.GetEventRecorder(name), rt.Clock),
	}

	server := &webhook.Server{
		Address: s.bindAddress, Handler: handler, GetCertificate: source.GetCertificate, ClientCAs: clients,
		Clock: rt.Clock, Log: rt.Log,
	}

	rt.AddReady("rings", store.Ready)
	rt.AddReady("certificate", source.Ready)
	rt.AddReady("webhook", server.Ready)

	return errors.Join(source.SetupWithManager(mgr), store.SetupWithManager(mgr), r.SetupWithManager(mgr), mgr.Add(server))
}

// clientCAs returns where the webhook's server finds the CA certificates of API servers; nil if it asks for no
// certificate.
func (s *service) clientCAs(rt *kit.Runtime) (func() *x509.CertPool, error) {
	if s.clientCAFile == "" {
		return nil, nil
	}

	file, err := certs.NewBundleFile(s.clientCAFile, rt.Log)
	if err != nil {
		return nil, fmt.Errorf("%w (--client-ca-file)", err)
	}

	return file.Pool, nil
}

const (
	// maxBetween is of how many objects that stand between others it is remembered whom they follow, 3 MB, and rememberFor
	// for how long. Should one get another owner, what is new goes to the old owner's shard for that long, until the
	// rebalancer's audit finds it.
	maxBetween  = 10_000
	rememberFor = time.Minute
	// ownerWithin is how long a user's write waits for a read of an owner. The rebalancer assigns what has waited in vain.
	ownerWithin = 100 * time.Millisecond
)

// ancestorsOf returns who finds out whom objects follow.
func ancestorsOf(mgr manager.Manager, clk clock.PassiveClock) (*resources.Book, error) {
	config := rest.CopyConfig(mgr.GetConfig())
	config.QPS, config.RateLimiter = -1, nil // a write must not queue behind others'

	live, err := metadata.NewForConfigAndClient(config, mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("create a client for metadata: %w", err)
	}

	read := func(ctx context.Context, gvr schema.GroupVersionResource,
		name types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
		return live.Resource(gvr).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	}

	return resources.NewBook(resources.BookOptions{Read: read, Size: maxBetween, Remember: rememberFor, LabelsAnew: true,
		Patience: ownerWithin, Clock: clk}), nil
}

// certificates returns where the serving certificate comes from.
func (s *service) certificates(rt *kit.Runtime, target registration.Target) (certs.Source, error) {
	if s.caMode == caCertManager {
		source, err := certs.NewFiles(s.certFile, s.keyFile)
		if err != nil {
			return nil, fmt.Errorf("%w (--tls-cert-file, --tls-private-key-file)", err)
		}

		return source, nil
	}

	return &certs.Secret{
		Client: rt.Manager.GetClient(),
		Name:   types.NamespacedName{Namespace: rt.Options.Namespace, Name: s.secret.Name},
		Policy: s.policy(target),
		Clock:  rt.Clock,
	}, nil
}
