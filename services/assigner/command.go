// Package assigner is the service that gives every new object its shard, in the very write that creates it.
//
// Every replica serves the admission webhook and keeps its own state: package rings follows ClusterRings and Leases,
// package admission decides, package webhook answers; package certs, which ringquery uses as well, keeps the certificate. The
// leader also registers the webhook with the API server (package registration). Nothing here ever refuses a user's write:
// objects that the assigner misses are found by the rebalancer.
package assigner

import (
	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/services/internal/kit"
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

// NewCommand returns the command of the service. Each command may run once. Several commands may run in one process; they share
// its metrics.
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
