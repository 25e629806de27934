package command

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
)

// word formats the value of an enum for people: SHARD_STATE_READY is "ready". An unknown value is formatted as its number. The
// unspecified value is empty.
func word(value interface{ String() string }, prefix string) string {
	name, ok := strings.CutPrefix(value.String(), prefix+"_")
	if !ok {
		return "value " + value.String()
	}

	if name == "UNSPECIFIED" {
		return ""
	}

	return strings.ToLower(strings.ReplaceAll(name, "_", " "))
}

func roleWord(role pb.Role) string { return word(role, "ROLE") }

// coverage formats whether a ring shards the objects of a namespace.
func coverage(c pb.NamespaceCoverage) render.Cell {
	if c == pb.NamespaceCoverage_NAMESPACE_COVERAGE_COVERED {
		return yes(true)
	}

	return styled(word(c, "NAMESPACE_COVERAGE"))
}

func nextWord(next pb.NextStep) string { return word(next, "NEXT_STEP") }

// shardState returns the state of a shard's Lease; "stopping" if the Lease says that the shard stops, "standby" if enough others are active, and "released"
// if the shard has stopped by itself, which is no reason to worry.
func shardState(shard *pb.Shard) render.Cell {
	if shard.GetStandby() && shard.GetState() == pb.ShardState_SHARD_STATE_READY {
		return styled("standby")
	}

	if shard.GetStopping() && shard.GetState() == pb.ShardState_SHARD_STATE_READY {
		return styled("stopping")
	}

	if s := shard.GetState(); shard.GetHolder() == "" && (s == pb.ShardState_SHARD_STATE_DEAD || s == pb.ShardState_SHARD_STATE_ORPHANED) {
		return styled("released")
	}

	return styled(word(shard.GetState(), "SHARD_STATE"))
}

func assignmentState(state pb.AssignmentState) render.Cell {
	return styled(word(state, "ASSIGNMENT_STATE"))
}

// styles are those of words; others are plain.
var styles = map[string]render.Style{
	"ready": render.Good, "standby": render.Good, "stopping": render.Warn, "expired": render.Warn, "uncertain": render.Warn, "dead": render.Bad, "orphaned": render.Bad,
	"assigned": render.Good, "misplaced": render.Warn, "draining": render.Warn,
	"dead shard": render.Bad, "unassigned": render.Bad, "foreign": render.Bad,
	"unknown": render.Warn,
}

func styled(word string) render.Cell { return styles[word].In(word) }

// keyText formats a partition key as it is hashed, or what it stands for.
func keyText(key *pb.PartitionKey) string {
	switch key.GetType() { //nolint:exhaustive // the others are names
	case pb.KeyType_KEY_TYPE_NAMESPACE:
		return "namespace " + key.GetName()
	case pb.KeyType_KEY_TYPE_LABEL:
		return "label " + qualifiedLabel(key) + "=" + key.GetName()
	}

	return strings.Join([]string{key.GetGroup(), key.GetKind(), key.GetNamespace(), key.GetName()}, "/")
}

// qualifiedLabel returns the label of a key by a label.
func qualifiedLabel(key *pb.PartitionKey) string {
	if key.GetGroup() == "" {
		return key.GetNamespace()
	}

	return key.GetGroup() + "/" + key.GetNamespace()
}

func yes(b bool) render.Cell {
	if b {
		return render.Good.In("yes")
	}

	return render.Bad.In("no")
}

// qualified formats a resource with its group, as kubectl does.
func qualified(group, resource string) string {
	return schema.GroupResource{Group: group, Resource: resource}.String()
}

func namespaced(namespace, name string) string {
	if namespace == "" {
		return name
	}

	return namespace + "/" + name
}

// resources formats the resources of a ring, each main resource with its controlled resources.
func resources(ring *pb.Ring) string {
	var b strings.Builder

	inside := false // of the parentheses behind a main resource

	for i, r := range ring.GetResources() {
		controlled := i > 0 && r.GetRole() == pb.Role_ROLE_CONTROLLED

		switch {
		case i == 0:
		case controlled && !inside:
			b.WriteString(" (controls ")
		case inside && !controlled:
			b.WriteString("), ")
		default:
			b.WriteString(", ")
		}

		inside = controlled
		b.WriteString(qualified(r.GetGroup(), r.GetResource()))

		switch r.GetKeyType() { //nolint:exhaustive // the others are the rule
		case pb.KeyType_KEY_TYPE_NAMESPACE:
			b.WriteString(" by namespace")
		case pb.KeyType_KEY_TYPE_LABEL:
			b.WriteString(" by label " + r.GetKeyLabel())
		}
	}

	if inside {
		b.WriteString(")")
	}

	return b.String()
}

// age formats how long ago a time was.
func (a *app) age(since *timestamppb.Timestamp) string {
	if !since.IsValid() {
		return ""
	}

	return duration.HumanDuration(max(a.Clock.Since(since.AsTime()), 0))
}

// renewed formats how long ago a Lease was renewed.
func renewed(shard *pb.Shard) string {
	if shard.GetRenewalAge() == nil {
		return ""
	}

	text := human(shard.GetRenewalAge()) + " ago"
	if shard.GetAgeIsLowerBound() {
		return "at least " + text
	}

	return text
}

func human(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}

	return duration.HumanDuration(d.AsDuration().Round(time.Second))
}

// condition returns a condition of a ring. Nil: the ring has no condition of this type.
func condition(ring *pb.Ring, kind string) *pb.Condition {
	for _, c := range ring.GetConditions() {
		if c.GetType() == kind {
			return c
		}
	}

	return nil
}

func conditionCell(c *pb.Condition) render.Cell {
	switch {
	case c == nil:
		return render.Warn.In("not reported")
	case c.GetStatus() == "True":
		return render.Good.In("True")
	case c.GetStatus() == "False":
		return render.Bad.In(fmt.Sprintf("False (%s)", c.GetReason()))
	default:
		return render.Warn.In(fmt.Sprintf("%s (%s)", c.GetStatus(), c.GetReason()))
	}
}
