package explain

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// verbs has what a verb of the plan may be called.
var verbs = map[plan.Verb][]Step{
	plan.None:                 {Nothing, TakeOver, FollowOwner},
	plan.Assign:               {Assign, TakeOver},
	plan.Drain:                {Drain},
	plan.Withdraw:             {Withdraw},
	plan.Release:              {Release},
	plan.AwaitAcknowledgement: {Acknowledge, FollowOwner},
	plan.AwaitShard:           {AwaitShard},
}

// TestNextIsWhatTheRebalancerDoes goes through every state of labels, shards, ring and owner, and compares with the plan.
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
								r.Coverage = NotSelected
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
							got := e.Rings[0]
							require.Contains(t, verbs[want.Verb], got.Next, "%+v", in)
							require.Equal(t, want.Verb == plan.Assign && want.TakenFrom != "", got.Next == TakeOver, "%+v", in)
							require.NotEmpty(t, e.Findings)

							if covered && shard != "shard-a" && shard != "shard-b" {
								require.Equal(t, Error, e.Findings[0].Severity, "nobody works on it: %+v", in)
							}
							if want.Verb == plan.Assign && covered {
								require.Contains(t, e.text(), want.To, "%+v", in)
							}
						}
					}
				}
			}
		}
	}

	require.Len(t, seen, len(verbs), "every verb was met")
}
