// Package assigner is the service that gives every new object its shard, in the very write that creates it.
//
// Every replica serves the admission webhook and keeps its own state: package rings follows ClusterRings and Leases,
// package admission decides, package webhook answers; package certs, which ringquery uses as well, keeps the certificate. The
// leader also registers the webhook with the API server (package registration). Nothing here ever refuses a user's write:
// objects that the assigner misses are found by the rebalancer.
package assigner

import (
	"net/http"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/clusterring/clusterring/services/internal/kit"
)

// name of the service, its field manager and, by default, its Kubernetes Service.
const name = "assigner"

const long = `The assigner gives every new object of a ring its shard, in the write that creates it.

It reads   ClusterRings and the Leases of their shards; and, where the controller of an object is controlled itself, as a
           ReplicaSet is, who controls that one.
It decides which shard an object belongs to, from the name of the object, or of the one it follows, and the set of available
           shards alone.
It writes  the shard label, as an admission webhook; one MutatingWebhookConfiguration per ring (the leader only); the
           ring's condition WebhookRegistered; and, with --ca-mode secret, the Secret of its own certificates.

It never refuses a write. What it cannot assign it lets pass, and the rebalancer assigns it within seconds; so does the
API server when no assigner answers. Run as many replicas as you like: each of them answers.`

const example = `  # in a cluster, behind the Service sharding-system/assigner, with certificates of its own
  assigner

  # beside an API server on this machine
  assigner --kubeconfig admin.conf --webhook-mode url --webhook-url https://127.0.0.1:9443

  # with certificates from cert-manager, mounted as files
  assigner --ca-mode cert-manager --cert-manager-inject-ca-from sharding-system/assigner \
    --tls-cert-file /tls/tls.crt --tls-private-key-file /tls/tls.key`

// NewCommand returns the command of the service. Each call returns one that may run once; several may run in one process,
// and share its metrics.
func NewCommand() *cobra.Command {
	s := &service{mux: http.NewServeMux()}

	return kit.NewCommand(kit.Service{
		Name:           name,
		Short:          "Gives every new object of a ring its shard",
		Long:           long,
		Example:        example,
		LeaderElection: true,
		AddFlags: func(fs *pflag.FlagSet) {
			s.all = fs
			s.addFlags(fs)
		},
		Validate:  s.validate,
		Configure: s.configure,
		Setup:     s.setup,
	})
}
