// Package rings provides the facts for answers: the ClusterRings, their available shards, the states of their Leases, their resources, the
// owners of keys, and where objects are.
//
// It reads ClusterRings and Leases from a cache, and the metadata of objects from the API server. Shards, partition keys, and owners come
// from the packages that the assigner and the rebalancer use, so that answers match their decisions. It writes nothing.
package rings

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Rings provides the current state of all rings. All fields are required. It is safe for concurrent use.
type Rings struct {
	// Reader reads ClusterRings and Leases from a cache.
	Reader client.Reader
	// Index contains the current view of every ring.
	Index *membership.Index
	// Resources resolves the resources of rings.
	Resources *Resources
	// Leases contains the states and ages of Leases.
	Leases *Leases
	// Objects reads the metadata of sharded objects from the API server.
	Objects *Objects
}

// Ring is the current state of a ring. Its fields are shared: do not change the values to which they point.
type Ring struct {
	*v1alpha1.ClusterRing

	// Keys are the keys of its labels; the zero value if Holder is set: the labels are those of the other ring.
	Keys contract.LabelKeys
	// Holder is the older ring with the same label, so that no service acts for this one. Empty: there is none.
	Holder string
	// View contains its shards.
	View *membership.View
	// Resources are its resources.
	Resources *resources.Set
}

// Get returns a ring by its name. It fails with [ErrRingNotFound].
func (r *Rings) Get(ctx context.Context, name string) (Ring, error) {
	declared := &v1alpha1.ClusterRing{}

	err := r.Reader.Get(ctx, types.NamespacedName{Name: name}, declared, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return Ring{}, fmt.Errorf("%w: %s", ErrRingNotFound, name)
	}

	if err != nil {
		return Ring{}, fmt.Errorf("read ring %s: %w", name, err)
	}

	holder, err := clusterring.FindOlder(ctx, r.Reader, declared)
	if err != nil {
		return Ring{}, err
	}

	return r.ring(declared, holder), nil
}

// All returns all rings, sorted by name.
func (r *Rings) All(ctx context.Context) ([]Ring, error) {
	list := &v1alpha1.ClusterRingList{}
	if err := r.Reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list rings: %w", err)
	}

	all := make([]Ring, 0, len(list.Items))
	for i := range list.Items {
		all = append(all, r.ring(&list.Items[i], clusterring.Older(&list.Items[i], list.Items)))
	}

	slices.SortFunc(all, func(a, b Ring) int { return cmp.Compare(a.Name, b.Name) })

	return all, nil
}

// ring returns the state of a ring whose label the holder uses, if that is not empty. The ClusterRing belongs to the cache.
func (r *Rings) ring(declared *v1alpha1.ClusterRing, holder string) Ring {
	ring := Ring{ClusterRing: declared, Holder: holder, View: r.Index.ViewOf(declared), Resources: r.Resources.Of(declared)}
	if holder == "" {
		ring.Keys = declared.LabelKeys()
	}

	return ring
}

// CheckActive returns an error that wraps [ErrNotAdded] if the ring assigns nothing, because it is being deleted or because another ring uses
// its label.
func (r Ring) CheckActive() error {
	switch {
	case !r.DeletionTimestamp.IsZero():
		return fmt.Errorf("%w: ring %s is being deleted and assigns nothing", ErrNotAdded, r.Name)
	case r.Holder != "":
		return fmt.Errorf("%w: ring %s assigns nothing: %s", ErrNotAdded, r.Name, clusterring.LabelInUse(r.ClusterRing, r.Holder))
	}

	return nil
}

// Active reports whether [Ring.CheckActive] returns no error.
func (r Ring) Active() bool { return r.DeletionTimestamp.IsZero() && r.Holder == "" }

// Shards returns the shards of the ring, sorted by name, then namespace.
func (r *Rings) Shards(ring Ring) []*pb.Shard {
	members := ring.View.Shards()
	shards := make([]*pb.Shard, 0, len(members))

	for _, m := range members {
		state, age := r.Leases.Of(types.NamespacedName{Namespace: m.Namespace, Name: m.Name})
		shards = append(shards, ring.Shard(m, state, age))
	}

	return shards
}

// Confirm looks at the Leases of that name among the shards of [Rings.Shards] that seem to be overdue. After an outage of the API server, and after
// this process stood still, its watch can be behind for a minute. It takes the present state from the label of the lease monitor. If the Lease has
// changed, and that state is no worse than ready, its age is not known, and becomes at least zero. This costs a request for each such Lease. If the
// API server does not answer, the shards stay as they are.
func (r *Rings) Confirm(ctx context.Context, shards []*pb.Shard, name string) {
	for _, s := range shards {
		if s.GetName() != name || s.GetHolder() != name || s.GetRenewalAge().AsDuration() <= s.GetLeaseDuration().AsDuration() {
			continue
		}

		id := types.NamespacedName{Namespace: s.GetNamespace(), Name: name}

		is, err := r.Objects.Get(ctx, coordinationv1.SchemeGroupVersion.WithResource("leases"), id)
		if err != nil || r.Leases.shows(id, is.ResourceVersion) {
			continue
		}

		state := lease.State(is.Labels[contract.LabelState])
		s.State = states[state]

		if state == lease.Ready || state == "" {
			s.RenewalAge, s.AgeIsLowerBound = durationpb.New(0), true
		}
	}
}

// Shard returns a shard of the ring as in the API. The state is the label that the lease monitor last wrote. Empty: there is none. The age
// is how long ago the Lease was renewed.
func (r Ring) Shard(m membership.Shard, state lease.State, age Age) *pb.Shard {
	partitions := 0
	if m.Available {
		partitions = r.View.Table().PartitionsOf(m.Name)
	}

	return &pb.Shard{
		Name:            m.Name,
		Namespace:       m.Namespace,
		Holder:          m.Holder,
		State:           states[state],
		Available:       m.Available,
		Problem:         m.Problem,
		LeaseDuration:   durationpb.New(m.Duration),
		Partitions:      int32(partitions),
		Share:           float64(partitions) / hashring.Partitions,
		RenewalAge:      durationpb.New(age.Time),
		AgeIsLowerBound: age.AtLeast,
		Stopping:        m.Stopping,
		Standby:         m.Standby,
	}
}

// These maps convert values to enums of the API. Other values become the zero value.
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
)

// RoleOf returns the role of a resource as in the API. Unspecified: it has none.
func RoleOf(role resources.Role) pb.Role { return roles[role] }

// Message returns the ring as in the API.
func (r Ring) Message() *pb.Ring {
	ring := &pb.Ring{
		Name:              r.Name,
		NamespaceSelector: r.Selector(),
		ObjectSelector:    r.Resources.Selector(),
		Shards:            int32(len(r.View.Shards())),
		AvailableShards:   int32(len(r.View.AvailableShards())),
		Fingerprint:       r.View.Fingerprint(),
		CreateTime:        timestamppb.New(r.CreationTimestamp.Time),
		Deleting:          !r.DeletionTimestamp.IsZero(),
	}

	for _, main := range r.Spec.Resources {
		rule := key.RuleOf(main.Key)
		res := r.resource(main.Group, main.Resource, resources.Main)
		res.KeyType, res.KeyLabel = Key{Rule: rule}.Type(), rule.Label

		ring.Resources = append(ring.Resources, res)
		for _, c := range main.ControlledResources {
			ring.Resources = append(ring.Resources, r.resource(c.Group, c.Resource, resources.Controlled))
		}
	}

	for _, c := range r.Status.Conditions {
		ring.Conditions = append(ring.Conditions, &pb.Condition{
			Type:               c.Type,
			Status:             string(c.Status),
			Reason:             c.Reason,
			Message:            c.Message,
			LastTransitionTime: timestamppb.New(c.LastTransitionTime.Time),
			ObservedGeneration: c.ObservedGeneration,
		})
	}

	slices.SortFunc(ring.GetConditions(), func(a, b *pb.Condition) int { return cmp.Compare(a.GetType(), b.GetType()) })

	return ring
}

func (r Ring) resource(group, name string, role resources.Role) *pb.RingResource {
	found, _, _ := r.Resources.Find(schema.GroupResource{Group: group, Resource: name})

	return &pb.RingResource{Group: group, Resource: name, Role: roles[role], Kind: found.Kind.Kind}
}
