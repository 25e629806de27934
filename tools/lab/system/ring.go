package system

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// Ring is a ring whose objects and Leases are recorded, on this machine or in a cluster.
type Ring struct {
	Name string
	*record.Recorder
	client client.Client
}

// Watch records a ring of any cluster until ctx ends: the options need no labels.
func Watch(ctx context.Context, config *rest.Config, c client.Client, o record.Options) *Ring {
	o.Labels = record.Labels{Shard: contract.ShardLabel(o.Ring), Drain: contract.DrainLabel(o.Ring)}

	return &Ring{Name: o.Ring, client: c, Recorder: must.Get(record.Start(ctx, config, o))}
}

// Watch records a ring until ctx ends.
func (s *System) Watch(ctx context.Context, name string, objects ...record.Objects) *Ring {
	r := Watch(ctx, s.Plane.Config, s.Client,
		record.Options{Ring: name, LeaseNamespace: ShardNamespace, Objects: objects})
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
func StatusProblems(ring *v1alpha1.ClusterRing, shards int) []string {
	var problems []string
	if n := int(ring.Status.AvailableShards); n != shards {
		problems = append(problems, fmt.Sprintf("the ring has %d available shards, not %d", n, shards))
	}

	types := []string{v1alpha1.ConditionShardsAvailable, v1alpha1.ConditionAssigned, v1alpha1.ConditionReady}
	if ring.Spec.Sharder != v1alpha1.SharderEmbedded { // such a ring uses no webhook
		types = append(types, v1alpha1.ConditionWebhookRegistered)
	}

	for _, t := range types {
		switch c := meta.FindStatusCondition(ring.Status.Conditions, t); {
		case c == nil:
			problems = append(problems, fmt.Sprintf("the ring has no condition %s", t))
		case c.Status != metav1.ConditionTrue:
			problems = append(problems, fmt.Sprintf("the ring has condition %s %s: %s: %s", t, c.Status, c.Reason, c.Message))
		}
	}

	if a := ring.Status.Assignment; a == nil || a.Fingerprint == "" || a.Unassigned+a.Misplaced+a.Draining > 0 {
		problems = append(problems, fmt.Sprintf("the ring's assignment: %+v", a))
	}

	return problems
}

// ObjectProblems returns which objects are not in place. While users change them, the work on each need only have been
// done once since the record began: objects that change all the time are seldom all done at one moment.
func (r *Ring) ObjectProblems(available []string, changing bool) []string {
	newest, done := r.Newest(), map[string]bool{}

	if changing {
		for _, v := range r.All() {
			done[v.UID] = done[v.UID] || v.Complete
		}
	}

	for i := range newest {
		newest[i].Complete = newest[i].Complete || done[newest[i].UID]
	}

	var problems []string
	for _, v := range check.Final(check.State{Versions: newest, Available: available}) {
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
			answer, err := c.Locate(ctx, locate(r.Name, v, owner))
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

// locate returns the question where an object is, which has an owner unless that is zero. An empty ring means all
// rings.
func locate(ring string, v, owner check.Version) *diagnosticsv1alpha1.LocateRequest {
	request := &diagnosticsv1alpha1.LocateRequest{
		Ring: ring,
		Object: &diagnosticsv1alpha1.ObjectReference{
			Group:     record.Resource(v.Kind).Group,
			Type:      &diagnosticsv1alpha1.ObjectReference_Resource{Resource: strings.ToLower(v.Kind) + "s"},
			Namespace: v.Namespace, Name: v.Name,
		},
		NextShards: ptr.To[int32](0),
	}
	if owner.UID != "" {
		request.Owner = &diagnosticsv1alpha1.OwnerReference{
			Group: record.Resource(owner.Kind).Group, Name: owner.Name,
			Type: &diagnosticsv1alpha1.OwnerReference_Kind{Kind: owner.Kind},
		}
	}

	return request
}
