package rings

import (
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Key is a partition key, and how it was derived.
type Key struct {
	key.Key

	// Rule is the rule of the object's resource, or of its owner's.
	Rule key.Rule
	// In is the namespace of that object; empty for a cluster-scoped one.
	In string
	// Missing is true if that object lacks what the rule asks for. The key is then that of its name.
	Missing bool
}

// KeyOf returns the key of a main object.
func KeyOf(of resources.Resource, obj metav1.Object) Key {
	k, found := of.Key.Of(of.Kind.GroupKind(), obj)

	return Key{Key: k, Rule: of.Key, In: obj.GetNamespace(), Missing: !found}
}

// Type returns the type of the key.
func (k Key) Type() pb.KeyType {
	switch {
	case k.Rule.Namespace && !k.Missing:
		return pb.KeyType_KEY_TYPE_NAMESPACE
	case k.Rule.Label != "" && !k.Missing:
		return pb.KeyType_KEY_TYPE_LABEL
	default:
		return pb.KeyType_KEY_TYPE_NAME
	}
}

// Message returns the key as in the API.
func (k Key) Message() *pb.PartitionKey {
	return &pb.PartitionKey{Group: k.Group, Kind: k.Kind, Namespace: k.Namespace, Name: k.Name, Type: k.Type()}
}

// Locate returns the shard of a partition key, how it was derived, and the n shards that would be next. The role and
// the coverage (never NotCovered) are those of the object.
func (r Ring) Locate(role resources.Role, coverage Coverage, k Key, n int) *pb.Location {
	table, hash := r.View.TableIn(k.In), k.Hash()
	partition := table.Partition(hash)
	location := &pb.Location{
		Ring:              r.Name,
		Role:              roles[role],
		NamespaceCoverage: coverage,
		PartitionKey:      k.Message(),
		KeyMissing:        k.Missing,
		Hash:              uint32(hash),
		Partition:         int32(partition),
		Fingerprint:       r.View.Fingerprint(),
	}

	if ranking := table.Ranking(partition, n+1); len(ranking) > 0 {
		location.Shard, location.NextShards = ranking[0], ranking[1:]
	}

	return location
}

// Short names of the states of an object in a ring. The API documents them. An object whose state is None is neither
// covered nor labelled.
const (
	None       = pb.AssignmentState_ASSIGNMENT_STATE_UNSPECIFIED
	Assigned   = pb.AssignmentState_ASSIGNMENT_STATE_ASSIGNED
	Misplaced  = pb.AssignmentState_ASSIGNMENT_STATE_MISPLACED
	Draining   = pb.AssignmentState_ASSIGNMENT_STATE_DRAINING
	DeadShard  = pb.AssignmentState_ASSIGNMENT_STATE_DEAD_SHARD
	Unassigned = pb.AssignmentState_ASSIGNMENT_STATE_UNASSIGNED
	Foreign    = pb.AssignmentState_ASSIGNMENT_STATE_FOREIGN
)

// StateOf returns the state of an object in the ring. Package plan defines the terms. For a controlled object, it
// considers only the desired shard of the object, not the owner.
func StateOf(r plan.Ring, o plan.Object) pb.AssignmentState {
	switch {
	case !o.Labels():
		return None
	case !o.Belongs:
		return Foreign
	case o.Shard == "":
		return Unassigned
	case !r.Works(o.Shard):
		return DeadShard
	case o.Draining:
		return Draining
	case o.Shard != o.Desired:
		return Misplaced
	default:
		return Assigned
	}
}

// Object returns the facts about an object in the ring, except those about its owner. covered is true if the object is
// part of the ring, as kin shows, and the ring shards objects of its resource in its namespace.
func (r Ring) Object(of resources.Subject, kin resources.Kin, covered bool) plan.Object {
	o := Labels(r.Keys, of.Object.GetLabels())
	o.Controlled = of.Role == resources.Controlled

	o.Belongs = covered && r.Active() && Selects(of, kin, o.Labelled)
	if o.Belongs {
		o.Desired, _ = r.View.Place(kin.In(of.Object.GetNamespace()), kin.Key, o.Shard)
	}

	return o
}

// Selects reports whether the ring selects the object, or the main object that it follows, by its labels. If that
// object does not exist, it returns true for an object with a shard.
func Selects(of resources.Subject, kin resources.Kin, labelled bool) bool {
	return (of.Role != resources.Main || of.Resource.Selects(of.Object.GetLabels())) && !kin.Unselected &&
		(!kin.Orphaned || labelled)
}

// Assignment returns where an object is, given the facts in o, and what it follows.
func (r Ring) Assignment(o plan.Object, obj metav1.Object, kin resources.Kin) *pb.Assignment {
	a := &pb.Assignment{
		Namespace: obj.GetNamespace(), Name: obj.GetName(), Shard: o.Shard, DesiredShard: o.Desired,
		State: StateOf(r.View.In(kin.In(obj.GetNamespace())), o),
	}

	if writers := Writers(r.Keys.Drain, obj); len(writers) > 0 {
		a.DrainTime = timestamppb.New(writers[0].Time.Time)
	}

	if kin.Owner != nil {
		a.Owner = kin.Owner.Resource.Kind.Kind + "/" + kin.Owner.Name
	}

	return a
}

// Labels returns Shard, Labelled, and Draining of a [plan.Object], from the labels of an object in the ring with these
// keys. The caller sets the other fields. With the zero value of the keys, the object has no label of the ring.
func Labels(ring contract.LabelKeys, labels map[string]string) plan.Object {
	shard, labelled := labels[ring.Shard]
	_, draining := labels[ring.Drain]

	return plan.Object{Shard: shard, Labelled: labelled, Draining: draining}
}

// Writers returns the managers of a label of the object, in the order of their last writes to the object. None: the
// object does not have the label, or its managed fields do not contain it.
func Writers(label string, obj metav1.Object) (all []metav1.ManagedFieldsEntry) {
	if _, labelled := obj.GetLabels()[label]; !labelled {
		return nil
	}

	for _, entry := range obj.GetManagedFields() {
		if !entry.Time.IsZero() && manages(entry.FieldsV1, label) {
			all = append(all, entry)
		}
	}

	slices.SortStableFunc(all, func(a, b metav1.ManagedFieldsEntry) int { return a.Time.Compare(b.Time.Time) })

	return all
}

// manages reports whether the set of fields contains the label.
func manages(fields *metav1.FieldsV1, label string) bool {
	set := &fieldpath.Set{}

	return fields != nil && set.FromJSON(fields.GetRawReader()) == nil &&
		set.Has(fieldpath.MakePathOrDie("metadata", "labels", label))
}
