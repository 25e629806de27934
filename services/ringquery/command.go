// Package ringquery is the service that reports which shard owns which object, and why.
//
// It reads ClusterRings and the Leases with a ring's label (package rings), derives answers from them (packages api and
// explain), and serves the answers over gRPC (package transport) to authorized users (package auth). It writes only its
// own certificate. Any number of replicas may run. They derive the same answers from the same Leases, and serve with
// the same certificate.
package ringquery

import (
	"context"
	"errors"
	"net/http"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/leases"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/api"
	"github.com/clusterring/clusterring/services/ringquery/auth"
	"github.com/clusterring/clusterring/services/ringquery/rings"
	"github.com/clusterring/clusterring/services/ringquery/transport"
)

// name of the service, and of its Kubernetes Service.
const name = "ringquery"

// NewCommand returns the command of the service.
func NewCommand() *cobra.Command {
	options := &options{}

	return kit.NewCommand(kit.Service{
		Name:      name,
		Short:     "Reports over gRPC which shard owns which object, and why",
		Long:      long,
		Example:   example,
		AddFlags:  options.addFlags,
		Validate:  options.validate,
		Configure: options.configure,
		Setup: func(ctx context.Context, rt *kit.Runtime) error {
			return setup(ctx, rt, options)
		},
	})
}

const long = `ringquery reports over gRPC which shard owns which object, and why.

It serves clusterring.diagnostics.v1alpha1.DiagnosticsService, which "kubectl ring" asks. grpcurl lists and describes its methods.

It watches Leases and ClusterRings. It reads the metadata of an object only to answer a question about the object. It writes
only its own certificate. Any number of replicas may run.

It serves with TLS. With --ca-mode secret, it creates its certificate itself, for ringquery.NAMESPACE.svc, and rotates it. The
Secret --tls-secret contains the certificate. The ConfigMap --ca-config-map publishes the CA certificates under the key ca.crt,
so that clients can verify the server. If one of the two is lost, ringquery restores it. To request a new certificate, delete
the Secret. With --ca-mode file, it serves with the certificate in --tls-cert-file, which you maintain. --plaintext serves
without TLS.

It authenticates users with the API server, by a bearer token (metadata "authorization: Bearer <token>"). A query about a
ring requires permission to "get" clusterrings/diagnostics of that ring. A query about several rings requires it on all
rings. The ClusterRole clusterring:diagnostics-viewer grants the permission.
With --authentication none, it answers everybody.

All authenticated users can query the description of the service by gRPC reflection. Everybody can query its health by
grpc.health.v1. Health is NOT_SERVING until the service has seen all Leases and ClusterRings, and from the moment when it
is asked to stop.`

const example = `  # on your machine, for all its users
  ringquery --kubeconfig ~/.kube/config --plaintext --authentication none --grpc-bind-address 127.0.0.1:8090

  # in a cluster, behind the Service sharding-system/ringquery, with its own certificate
  ringquery

  # the same, with a certificate from mounted files
  ringquery --ca-mode file --tls-cert-file /etc/tls/tls.crt --tls-private-key-file /etc/tls/tls.key

  # may I ask about ring "example"?
  kubectl auth can-i get clusterrings.sharding.timebertt.dev/example --subresource=diagnostics

  # ask it, in a cluster
  kubectl -n sharding-system get configmap ringquery-ca -o jsonpath='{.data.ca\.crt}' >ca.crt
  grpcurl -cacert ca.crt -H "authorization: Bearer $(kubectl create token me)" -d '{"name": "example"}' \
    ringquery.sharding-system.svc:8090 clusterring.diagnostics.v1alpha1.DiagnosticsService/GetRing

  # ask it, on your machine
  grpcurl -plaintext 127.0.0.1:8090 clusterring.diagnostics.v1alpha1.DiagnosticsService/ListRings`

// options are the service's own flags.
type options struct {
	transport transport.Options
	access    auth.Options
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	o.transport.AddFlags(flags)
	o.access.AddFlags(flags)
}

func (o *options) validate() error {
	return errors.Join(o.transport.Validate(), o.access.Validate(o.transport.Plaintext, o.transport.BindAddress))
}

// configure caches only the Secret and the ConfigMap of the certificate, so that the service needs no permission on
// others.
func (o *options) configure(common *kit.Options, m *manager.Options) {
	only := func(name string) cache.ByObject {
		return cache.ByObject{Namespaces: map[string]cache.Config{common.Namespace: {
			FieldSelector: fields.OneTermEqualSelector("metadata.name", name),
		}}}
	}

	m.Cache.ByObject[&corev1.Secret{}] = only(o.transport.Secret.Name)
	m.Cache.ByObject[&corev1.ConfigMap{}] = only(o.transport.CAConfigMap)
}

// setup creates the server and the sources of its answers.
func setup(ctx context.Context, rt *kit.Runtime, options *options) error {
	service, err := answers(ctx, rt)
	if err != nil {
		return err
	}

	guard := &auth.Guard{
		Options: options.access,
		RingOf:  api.RingOf,
		Domain:  api.ErrorDomain,
		Log:     rt.Log,
	}
	if err := guard.SetupWithManager(rt.Manager); err != nil {
		return err
	}

	server := &transport.Server{
		Options:   options.transport,
		Name:      name,
		Namespace: rt.Options.Namespace,
		Register:  service.Register,
		Stream:    []grpc.StreamServerInterceptor{guard.Stream, service.Stream},
		Ready:     rt.Ready,
		DrainTime: rt.Options.ShutdownGrace * 4 / 5, // the rest is for the other parts that have to stop
		Clock:     rt.Clock,
		Log:       rt.Log,
	}

	if err := server.SetupWithManager(rt.Manager); err != nil {
		return err
	}

	rt.AddReady("certificate", server.CertificateReady)

	return nil
}

// answers creates the API and lets it watch Leases and ClusterRings.
func answers(ctx context.Context, rt *kit.Runtime) (*api.Service, error) {
	objects, err := rings.NewObjects(rt.Manager.GetConfig(), rt.Manager.GetHTTPClient())
	if err != nil {
		return nil, err
	}

	known, err := resources.Follow(rt.Manager, rt.Clock, rt.Log)
	if err != nil {
		return nil, err
	}

	rt.AddReady("resources", func(*http.Request) error { return known.Known() })

	index, ages := membership.NewIndex(), &rings.Leases{Clock: rt.Clock}
	service := &api.Service{
		Rings: &rings.Rings{
			Reader:  rt.Manager.GetClient(),
			Index:   index,
			Known:   known,
			Leases:  ages,
			Objects: objects,
		},
		Clock: rt.Clock,
		Log:   rt.Log,
	}

	index.Subscribe(service.RingChanged)

	read, err := leases.Watch(ctx, rt.Manager, rt.AddReady, index)
	if err != nil {
		return nil, err
	}

	// Both stay so: the service answers calls while it is about to stop. Discovery begins when the caches are filled.
	service.Ready = func() error {
		if !toolscache.IsDone(read) {
			return errors.New("the Leases of shards have not been read yet")
		}

		return known.Known()
	}

	// This also fills the cache of rings at startup. Otherwise, the first call would fill it and wait, although the
	// service is ready.
	return service, ages.Follow(ctx, rt.Manager.GetCache(), service.RingChanged)
}
