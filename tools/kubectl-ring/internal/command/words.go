package command

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/duration"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
)

// word returns the value of an enum as a person says it: SHARD_STATE_READY is ready. A value that this program does not know is
// its number. The first value, which stands for not known, is nothing.
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

// coverage says whether a ring shards the objects of a namespace.
func coverage(c pb.NamespaceCoverage) render.Cell {
	switch c {
	case pb.NamespaceCoverage_NAMESPACE_COVERAGE_COVERED:
		return render.Good.In("yes")
	case pb.NamespaceCoverage_NAMESPACE_COVERAGE_UNKNOWN:
		return render.Warn.In("unknown")
	default:
		return render.Cell{Text: word(c, "NAMESPACE_COVERAGE")}
	}
}

func nextWord(next pb.NextStep) string { return word(next, "NEXT_STEP") }

func shardState(state pb.ShardState) render.Cell {
	cell := render.Cell{Text: word(state, "SHARD_STATE")}
	switch state {
	case pb.ShardState_SHARD_STATE_READY:
		cell.Style = render.Good
	case pb.ShardState_SHARD_STATE_EXPIRED, pb.ShardState_SHARD_STATE_UNCERTAIN:
		cell.Style = render.Warn
	case pb.ShardState_SHARD_STATE_DEAD, pb.ShardState_SHARD_STATE_ORPHANED:
		cell.Style = render.Bad
	default:
	}
	return cell
}

func assignmentState(state pb.AssignmentState) render.Cell {
	cell := render.Cell{Text: word(state, "ASSIGNMENT_STATE")}
	switch state {
	case pb.AssignmentState_ASSIGNMENT_STATE_ASSIGNED:
		cell.Style = render.Good
	case pb.AssignmentState_ASSIGNMENT_STATE_MISPLACED, pb.AssignmentState_ASSIGNMENT_STATE_DRAINING:
		cell.Style = render.Warn
	case pb.AssignmentState_ASSIGNMENT_STATE_DEAD_SHARD, pb.AssignmentState_ASSIGNMENT_STATE_UNASSIGNED,
		pb.AssignmentState_ASSIGNMENT_STATE_FOREIGN:
		cell.Style = render.Bad
	default:
	}
	return cell
}

func yes(b bool) render.Cell {
	if b {
		return render.Good.In("yes")
	}
	return render.Bad.In("no")
}

// qualified writes a resource with its group, as kubectl does.
func qualified(group, resource string) string {
	if group == "" {
		return resource
	}
	return resource + "." + group
}

func namespaced(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// resources writes what a ring shards, each main resource with those that it controls.
func resources(ring *pb.Ring) string {
	var b strings.Builder
	for i, r := range ring.GetResources() {
		name := qualified(r.GetGroup(), r.GetResource())
		switch {
		case i == 0:
		case r.GetRole() == pb.Role_ROLE_CONTROLLED:
			b.WriteString(" > ")
		default:
			b.WriteString(", ")
		}
		b.WriteString(name)
	}
	return b.String()
}

// age says how long ago a time was.
func (a *app) age(since *timestamppb.Timestamp) string {
	if !since.IsValid() {
		return ""
	}
	return duration.HumanDuration(max(a.Clock.Since(since.AsTime()), 0))
}

// renewed says how long ago a Lease was renewed.
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

// condition finds a condition of a ring. Nil: it has none of that type.
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
