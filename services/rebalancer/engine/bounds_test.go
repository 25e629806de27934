package engine

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/work"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// smallTable replaces the table with one that holds only a few obligations.
func (w *world) smallTable(active, parked int) {
	l := w.e.Limits
	w.e.table = work.New(work.Limits{
		Workers: 1000, Drains: l.Total, PerShard: l.PerShard, DrainTimeout: l.DrainTimeout, Active: active, Parked: parked,
	})
}

// many creates ConfigMaps at a shard.
func (w *world) many(prefix, shard string, n int) (all []client.Object) {
	for i := range n {
		all = append(all, w.owner(fmt.Sprintf("%s-%d", prefix, i), shard))
	}

	return all
}

// More objects than fit into the table wait for a shard that may still work on them. A new object does not wait with
// them. The waiting objects cost only a few requests per second, and move when the shard is gone.
func TestObjectsThatCannotMoveHinderNobody(t *testing.T) {
	const n = 120

	for _, parked := range []int{20, 1000} {
		t.Run(fmt.Sprintf("parked %d", parked), func(t *testing.T) {
			w := newWorld(t, byHand)
			w.smallTable(20, parked)

			// held, but not available, for example because another process holds a Lease of the same name
			c := w.lease("c", true)
			waiting := w.many("waiting", "c", n)

			w.e.SetTarget(w.target)
			w.run()
			w.eventually(func() bool { return w.e.Report().Blocked >= 20 }, "objects should wait")
			w.comes(w.owner(w.namesAt(w.target, "a", "new", 1)[0], ""), "a", false)
			w.eventually(func() bool { return w.e.Report().Blocked >= min(n, parked) },
				"as many objects as there is room for should wait")
			require.Equal(t, []string{"c"}, w.e.Report().Lost)
			require.Contains(t, w.e.Report().BlockedExample, "shard c ")

			lists, requests := w.leases.lists(), w.times("GET configmaps", "PATCH configmaps")

			w.goesBy(20)
			w.comes(w.owner(w.namesAt(w.target, "b", "new", 1)[0], ""), "b", false)
			require.LessOrEqual(t, w.leases.lists()-lists, 30, "about one a second")
			require.Equal(t, requests+1, w.times("GET configmaps", "PATCH configmaps"))
			require.GreaterOrEqual(t, w.e.Report().Blocked, min(n, parked)-1, "all should wait, except one that may be retrying")
			require.Equal(t, parked < n, w.e.Report().More)
			require.False(t, w.e.Report().Converged)

			require.NoError(t, c.Release(t.Context()))

			for _, o := range waiting {
				w.eventually(func() bool { return !w.placed(o, "c", false) }, "%s should move", o.GetName())
			}

			w.converges()
		})
	}
}

// A Lease that cannot be read keeps the objects of its shard in place: the ring reports this and the reason, and
// retries now and then.
func TestLeaseThatCannotBeReadIsNamed(t *testing.T) {
	w := newWorld(t, byHand)
	w.lease("c", false)
	w.leases.refuse(errors.New("refused by the test"))
	left := w.many("left", "c", 10)

	w.e.SetTarget(w.target)
	w.run()
	w.eventually(func() bool { return w.e.Report().Blocked == 10 }, "all objects should wait")
	require.Contains(t, w.e.Report().BlockedExample, "refused by the test")
	require.Equal(t, []string{"c"}, w.e.Report().Lost)

	lists := w.leases.lists()

	w.goesBy(20)
	require.LessOrEqual(t, w.leases.lists()-lists, 25, "about one a second")
	require.False(t, w.e.Report().Converged)

	w.leases.refuse(nil)

	for _, o := range left {
		w.eventually(func() bool { return !w.placed(o, "c", false) }, "%s should move", o.GetName())
	}

	w.converges()
}

// However many objects follow an owner that cannot get a shard yet, they send no requests while they wait.
func TestChildrenThatWaitForTheirOwnerAskNothing(t *testing.T) {
	w := newWorld(t, byHand)
	c := w.lease("c", true)
	owner := w.owner("owner", "c")

	var children []client.Object
	for i := range 60 {
		children = append(children, w.child(owner, fmt.Sprintf("child-%d", i), ""))
	}

	w.e.SetTarget(w.target)
	w.run()
	w.eventually(func() bool { return w.e.Report().Blocked == 61 }, "all objects should wait")

	gets := w.times("GET configmaps", "GET secrets")

	w.goesBy(20)
	w.eventually(func() bool { return w.e.Report().Blocked == 61 }, "all objects should still wait")
	require.LessOrEqual(t, w.times("GET configmaps", "GET secrets")-gets, 20)

	require.NoError(t, c.Release(t.Context()))
	w.eventually(func() bool { return !w.placed(owner, "c", false) && !w.placed(owner, "", false) },
		"the owner should move")

	for _, child := range children {
		w.comes(child, owner.Labels[w.e.Objects.ShardLabel()], false)
	}

	w.converges()
}

// A shard that acknowledges nothing gets no more drains than allowed, and the other shards continue.
func TestSlowShardHoldsUpNoOther(t *testing.T) {
	w := newWorld(t, func(_ *world, c *Config) { c.Limits.PerShard = 2 })
	w.target = w.targetOf("a", "b", "c")
	slow := w.owners("a-slow", "a", 8) // these are also first by name
	quick := w.owners("quick", "c", 8)

	w.e.SetTarget(w.target)
	w.run()

	asked := func() (n int) {
		for _, cm := range slow {
			if w.placed(cm, "a", true) {
				n++
			}
		}

		return n
	}

	w.eventually(func() bool { return asked() == 2 }, "some should be drained")

	for _, cm := range quick {
		w.eventually(func() bool {
			for _, other := range quick {
				if w.placed(other, "c", true) {
					w.acknowledge(other)
				}
			}

			return w.placed(cm, "b", false)
		}, "%s should move", cm.Name)
		require.Equal(t, 2, asked())
	}
}

// Data about objects, drains and shards is dropped with them.
func TestNothingIsKeptOfWhatIsOver(t *testing.T) {
	late := make(chan string, 1)

	w := newWorld(t, byHand, func(_ *world, c *Config) {
		c.Late = func(_ feed.ID, shard string, _ time.Duration) { late <- shard }
	})
	cm := w.owners("late", "a", 1)[0]
	w.e.SetTarget(w.target)
	w.run()
	w.comes(cm, "a", true)
	w.goesBy(60)
	w.eventually(func() bool { return w.e.Report().Late == 1 }, "the drain should become late")
	require.Equal(t, "a", <-late)
	require.Equal(t, 1, series(t, w.ring, "clusterring_rebalancer_late_drains_total"))

	// The shard leaves, and its Lease is deleted.
	w.lease("a", false)
	w.e.SetTarget(w.targetOf("b"))
	w.comes(cm, "b", false)
	w.converges()

	w.goesBy(10) // the watches of followers end
	w.eventually(func() bool {
		w.e.mu.Lock()
		defer w.e.mu.Unlock()

		_, timers := w.e.table.Next()

		return !timers
	}, "no timer should run")

	w.e.mu.Lock()
	empty, looks := w.e.table.Empty(), w.e.looks[0].owed
	w.e.mu.Unlock()

	require.True(t, empty)
	require.False(t, looks)
	require.Equal(t, 1, series(t, w.ring, "clusterring_rebalancer_late_drains_total"),
		"one for the ring, whatever its shards are called")

	w.stop()
	w.e.Report().Publish(w.ring)
	require.NotZero(t, series(t, w.ring, ""))
	Forget(w.ring)
	require.Zero(t, series(t, w.ring, ""))
}

// A busy ring leaves another ring its share of the requests.
func TestRingWithMuchToDoStarvesNoOther(t *testing.T) {
	const (
		atOnce = 2
		much   = 100
	)

	busy, idle := newWorld(t), newWorld(t)
	busy.share(atOnce, idle)

	// Each write waits until the test lets one pass.
	underway, pass := make(chan struct{}, 2*much), make(chan struct{})

	busy.meddle(func(r asked) (*http.Response, error) {
		if r.verb != http.MethodPatch {
			return nil, nil
		}

		underway <- struct{}{}
		defer func() { <-underway }()

		assert.LessOrEqual(t, len(underway), atOnce, "this many writes should be in progress at a time")

		select {
		case <-pass:
		case <-r.ctx.Done():
		}

		return nil, r.ctx.Err()
	})

	busy.many("busy", "", much)
	busy.e.SetTarget(busy.target)
	busy.run()
	busy.await(func() bool { return len(underway) == atOnce }, "the ring should use all its writes")

	cm := idle.owner(idle.namesAt(idle.target, "a", "single", 1)[0], "")
	idle.target.Set = resourcesOf() // nothing follows the object, so its write waits for no search
	idle.e.SetTarget(idle.target)
	idle.run()
	idle.await(func() bool { return idle.e.Report().Unassigned == 1 }, "the other ring should have work")

	for sent := 0; !busy.has("configmaps/" + cm.Name); sent++ {
		require.Less(t, sent, much/2, "the other ring should get its turn")

		pass <- struct{}{}
	}

	close(pass)
	idle.becomes(cm, "a", false)
}

// share makes the engines of two rings use one connection to the API server, with a limit on the requests in progress.
func (w *world) share(atOnce int, other *world) {
	w.Helper()

	api, err := feed.Connect(localplane.Shared(w.T).Config, &http.Client{Transport: w.wire},
		feed.Bounds{PerSecond: 10000, AtOnce: atOnce})
	require.NoError(w, err)

	for _, m := range []*world{w, other} {
		c := m.e.Config
		c.Objects = feed.NewClient(api, contract.LabelKeysOf(m.ring, ""))
		m.e = New(c)
	}
}

func init() { metrics.Registry.MustRegister(Collectors()...) }

// series counts the time series of a ring, of one metric, or of all metrics if it is "".
func series(t *testing.T, ring, metric string) (n int) {
	t.Helper()
	measured(t, ring, metric, func(float64) { n++ })

	return n
}

// measured visits the time series of a ring, of one metric, or of all metrics if it is "", with the value of counters.
func measured(t *testing.T, ring, metric string, tell func(value float64)) {
	t.Helper()

	families, err := metrics.Registry.Gather()
	require.NoError(t, err)

	for _, f := range families {
		if metric != "" && f.GetName() != metric {
			continue
		}

		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "ring" && l.GetValue() == ring {
					tell(m.GetCounter().GetValue())
				}
			}
		}
	}
}

// refuses makes the API server refuse writes of ConfigMaps of the namespace with names like refused-0, and waits until
// it does. The result ends that.
func (w *world) refuses(one client.Object) (end func()) {
	w.Helper()

	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: w.ns},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.ns}},
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
					RuleWithOperations: admissionregistrationv1.RuleWithOperations{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
						Rule: admissionregistrationv1.Rule{
							APIGroups: []string{""}, APIVersions: []string{"*"}, Resources: []string{"configmaps"},
						},
					},
				}},
			},
			Validations: []admissionregistrationv1.Validation{{
				Expression: "!object.metadata.name.startsWith('refused-')", Message: "The policy refuses it.",
			}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: w.ns},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: w.ns, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}

	require.NoError(w, w.client.Create(w.Context(), policy))
	require.NoError(w, w.client.Create(w.Context(), binding))

	touch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`))
	w.eventually(func() bool { return w.client.Patch(w.Context(), one, touch, client.DryRunAll) != nil },
		"the policy should apply")

	return func() {
		require.NoError(w, w.client.Delete(w.Context(), binding))
		require.NoError(w, w.client.Delete(w.Context(), policy))
	}
}

// A policy refuses old objects of a resource, more than the table stores. The others move as usual, and so do all when
// the policy is gone. Until then, the report counts them, and contains the words of the policy.
func TestObjectsThatAreRefusedHinderNoOther(t *testing.T) {
	const n, failing = 40, 10

	w := newWorld(t, byHand)
	w.smallTable(failing, failing)

	denied := w.many("refused", "lost", n)
	end := w.refuses(denied[0])
	others := append(w.many("others", "lost", n), w.owner("fresh", ""))
	moves := func(o client.Object) {
		t.Helper()
		w.eventually(func() bool { return !w.placed(o, "lost", false) && !w.placed(o, "", false) },
			"%s should move", o.GetName())
	}

	w.e.SetTarget(w.target)
	w.run()

	for _, o := range others {
		moves(o)
	}

	w.eventually(func() bool { return w.e.Report().Failing >= failing },
		"the table should be full of those that are refused")
	moves(w.owner("later", ""))
	w.eventually(func() bool { r := w.e.Report(); return r.Failing == failing && r.More },
		"there should be more that are refused")
	require.Contains(t, w.e.Report().FailingExample, "The policy refuses it.")
	require.False(t, w.e.Report().Converged)
	end()

	for _, o := range denied {
		moves(o)
	}

	w.converges()
}
