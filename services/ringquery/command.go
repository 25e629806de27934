// Package ringquery is the service that tells people who owns what, and why.
//
// It reads Leases that carry a ring's label and ClusterRings (package rings), answers what follows from them (packages query and
// explain), and serves the answers over gRPC (packages api and transport) to those who may ask (package auth). It writes nothing but
// its own certificate. Any number of replicas may run; what they know of the same Leases is the same, and so is the certificate that
// they serve with.
package ringquery

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/services/internal/kit"
)

// name of the service, and of its Kubernetes Service.
const name = "ringquery"

// NewCommand returns the command of the service.
func NewCommand() *cobra.Command {
	options := &options{}

	return kit.NewCommand(kit.Service{
		Name:      name,
		Short:     "Answers over gRPC who owns what, and why",
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

const long = `ringquery answers over gRPC who owns what, and why.

It serves clusterring.diagnostics.v1alpha1.DiagnosticsService:

  ListRings        all rings, page by page
  GetRing          one ring with its shards: holder, state, share of the hash space
  WatchRing        the same, and again whenever it changes
  Locate           where an object belongs: partition key, hash, partition, shard, and the shards that would be next
  LocateAll        the same for many objects, over one stream
  Explain          where an object is, where it belongs, why, and what happens next and by whom
  ListAssignments  the objects of one resource of a ring and where they are, page by page
  Simulate         what would move if shards were added, removed or renamed

It answers from the Leases and ClusterRings that it watches, and from metadata of objects that it reads when it is asked
about them. It writes nothing but its own certificate. Any number of replicas may run.

It serves with TLS. With --ca-mode secret it makes its certificate itself, for ringquery.NAMESPACE.svc, and replaces it in
time: the Secret --tls-secret keeps it, and the ConfigMap --ca-config-map shows everybody, under ca.crt, the authorities to
verify it by. Both are restored if they are lost; to have a new certificate, delete the Secret. With --ca-mode file the
certificate is that of --tls-cert-file, which others maintain. --plaintext serves without TLS.

It answers those whom the API server knows, by a bearer token (metadata "authorization: Bearer <token>") or by a client
certificate (--client-ca-file), and who have the right to "get" clusterrings/diagnostics of the ring, or of all rings if
a call is about several; ClusterRole clusterring:diagnostics-viewer grants that. --authentication none answers everybody.

The server describes itself by gRPC reflection to everybody who is known, and speaks grpc.health.v1 to everybody: it
reports NOT_SERVING until it has seen all Leases and ClusterRings, and as soon as it is told to stop.`

const example = `  # on your machine, for everybody on it
  ringquery --kubeconfig ~/.kube/config --plaintext --authentication none --grpc-bind-address 127.0.0.1:8090

  # in a cluster, behind the Service sharding-system/ringquery, with a certificate of its own
  ringquery

  # the same, with a certificate from mounted files, and client certificates beside tokens
  ringquery --ca-mode file --tls-cert-file /etc/tls/tls.crt --tls-private-key-file /etc/tls/tls.key --client-ca-file /etc/clients/ca.crt

  # may I ask about ring "example"?
  kubectl auth can-i get clusterrings.sharding.timebertt.dev/example --subresource=diagnostics

  # ask it, in a cluster
  kubectl -n sharding-system get configmap ringquery-ca -o jsonpath='{.data.ca\.crt}' >ca.crt
  grpcurl -cacert ca.crt -H "authorization: Bearer $(kubectl create token me)" -d '{"name": "example"}' \
    ringquery.sharding-system.svc:8090 clusterring.diagnostics.v1alpha1.DiagnosticsService/GetRing

  # ask it, on your machine
  grpcurl -plaintext 127.0.0.1:8090 list
  grpcurl -plaintext 127.0.0.1:8090 clusterring.diagnostics.v1alpha1.DiagnosticsService/ListRings
  grpcurl -plaintext -d '{"name": "example"}' 127.0.0.1:8090 clusterring.diagnostics.v1alpha1.DiagnosticsService/GetRing
  grpcurl -plaintext -d '{"object": {"group": "apps", "kind": "Deployment", "namespace": "default", "name": "web"}}' \
    127.0.0.1:8090 clusterring.diagnostics.v1alpha1.DiagnosticsService/Locate`
