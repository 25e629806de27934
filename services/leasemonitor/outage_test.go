package leasemonitor

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
)

// line is how an instance reaches the API server. It can be cut, which leaves requests without an answer until it is
// mended.
type line struct {
	mu      sync.Mutex
	mended  chan struct{} // closed while it is not cut
	changed sync.Cond
	beats   int // looks of heartbeats that have begun: their reads that were answered
	writes  int // writes of heartbeats that were answered
	waiting int // requests that wait for the line to be mended
}

func newLine() *line {
	l := &line{mended: make(chan struct{})}
	l.changed.L = &l.mu
	close(l.mended)

	return l
}

func (l *line) wrap(next http.RoundTripper) http.RoundTripper { return &end{l, next} }

// end is an end of a line.
type end struct {
	*line

	next http.RoundTripper
}

func (e *end) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := e.pass(r); err != nil {
		return nil, err
	}

	res, err := e.next.RoundTrip(r)
	if err == nil && strings.HasSuffix(r.UserAgent(), "heartbeat") {
		if r.Method == http.MethodGet {
			e.note(&e.beats, 1)
		} else {
			e.note(&e.writes, 1)
		}
	}

	return res, err
}

func (e *end) pass(r *http.Request) error {
	e.mu.Lock()
	mended := e.mended
	e.mu.Unlock()

	e.note(&e.waiting, 1)
	defer e.note(&e.waiting, -1)

	select {
	case <-mended:
		return nil
	case <-r.Context().Done():
		return r.Context().Err()
	}
}

func (l *line) note(count *int, by int) {
	l.mu.Lock()
	defer l.mu.Unlock()

	*count += by
	l.changed.Broadcast()
}

// await waits until there is something to say of the line.
func (l *line) await(what func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	for !what() {
		l.changed.Wait()
	}
}

func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.mended = make(chan struct{})
}

func (l *line) mend() { close(l.mended) }

// pass lets a beat pass, after which each instance looks whether Leases can be written. One of them writes.
func pass(instances ...*instance) {
	before := map[*instance]int{}
	writes := func() (sum int) {
		for _, i := range instances {
			i.line.await(func() bool { sum += i.line.writes; return true })
		}

		return sum
	}
	written := writes()

	for _, i := range instances {
		i.line.await(func() bool { before[i] = i.line.beats; return true })
	}

	instances[0].clock.Step(beat)

	for _, i := range instances {
		i.line.await(func() bool { return i.line.beats > before[i] })
	}

	for writes() == written {
		runtime.Gosched()
	}
}

// beat is the time between two looks at the API server, as there are no short Leases.
const beat = 2 * time.Second

// pass lets time pass, look by look.
func (i *instance) pass(d time.Duration) {
	for ; d > 0; d -= beat {
		pass(i)
	}
}

// While the API server is away, no shard can renew. The lease monitor is there first when it is back.
func TestOutageCostsNoShardItsLease(t *testing.T) {
	const d = 30 * time.Second

	w := newWorld(t)
	clock := testclock.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	i := newInstance(t, w.plane, clock)
	i.waitElected()

	join := func(name string) *leasetest.Shard {
		shard := &leasetest.Shard{Client: w.plane.Client, Ring: w.ring, Namespace: w.ns, Name: name, Duration: d}
		require.NoError(t, shard.Acquire(t.Context()))
		w.waitState(name, "ready")

		return shard
	}

	var shards []*leasetest.Shard
	for n := range 3 {
		shards = append(shards, join(fmt.Sprintf("shard-%d", n)))
	}

	i.pass(d / 2)
	i.line.cut()

	for passed := time.Duration(0); passed < 5*d; passed += time.Second {
		clock.Step(time.Second)
	}

	i.line.await(func() bool { return i.line.waiting > 0 })
	i.line.mend()
	i.pass(beat)

	shards = append(shards, join("newcomer")) // which shows that it works again
	for _, s := range shards {
		require.NoError(t, s.Renew(t.Context()), "it has lost its Lease")
	}

	// And now they are dead. That is most of them at once, so it takes another D.
	i.pass(2*d + d/2)
	require.Eventually(t, func() bool { return w.hasEvent("ManyShardsSilent") }, patience, interval)

	for _, s := range shards {
		require.Equal(t, s.Name, *w.lease(s.Name).Spec.HolderIdentity)
	}

	i.pass(d)

	for _, s := range shards {
		w.waitState(s.Name, "dead")
	}
}

// refuseWrites has the API server refuse all writes of Leases but their deletion, because of a webhook that nobody
// serves, until the function that it returns is called. Both wait until the API server does so.
func (w *world) refuseWrites() (allow func()) {
	w.t.Helper()

	webhook := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "broken-" + w.ns},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:                    "broken.example.com",
			ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: new("https://127.0.0.1:1")},
			FailurePolicy:           new(admissionregistrationv1.Fail),
			SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{"coordination.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"leases"},
				},
			}},
		}},
	}
	probe := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "probe"}}
	refused := func() bool {
		err := w.plane.Client.Create(w.t.Context(), probe.DeepCopy(), client.DryRunAll)
		if err != nil {
			require.True(w.t, apierrors.IsInternalError(err), "%v", err)
		}

		return err != nil
	}

	require.NoError(w.t, w.plane.Client.Create(w.t.Context(), webhook))
	w.t.Cleanup(func() {
		require.NoError(w.t, client.IgnoreNotFound(w.plane.Client.Delete(context.WithoutCancel(w.t.Context()), webhook)))
	})
	require.Eventually(w.t, refused, patience, interval)

	return func() {
		w.t.Helper()
		require.NoError(w.t, w.plane.Client.Delete(w.t.Context(), webhook))
		require.Eventually(w.t, func() bool { return !refused() }, patience, interval)
	}
}

// Reads go on while Leases cannot be written for three minutes, so that no shard can renew. Nobody loses its Lease to
// the leader, nor to a replica that has looked on or has begun in between, and leads afterwards.
func TestNoLeaseIsTakenAfterWritesHaveFailed(t *testing.T) {
	const d = 30 * time.Second

	for who, leads := range map[string]func(w *world, clock *testclock.FakeClock, begin []*instance) *instance{
		"the leader": func(_ *world, _ *testclock.FakeClock, begin []*instance) *instance {
			begin[1].stop()
			return begin[0]
		},
		"a replica that has looked on": func(_ *world, _ *testclock.FakeClock, begin []*instance) *instance {
			begin[0].stop()
			return begin[1]
		},
		"a replica that has just begun": func(w *world, clock *testclock.FakeClock, begin []*instance) *instance {
			begin[0].stop()
			begin[1].stop()

			return startInstance(w.t, w.plane, clock)
		},
	} {
		t.Run(who, func(t *testing.T) {
			w := newWorld(t)
			clock := testclock.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
			replicas := []*instance{newInstance(t, w.plane, clock)}
			replicas[0].waitElected()

			replicas = append(replicas, newInstance(t, w.plane, clock))

			join := func(name string) *leasetest.Shard {
				shard := &leasetest.Shard{Client: w.plane.Client, Ring: w.ring, Namespace: w.ns, Name: name, Duration: d}
				require.NoError(t, shard.Acquire(t.Context()))

				return shard
			}

			var shards []*leasetest.Shard
			for n := range 3 {
				shards = append(shards, join(fmt.Sprintf("shard-%d", n)))
				w.waitState(shards[n].Name, "ready")
			}

			allow := w.refuseWrites()

			for passed := time.Duration(0); passed < 3*time.Minute; passed += beat {
				pass(replicas...)
			}

			leader := leads(w, clock, replicas)
			ready := leader.runtime.Ready()

			allow()

			// The elections of Leases that cannot be written may take their time, in which none passes for the shards.
			if leader != replicas[0] {
				require.NoError(t, w.plane.Client.Delete(t.Context(), &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Namespace: contract.SystemNamespace, Name: name},
				}))
			}
			leader.waitElected()

			// Shards have two D to come back.
			leader.pass(2*d - beat)
			require.NoError(t, leader.runtime.Ready())
			w.waitState(join("newcomer").Name, "ready") // which shows that it works again

			for _, s := range shards[1:] {
				require.NoError(t, s.Renew(t.Context()), "it has lost its Lease")
			}

			require.Error(t, ready, "it should say that it cannot see")

			// The one that does not come back is taken.
			require.Eventually(t, func() bool {
				leader.pass(beat)
				return *w.lease(shards[0].Name).Spec.HolderIdentity == contract.LeaseControllerIdentity
			}, patience, interval)
		})
	}
}

// refusal is what the API server says.
const refusal = "nobody takes this Lease"

// refuseTakeOver has the API server refuse every other holder of the Lease, until the function that it returns is
// called. Both wait until the API server does so.
func (w *world) refuseTakeOver(shard string) (allow func()) {
	w.t.Helper()

	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "keep-" + w.ns},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
					RuleWithOperations: admissionregistrationv1.RuleWithOperations{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
						Rule: admissionregistrationv1.Rule{
							APIGroups: []string{"coordination.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"leases"},
						},
					},
				}}},
			MatchConditions: []admissionregistrationv1.MatchCondition{{
				Name: "lease", Expression: fmt.Sprintf("request.namespace == %q && request.name == %q", w.ns, shard),
			}},
			Validations: []admissionregistrationv1.Validation{{
				Expression: "object.spec.holderIdentity == oldObject.spec.holderIdentity", Message: refusal,
			}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: policy.ObjectMeta,
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	refused := func() bool {
		l := w.lease(shard)
		patch := client.MergeFrom(l.DeepCopy())
		l.Spec.HolderIdentity = new("somebody")

		err := w.plane.Client.Patch(w.t.Context(), l, patch, client.DryRunAll)
		if err != nil {
			require.ErrorContains(w.t, err, refusal)
		}

		return err != nil
	}

	require.NoError(w.t, w.plane.Client.Create(w.t.Context(), policy))
	require.NoError(w.t, w.plane.Client.Create(w.t.Context(), binding))
	require.Eventually(w.t, refused, patience, interval)

	return func() {
		w.t.Helper()
		require.NoError(w.t, w.plane.Client.Delete(w.t.Context(), binding))
		require.NoError(w.t, w.plane.Client.Delete(w.t.Context(), policy))
		require.Eventually(w.t, func() bool { return !refused() }, patience, interval)
	}
}

// conditions returns ShardsAvailable and Ready of the ring.
func (w *world) conditions() (available, ready metav1.Condition) {
	w.t.Helper()

	ring := &v1alpha1.ClusterRing{}
	require.NoError(w.t, w.plane.Client.Get(w.t.Context(), types.NamespacedName{Name: w.ring}, ring))

	find := func(kind string) metav1.Condition {
		return ptr.Deref(meta.FindStatusCondition(ring.Status.Conditions, kind), metav1.Condition{})
	}

	return find(v1alpha1.ConditionShardsAvailable), find(v1alpha1.ConditionReady)
}

// A dead shard whose Lease cannot be taken keeps its objects. The ring says so, and is right again when it can.
func TestRingTellsOfLeaseThatCannotBeTaken(t *testing.T) {
	const d = 10 * time.Second

	w := newWorld(t)
	clock := testclock.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	i := newInstance(t, w.plane, clock)
	i.waitElected()

	for name, d := range map[string]time.Duration{"lives": time.Hour, "dies": d} {
		shard := &leasetest.Shard{Client: w.plane.Client, Ring: w.ring, Namespace: w.ns, Name: name, Duration: d}
		require.NoError(t, shard.Acquire(t.Context()))
		w.waitState(name, "ready")
	}

	w.waitShards(2, 2)
	_, ready := w.conditions()
	require.Equal(t, metav1.ConditionTrue, ready.Status)

	allow := w.refuseTakeOver("dies")

	var available metav1.Condition
	require.Eventually(t, func() bool {
		i.pass(beat)

		available, ready = w.conditions()

		return available.Status == metav1.ConditionFalse && ready.Status == metav1.ConditionFalse
	}, patience, interval, "the ring never told")
	require.Equal(t, v1alpha1.ReasonLeasesNotTaken, available.Reason)
	require.Contains(t, available.Message, fmt.Sprintf("2 of 2 shards available; shard %s/dies has not renewed its "+
		"Lease since 2026-01-02T03:04:", w.ns))
	require.Contains(t, available.Message, refusal)
	problem, _, _ := strings.Cut(available.Message, "; Leases in all namespaces count")
	require.Contains(t, ready.Message, problem)
	require.Equal(t, "dies", *w.lease("dies").Spec.HolderIdentity)

	allow()
	require.Eventually(t, func() bool {
		i.pass(beat)
		return *w.lease("dies").Spec.HolderIdentity == contract.LeaseControllerIdentity
	}, patience, interval, "the Lease was never taken")
	require.Eventually(t, func() bool { // at first it may count the Lease as its cache still has it
		available, ready = w.conditions()

		return strings.HasPrefix(available.Message,
			"1 of 2 shards available, 1 without their Lease; Leases in all namespaces count")
	}, patience, interval, "the ring tells what is over")
	require.Equal(t, v1alpha1.ReasonShardsAvailable, available.Reason)
	require.Equal(t, metav1.ConditionTrue, available.Status)
	require.Equal(t, metav1.ConditionTrue, ready.Status)
}
