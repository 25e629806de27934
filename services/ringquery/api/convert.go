package api

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/query"
)

// The enums of the API; what is in none of them is the zero value.
var (
	roles = map[resources.Role]pb.Role{
		resources.Main:       pb.Role_ROLE_MAIN,
		resources.Controlled: pb.Role_ROLE_CONTROLLED,
	}
	states = map[lease.State]pb.ShardState{
		lease.Ready:     pb.ShardState_SHARD_STATE_READY,
		lease.Expired:   pb.ShardState_SHARD_STATE_EXPIRED,
		lease.Uncertain: pb.ShardState_SHARD_STATE_UNCERTAIN,
		lease.Dead:      pb.ShardState_SHARD_STATE_DEAD,
		lease.Orphaned:  pb.ShardState_SHARD_STATE_ORPHANED,
	}
	coverages = map[query.Coverage]pb.NamespaceCoverage{
		query.Covered: pb.NamespaceCoverage_NAMESPACE_COVERAGE_COVERED,
		query.Unknown: pb.NamespaceCoverage_NAMESPACE_COVERAGE_UNKNOWN,
	}
)

func ringOf(r query.Ring) *pb.Ring {
	return &pb.Ring{
		Name:              r.Name,
		Resources:         resourcesOf(r),
		NamespaceSelector: query.Selector(r.ClusterRing),
		Shards:            int32(len(r.View.Shards())),
		AvailableShards:   int32(len(r.View.AvailableShards())),
		Fingerprint:       r.View.Fingerprint(),
		Conditions:        conditionsOf(r.Status.Conditions),
		CreateTime:        timestamppb.New(r.CreationTimestamp.Time),
		Deleting:          !r.DeletionTimestamp.IsZero(),
	}
}

func resourcesOf(r query.Ring) []*pb.RingResource {
	of := func(group, name string, role resources.Role) *pb.RingResource {
		found, _, _ := r.Resources.Find(schema.GroupResource{Group: group, Resource: name})
		return &pb.RingResource{Group: group, Resource: name, Role: roles[role], Kind: found.Kind.Kind}
	}

	var all []*pb.RingResource
	for _, main := range r.Spec.Resources {
		all = append(all, of(main.Group, main.Resource, resources.Main))
		for _, c := range main.ControlledResources {
			all = append(all, of(c.Group, c.Resource, resources.Controlled))
		}
	}

	return all
}

func conditionsOf(conditions []metav1.Condition) []*pb.Condition {
	all := make([]*pb.Condition, 0, len(conditions))
	for _, c := range conditions {
		all = append(all, &pb.Condition{
			Type:               c.Type,
			Status:             string(c.Status),
			Reason:             c.Reason,
			Message:            c.Message,
			LastTransitionTime: timestamppb.New(c.LastTransitionTime.Time),
			ObservedGeneration: c.ObservedGeneration,
		})
	}

	slices.SortFunc(all, func(a, b *pb.Condition) int { return cmp.Compare(a.GetType(), b.GetType()) })

	return all
}

func shardOf(s query.Shard) *pb.Shard {
	return &pb.Shard{
		Name:            s.Name,
		Namespace:       s.Namespace,
		Holder:          s.Holder,
		State:           states[s.State],
		Available:       s.Available,
		Problem:         s.Problem,
		LeaseDuration:   durationpb.New(s.Duration),
		Partitions:      int32(s.Partitions),
		Share:           s.Share(),
		RenewalAge:      durationpb.New(s.Age.Time),
		AgeIsLowerBound: s.Age.AtLeast,
	}
}

func locationOf(l query.Location) *pb.Location {
	return &pb.Location{
		Ring:              l.Ring,
		Role:              roles[l.Role],
		NamespaceCoverage: coverages[l.Namespace],
		PartitionKey: &pb.PartitionKey{
			Group: l.Key.Group, Kind: l.Key.Kind, Namespace: l.Key.Namespace, Name: l.Key.Name,
		},
		Hash:        uint32(l.Hash),
		Partition:   int32(l.Partition),
		Shard:       l.Shard,
		NextShards:  l.Next,
		Fingerprint: l.Fingerprint,
	}
}
