package system

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/judge"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/lab/ringstatus"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// Ring is a ring whose objects and Leases are recorded.
type Ring struct {
	Name string
	*record.Recorder
	client client.Client
}

// Watch records a ring until ctx ends.
func (s *System) Watch(ctx context.Context, name string, objects ...record.Objects) *Ring {
	r := &Ring{Name: name, client: s.Client}
	r.Recorder = must.Get(record.Start(ctx, s.Plane.Config, record.Options{
		Ring: name, Labels: record.Labels{Shard: contract.ShardLabel(name), Drain: contract.DrainLabel(name)},
		LeaseNamespace: ShardNamespace, Objects: objects,
	}))
	s.Rings = append(s.Rings, r)

	return r
}

// All returns the versions recorded so far.
func (r *Ring) All() []check.Version { return must.Get(r.Versions()) }

// Holders returns the sorted names of the shards that hold their Leases.
func (r *Ring) Holders() []string {
	var names []string

	for _, v := range r.Newest() {
		if v.Kind == check.Lease && !v.Deleted && v.Holder == v.Name {
			names = append(names, v.Name)
		}
	}
	slices.Sort(names)

	return names
}

// Stored reads the ClusterRing.
func (r *Ring) Stored(ctx context.Context) *v1alpha1.ClusterRing {
	ring := &v1alpha1.ClusterRing{}
	must.Do(r.client.Get(ctx, client.ObjectKey{Name: r.Name}, ring))

	return ring
}

// StatusProblems returns what is wrong with the status of a ring that has this number of available shards, and all
// objects in place.
func (r *Ring) StatusProblems(ctx context.Context, shards int) []string {
	ring := r.Stored(ctx)

	problems := ringstatus.Problems(ring, shards)
	if a := ring.Status.Assignment; a == nil || a.Fingerprint == "" || a.Unassigned+a.Misplaced+a.Draining > 0 {
		problems = append(problems, fmt.Sprintf("the ring's assignment: %+v", a))
	}

	return problems
}

// ObjectProblems returns which objects are not in place.
func (r *Ring) ObjectProblems(available []string) []string {
	var problems []string
	for _, v := range check.Final(check.State{Versions: r.Newest(), Available: available}) {
		problems = append(problems, v.Text)
	}

	return problems
}

// Queries returns a client of a ringquery without TLS, until ctx ends.
func Queries(ctx context.Context, address string) diagnosticsv1alpha1.DiagnosticsServiceClient {
	connection := must.Get(grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials())))
	context.AfterFunc(ctx, func() { _ = connection.Close() }) // nothing to save

	return diagnosticsv1alpha1.NewDiagnosticsServiceClient(connection)
}

// Disagreements returns the objects whose labels differ from the response of a replica of ringquery, and the objects on
// which replicas differ (I3).
func (r *Ring) Disagreements(
	ctx context.Context, replicas ...diagnosticsv1alpha1.DiagnosticsServiceClient,
) (located int, problems []string) {
	const within = 10 * time.Second

	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()

	objects := map[string]check.Version{}
	for _, v := range Live(r.Newest()) {
		objects[v.UID] = v
	}

	for _, v := range objects {
		owner, exists := objects[v.Owner]
		if v.Owner != "" && !exists || v.Kind == check.ConfigMap && v.Owner == "" {
			continue // its owner is gone, or it is not of the ring
		}

		var first *diagnosticsv1alpha1.LocateResponse

		name := fmt.Sprintf("%s %s/%s", v.Kind, v.Namespace, v.Name)

		for i, c := range replicas {
			answer, err := c.Locate(ctx, judge.Locate(r.Name, v, owner))
			switch {
			case err != nil:
				return located, append(problems, fmt.Sprintf("%s: ringquery %d: %v", name, i+1, err))
			case first == nil:
				first = answer
			case !proto.Equal(first, answer):
				problems = append(problems, fmt.Sprintf("%s: the replicas return %v and %v", name, first, answer))
			}

			if all := answer.GetLocations(); len(all) != 1 || all[0].GetShard() != v.Shard {
				problems = append(problems, fmt.Sprintf("%s: ringquery %d returns %v, the label is %q", name, i+1, all, v.Shard))
			}
		}

		located++
	}

	return located, problems
}
