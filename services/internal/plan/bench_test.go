package plan_test

import (
	"fmt"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/plan"
)

// view returns the view of a ring of n shards.
func view(n int) *membership.View {
	leases := make([]*coordinationv1.Lease, n)
	for i := range leases {
		name := fmt.Sprintf("shard-%d", i)
		leases[i] = &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default",
				Labels: map[string]string{contract.LabelClusterRing: "ring"}},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &name},
		}
	}

	return membership.NewView("ring", leases, nil)
}

// BenchmarkDecide plans for one object: which shard it belongs to, from its name, and what to do.
func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{3, 500} {
		v := view(n)
		k := key.Key{Group: "example.org", Kind: "Website", Namespace: "default", Name: "blog"}
		home, _ := v.Owner(k)

		away := "shard-0"
		if home == away {
			away = "shard-1"
		}

		for _, c := range []struct {
			what string
			verb plan.Verb
			o    plan.Object
		}{
			{"in-place", plan.None, plan.Object{Shard: home, Labelled: true}},
			{"new", plan.Assign, plan.Object{}},
			{"elsewhere", plan.Drain, plan.Object{Shard: away, Labelled: true}},
			{"lost", plan.Assign, plan.Object{Shard: "gone", Labelled: true}},
			{"controlled", plan.Assign, plan.Object{Controlled: true,
				Owner: plan.Owner{Exists: true, Belongs: true, Shard: home}}},
		} {
			b.Run(fmt.Sprintf("%s/shards=%d", c.what, n), func(b *testing.B) {
				b.ReportAllocs()

				for b.Loop() {
					o := c.o
					o.Belongs = true

					o.Desired, _ = v.Owner(k)
					if a := plan.Decide(v, o); a.Verb != c.verb {
						b.Fatalf("the plan is to %s", a.Verb)
					}
				}
			})
		}
	}
}
