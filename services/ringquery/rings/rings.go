// Package rings provides the facts for answers: the ClusterRings, their available shards, the states of their Leases,
// their resources, the owners of keys, and where objects are.
//
// It reads ClusterRings and Leases from a cache, and the metadata of objects from the API server. Shards, partition
// keys, and owners come from the packages that the assigner and the rebalancer use, so that answers match their
// decisions. It writes nothing.
package rings

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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
	// Known resolves the resources of rings.
	Known *resources.Resolver
	// Leases contains the ages of Leases.
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
	declared, err := r.declared(ctx)
	if err != nil {
		return Ring{}, err
	}

	i := slices.IndexFunc(declared, func(c v1alpha1.ClusterRing) bool { return c.Name == name })
	if i < 0 {
		return Ring{}, fmt.Errorf("%w: %s", ErrRingNotFound, name)
	}

	return r.ring(&declared[i], declared), nil
}

// Select returns the ring of the name, or all rings, sorted by name, if it is empty. It fails with [ErrRingNotFound].
func (r *Rings) Select(ctx context.Context, name string) ([]Ring, error) {
	if name != "" {
		ring, err := r.Get(ctx, name)
		return []Ring{ring}, err
	}

	declared, err := r.declared(ctx)

	all := make([]Ring, 0, len(declared))
	for i := range declared {
		all = append(all, r.ring(&declared[i], declared))
	}

	slices.SortFunc(all, func(a, b Ring) int { return cmp.Compare(a.Name, b.Name) })

	return all, err
}

// declared returns the ClusterRings, which belong to the cache.
func (r *Rings) declared(ctx context.Context) ([]v1alpha1.ClusterRing, error) {
	list := &v1alpha1.ClusterRingList{}
	if err := r.Reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list rings: %w", err)
	}

	return list.Items, nil
}

// ring returns the state of one of the rings.
func (r *Rings) ring(declared *v1alpha1.ClusterRing, all []v1alpha1.ClusterRing) Ring {
	ring := Ring{
		ClusterRing: declared, Holder: clusterring.Older(declared, all), View: r.Index.ViewOf(declared),
		Resources: r.Known.Resolve(declared.Spec),
	}
	if ring.Holder == "" {
		ring.Keys = declared.LabelKeys()
	}

	return ring
}

// CheckActive returns an error that wraps [ErrNotAdded] if the ring assigns nothing, because it is being deleted or
// because another ring uses its label.
func (r Ring) CheckActive() error {
	switch {
	case !r.DeletionTimestamp.IsZero():
		return fmt.Errorf("%w: ring %s is being deleted and assigns nothing", ErrNotAdded, r.Name)
	case r.Holder != "":
		return fmt.Errorf("%w: ring %s assigns nothing: %s", ErrNotAdded, r.Name,
			clusterring.LabelInUse(r.ClusterRing, r.Holder))
	}

	return nil
}

// Active reports whether [Ring.CheckActive] returns no error.
func (r Ring) Active() bool { return r.DeletionTimestamp.IsZero() && r.Holder == "" }

// Shards returns the shards of the ring, sorted by name, then namespace.
func (r *Rings) Shards(ctx context.Context, ring Ring) []*pb.Shard {
	members := ring.View.Shards()
	shards := make([]*pb.Shard, 0, len(members))

	for _, m := range members {
		id := types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
		l, _ := r.lease(ctx, id)
		age, atLeast := r.Leases.Of(id)
		shards = append(shards, ring.Shard(m, stateOf(l), age, atLeast))
	}

	return shards
}

// lease returns a Lease from the cache. ok is false if it is gone; the Lease is then empty.
func (r *Rings) lease(ctx context.Context, id types.NamespacedName) (l *coordinationv1.Lease, ok bool) {
	l = &coordinationv1.Lease{}
	err := r.Reader.Get(ctx, id, l, client.UnsafeDisableDeepCopy)

	return l, err == nil
}

// Confirm looks at the Leases of that name among the shards of [Rings.Shards] that seem to be overdue. After an outage
// of the API server, and after this process stood still, its watch can be behind for a minute. It takes the present
// state from the label of the lease monitor. If the Lease has changed, and that state is no worse than ready, its age
// is not known, and becomes at least zero. This costs a request for each such Lease. If the API server does not answer,
// the shards stay as they are.
func (r *Rings) Confirm(ctx context.Context, shards []*pb.Shard, name string) {
	for _, s := range shards {
		if s.GetName() != name || s.GetHolder() != name ||
			s.GetRenewalAge().AsDuration() <= s.GetLeaseDuration().AsDuration() {
			continue
		}

		id := types.NamespacedName{Namespace: s.GetNamespace(), Name: name}

		is, err := r.Objects.Get(ctx, coordinationv1.SchemeGroupVersion.WithResource("leases"), id)
		if seen, ok := r.lease(ctx, id); err != nil || ok && seen.ResourceVersion == is.ResourceVersion {
			continue
		}

		state := stateOf(is)
		s.State = states[state]

		if state == lease.Ready || state == "" {
			s.RenewalAge, s.AgeIsLowerBound = durationpb.New(0), true
		}
	}
}

// Shard returns a shard of the ring as in the API. The state is the label that the lease monitor last wrote. Empty:
// there is none. The age is that of the Lease, as [Leases.Of] returns it.
func (r Ring) Shard(m membership.Shard, state lease.State, age time.Duration, atLeast bool) *pb.Shard {
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
		RenewalAge:      durationpb.New(age),
		AgeIsLowerBound: atLeast,
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

// Reference names an object by its kind or by its resource. The other field is empty.
type Reference struct {
	Group, Kind, Resource, Namespace, Name string
}

// TypeName returns the resource or the kind with its group, such as "deployments.apps".
func (r Reference) TypeName() string {
	if r.Kind != "" {
		return r.groupKind().String()
	}

	return r.groupResource().String()
}

func (r Reference) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}
}

func (r Reference) groupKind() schema.GroupKind {
	return schema.GroupKind{Group: r.Group, Kind: r.Kind}
}

// CheckNamespace returns an error unless the reference has a namespace exactly if the resource is namespaced.
func (r Reference) CheckNamespace(resource resources.Resource) error {
	switch {
	case resource.Namespaced && r.Namespace == "":
		return Invalid("object.namespace", "must be set: "+resource.GroupResource().String()+" have a namespace")
	case !resource.Namespaced && r.Namespace != "":
		return Invalid("object.namespace", "must be empty: "+resource.GroupResource().String()+" are cluster-scoped")
	default:
		return nil
	}
}

// Find returns the resource of the ring to which the reference belongs. It fails with [ErrNotAdded].
func (r Ring) Find(ref Reference) (resources.Resource, resources.Role, error) {
	if resource, role, ok := Lookup(r.Resources, ref); ok {
		return resource, role, nil
	}

	for _, m := range r.Resources.Missing() {
		if ref.Kind == "" && m.GroupResource == ref.groupResource() {
			return resources.Resource{}, "", fmt.Errorf("%w: ring %s lists %s, but the API server does not serve it (yet)",
				ErrNotAdded, r.Name, ref.TypeName())
		}
	}

	return resources.Resource{}, "", fmt.Errorf("%w: ring %s does not list %s; it lists %s", ErrNotAdded, r.Name,
		ref.TypeName(), r.Listed())
}

// Lookup returns the resource of the set to which the reference belongs.
func Lookup(set *resources.Set, ref Reference) (resources.Resource, resources.Role, bool) {
	if ref.Kind == "" {
		return set.Find(ref.groupResource())
	}

	for _, resource := range slices.Concat(set.Main(), set.Controlled()) {
		if resource.Kind.GroupKind() == ref.groupKind() {
			return set.Find(resource.GroupResource())
		}
	}

	return resources.Resource{}, "", false
}

// Listed names the resources of the ring.
func (r Ring) Listed() string {
	var names []string
	for _, main := range r.Spec.Resources {
		names = append(names, schema.GroupResource{Group: main.Group, Resource: main.Resource}.String())
		for _, c := range main.ControlledResources {
			names = append(names, schema.GroupResource{Group: c.Group, Resource: c.Resource}.String()+" (controlled)")
		}
	}

	return strings.Join(names, ", ")
}

// Coverage reports whether a ring shards objects in a namespace.
type Coverage = pb.NamespaceCoverage

// Short names of the values. The API documents them, but for NotCovered: it never has to name a ring that does not
// shard the objects.
const (
	NotCovered = pb.NamespaceCoverage_NAMESPACE_COVERAGE_UNSPECIFIED
	Covered    = pb.NamespaceCoverage_NAMESPACE_COVERAGE_COVERED
	// it depends on labels of the namespace that have not been read, or the selector is not valid
	Unknown = pb.NamespaceCoverage_NAMESPACE_COVERAGE_UNKNOWN
)

// Covers reports whether the ring covers the namespace (empty: cluster-scoped objects) with these labels. If they are
// nil, it reports what follows from the name of the namespace: the API server adds the name to every namespace as a
// label.
func (r Ring) Covers(namespace string, has map[string]string) Coverage {
	if namespace == "" {
		return Covered
	}

	selector, err := r.namespaces()
	if err != nil {
		return Unknown
	}

	unread := has == nil
	if unread {
		has = map[string]string{corev1.LabelMetadataName: namespace}
	}

	coverage := Covered
	requirements, _ := selector.Requirements()

	for _, requirement := range requirements {
		switch {
		case unread && requirement.Key() != corev1.LabelMetadataName:
			coverage = Unknown
		case !requirement.Matches(labels.Set(has)):
			return NotCovered
		}
	}

	return coverage
}

// CheckSelector returns an error that wraps [ErrNotAdded] if a selector of the ring is not valid.
func (r Ring) CheckSelector() error {
	_, err := r.namespaces()
	_, other := r.Spec.ObjectRequirements()

	if err := errors.Join(err, other); err != nil {
		return fmt.Errorf("%w: a selector of ring %s cannot be used: %w", ErrNotAdded, r.Name, err)
	}

	return nil
}

// Selector returns the selector of the namespaces that the ring covers, in the form of kubectl's --selector. Empty: all
// namespaces. If the selector is not valid, it returns the error.
func (r Ring) Selector() string {
	selector, err := r.namespaces()
	if err != nil {
		return "invalid: " + err.Error()
	}

	return selector.String()
}

func (r Ring) namespaces() (labels.Selector, error) {
	return metav1.LabelSelectorAsSelector(r.Spec.EffectiveNamespaceSelector()) //nolint:wrapcheck // it says what is wrong
}

// Resource returns the resource of the reference, whether or not a ring lists it. It sends no requests. It fails with
// [ErrNotServed], or with [ErrUnavailable] if it is not known whether the resource is served.
func (r *Rings) Resource(ref Reference) (found resources.Resource, err error) {
	if ref.Kind != "" {
		found, err = r.Known.OfKind(ref.groupKind())
	} else {
		found, err = r.Known.Find(ref.groupResource())
	}

	if absent, ok := errors.AsType[*resources.NotServedError](err); ok {
		return found, fmt.Errorf("%w: %w", ErrNotServed, absent)
	} else if err != nil {
		return found, fmt.Errorf("%w: find %s: %w", ErrUnavailable, ref.TypeName(), err)
	}

	return found, nil
}

// Remembered returns the resources that the ring lists and those that its status still contains.
func (r *Rings) Remembered(ring Ring) *resources.Set {
	st := ring.Status.Assignment
	if st == nil || len(st.Resources) == 0 {
		return ring.Resources
	}

	all := slices.Clone(ring.Spec.Resources)
	for _, a := range st.Resources {
		all = append(all, v1alpha1.RingResource{
			Group: a.Group, Resource: a.Resource, ControlledResources: a.ControlledResources, Key: a.Key,
		})
	}

	return r.Known.Resolve(v1alpha1.ClusterRingSpec{Resources: all})
}
