// Package ringquery is the service that tells people who owns what, and why.
//
// It reads Leases that carry a ring's label and ClusterRings, answers over gRPC (package api) what follows from them
// (package query), and writes nothing. Any number of replicas may run; what they know of the same Leases is the same.
package ringquery

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/ringquery/api"
	"github.com/clusterring/clusterring/services/ringquery/query"
	"github.com/clusterring/clusterring/services/ringquery/transport"
)

// NewCommand returns the command of the service.
func NewCommand() *cobra.Command {
	options := &transport.Options{}

	return kit.NewCommand(kit.Service{
		Name:     "ringquery",
		Short:    "Answers over gRPC who owns what, and why",
		Long:     long,
		Example:  example,
		AddFlags: func(flags *pflag.FlagSet) { options.AddFlags(flags) },
		Validate: options.Validate,
		Setup: func(ctx context.Context, rt *kit.Runtime) error {
			return setup(ctx, rt, options)
		},
	})
}

const long = `ringquery answers over gRPC who owns what, and why.

It serves clusterring.diagnostics.v1alpha1.DiagnosticsService:

  ListRings  all rings, page by page
  GetRing    one ring with its shards: holder, state, share of the hash space
  Locate     where an object belongs: partition key, hash, token, shard, and the shards that would be next

It answers from the Leases and ClusterRings that it watches and writes nothing. Any number of replicas may run. It
serves with TLS (--tls-cert-file and --tls-private-key-file, read again when they change), or without (--plaintext);
one of them has to be chosen.

The server describes itself by gRPC reflection, and speaks grpc.health.v1: it reports NOT_SERVING until it has seen
all Leases and ClusterRings, and as soon as it is told to stop.`

const example = `  # on your machine
  ringquery --kubeconfig ~/.kube/config --plaintext --grpc-bind-address 127.0.0.1:8090

  # in a cluster, with a certificate from a mounted Secret
  ringquery --tls-cert-file /etc/tls/tls.crt --tls-private-key-file /etc/tls/tls.key

  # ask it
  grpcurl -plaintext 127.0.0.1:8090 list
  grpcurl -plaintext 127.0.0.1:8090 clusterring.diagnostics.v1alpha1.DiagnosticsService/ListRings
  grpcurl -plaintext -d '{"name": "example"}' 127.0.0.1:8090 clusterring.diagnostics.v1alpha1.DiagnosticsService/GetRing
  grpcurl -plaintext -d '{"object": {"group": "apps", "kind": "Deployment", "namespace": "default", "name": "web"}}' \
    127.0.0.1:8090 clusterring.diagnostics.v1alpha1.DiagnosticsService/Locate`

// setup makes the server and what it answers from.
func setup(ctx context.Context, rt *kit.Runtime, options *transport.Options) error {
	index := membership.NewIndex()
	if err := kit.WatchLeases(ctx, rt, index); err != nil {
		return err
	}

	// A cache that is first asked for rings by a call would make that call wait, and readiness a lie.
	if _, err := rt.Manager.GetCache().GetInformer(ctx, &v1alpha1.ClusterRing{}); err != nil {
		return fmt.Errorf("watch ClusterRings: %w", err)
	}

	ready := &readiness{ask: rt.Ready}
	service := &api.Service{
		Answers: &query.Answerer{
			Reader:    rt.Manager.GetClient(),
			Index:     index,
			Resources: query.NewResources(rt.Manager.GetRESTMapper(), rt.Clock),
		},
		Ready: ready.ever,
		Log:   rt.Log,
	}

	server := &transport.Server{
		Options:   *options,
		Services:  []func(grpc.ServiceRegistrar){service.Register},
		Ready:     ready.now,
		Draining:  rt.Draining(),
		DrainTime: rt.Options.ShutdownGrace * 4 / 5, // the rest is for all else that has to stop
		Clock:     rt.Clock,
		Log:       rt.Log,
	}

	return server.AddTo(rt.Manager)
}

// readiness is that of the service, with a memory.
type readiness struct {
	// ask returns nil while the service is ready.
	ask func() error
	was atomic.Bool
}

// now returns nil while the service is ready.
func (r *readiness) now() error {
	err := r.ask()
	if err == nil {
		r.was.Store(true)
	}

	return err
}

// ever returns nil once the service has been ready: what has been read stays read, and calls are answered while the service
// is about to stop.
func (r *readiness) ever() error {
	if r.was.Load() {
		return nil
	}

	return r.now()
}
