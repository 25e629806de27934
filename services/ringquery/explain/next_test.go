package explain

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// verbs maps the verbs of the plan to the possible next steps.
var verbs = map[plan.Verb][]pb.NextStep{
	plan.None:                 {Nothing, TakeOver, FollowOwner},
	plan.Assign:               {Assign, TakeOver},
	plan.Drain:                {Drain},
	plan.Withdraw:             {Withdraw},
	plan.Release:              {Release},
	plan.AwaitAcknowledgement: {Acknowledge, FollowOwner},
	plan.AwaitShard:           {AwaitShard},
}

// TestNextIsWhatTheRebalancerDoes compares the next step with the plan for every state of labels, shards, ring, and owner.
func TestNextIsWhatTheRebalancerDoes(t *testing.T) {
	shards := []string{"", "shard-a", "shard-b", "shard-dead", "shard-gone"}
	leases := []holding{alive("shard-a"), alive("shard-b"), released("shard-dead")}
	seen := map[plan.Verb]bool{}

	for _, available := range []bool{true, false} {
		for _, covered := range []bool{true, false} {
			for _, shard := range shards {
				for _, drain := range []bool{false, true} {
					for _, ownerAt := range append(shards, "absent", "none") {
						for _, ownerDrains := range []bool{false, true} {
							r := ringOf("example", leases...)

							name := r.named("shard-b")
							if !available {
								r.has(released("shard-a"), released("shard-b"))
							}

							if !covered {
								r.Coverage = rings.NotCovered
							}

							marks := at(shard)
							if drain {
								marks = drained(marks)
							}

							o := anObject(website, name, marks)

							in := plan.Object{Shard: shard, Labelled: shard != "", Draining: drain, Belongs: covered}
							if covered && available {
								in.Desired = "shard-b"
							}

							if ownerAt != "none" {
								o = anObject(configMap, "settings", marks)
								o.controlledBy(website, name)

								r.Role, r.Owner, in.Controlled = resources.Controlled, Owner{Found: Missing}, true
								if ownerAt != "absent" {
									r.Owner = Owner{Found: Read, Meta: metaOf(name, at(ownerAt))}

									in.Owner = plan.Owner{Exists: true, Shard: ownerAt, Draining: ownerDrains, Belongs: covered}
									if ownerDrains {
										r.Owner.Meta.Labels = drained(at(ownerAt))
									}
								}
							}

							want := plan.Decide(r.View, in)
							seen[want.Verb] = true
							e := Explain(about(r, o))
							got := e.GetRings()[0]
							require.Contains(t, verbs[want.Verb], got.GetNext(), "%+v", in)
							require.Equal(t, want.Verb == plan.Assign && want.TakenFrom != "", got.GetNext() == TakeOver, "%+v", in)
							require.NotEmpty(t, e.GetFindings())

							if covered && shard != "shard-a" && shard != "shard-b" {
								require.Equal(t, Error, e.GetFindings()[0].GetSeverity(), "nobody works on it: %+v", in)
							}

							if want.Verb == plan.Assign && covered {
								require.Contains(t, text(e), want.To, "%+v", in)
							}
						}
					}
				}
			}
		}
	}

	require.Len(t, seen, len(verbs), "every verb was met")
}

// TestExplanationsHaveNoUnknownEnums verifies that every step of the API occurs, and that no step has two names.
func TestExplanationsHaveNoUnknownEnums(t *testing.T) {
	happens := map[pb.NextStep]bool{}

	for _, steps := range verbs {
		for _, step := range steps {
			happens[step] = true
		}
	}

	require.Len(t, happens, len(pb.NextStep_name)-1, "all but unspecified")
	require.NotContains(t, happens, pb.NextStep_NEXT_STEP_UNSPECIFIED)
	require.Len(t, map[pb.Severity]bool{Info: true, Warning: true, Error: true}, len(pb.Severity_name)-1)
}
