package leasemonitor

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
)

// line is how an instance reaches the API server. The test can have requests refused.
type line struct {
	world   *world
	mu      sync.Mutex
	changed sync.Cond
	beats   int // looks of heartbeats that have begun: their reads that were answered
	writes  int // writes of heartbeats that were answered
}

func newLine(w *world) *line {
	l := &line{world: w}
	l.changed.L = &l.mu

	return l
}

func (l *line) wrap(next http.RoundTripper) http.RoundTripper { return &end{l, next} }

// end is an end of a line.
type end struct {
	*line

	next http.RoundTripper
}

func (e *end) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := e.world.refusal(r), error(nil)
	if res == nil {
		res, err = e.next.RoundTrip(r)
	}

	if err == nil && strings.HasSuffix(r.UserAgent(), "heartbeat") {
		if r.Method == http.MethodGet {
			e.note(&e.beats, 1)
		} else {
			e.note(&e.writes, 1)
		}
	}

	return res, err
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

// refusal is what the API server says.
const refusal = "nobody takes this Lease"

// refuse has the API server refuse those writes of the instances to Leases, until the function that it returns is
// called.
func (w *world) refuse(which func(*http.Request) bool) (allow func()) {
	w.refused.Store(&which)

	return func() { w.refused.Store(nil) }
}

// refusal returns the answer to a request that is refused; nil for others.
func (w *world) refusal(r *http.Request) *http.Response {
	which := w.refused.Load()
	if which == nil || r.Method == http.MethodGet || r.Method == http.MethodDelete ||
		!strings.Contains(r.URL.Path, "/leases") || !(*which)(r) {
		return nil
	}

	return &http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{}, Request: r,
		Body: io.NopCloser(strings.NewReader(refusal))}
}

// beat is the time between two looks at the API server, as there are no short Leases.
const beat = 2 * time.Second

// pass lets time pass, look by look.
func (i *instance) pass(d time.Duration) {
	for ; d > 0; d -= beat {
		pass(i)
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

			return startInstance(w, clock)
		},
	} {
		t.Run(who, func(t *testing.T) {
			w := newWorld(t)
			clock := newClock()
			replicas := []*instance{newInstance(w, clock)}
			replicas[0].waitElected()

			replicas = append(replicas, newInstance(w, clock))

			var shards []*leasetest.Shard
			for n := range 3 {
				shards = append(shards, w.acquire(fmt.Sprintf("shard-%d", n), d))
				w.waitState(shards[n].Name, "ready")
			}

			allow := w.refuse(func(*http.Request) bool { return true })

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
			w.waitState(w.acquire("newcomer", d).Name, "ready") // which shows that it works again

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

// conditions returns ShardsAvailable and Ready of the ring.
func (w *world) conditions() (available, ready metav1.Condition) {
	w.t.Helper()

	ring := w.get()
	find := func(kind string) metav1.Condition {
		return ptr.Deref(meta.FindStatusCondition(ring.Status.Conditions, kind), metav1.Condition{})
	}

	return find(v1alpha1.ConditionShardsAvailable), find(v1alpha1.ConditionReady)
}

// A dead shard whose Lease cannot be taken keeps its objects. The ring says so, and is right again when it can.
func TestRingTellsOfLeaseThatCannotBeTaken(t *testing.T) {
	const d = 10 * time.Second

	w := newWorld(t)
	clock := newClock()
	i := newInstance(w, clock)
	i.waitElected()

	for name, d := range map[string]time.Duration{"lives": time.Hour, "dies": d} {
		w.acquire(name, d)
		w.waitState(name, "ready")
	}

	w.waitShards(2, 2)
	_, ready := w.conditions()
	require.Equal(t, metav1.ConditionTrue, ready.Status)

	acquired := clock.Now()
	allow := w.refuse(func(r *http.Request) bool {
		return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, w.ns+"/leases/dies")
	})

	var available metav1.Condition
	require.Eventually(t, func() bool {
		i.pass(beat)

		available, ready = w.conditions()

		return available.Status == metav1.ConditionFalse && ready.Status == metav1.ConditionFalse
	}, patience, interval, "the ring never told")
	require.Equal(t, v1alpha1.ReasonLeasesNotTaken, available.Reason)
	require.Contains(t, available.Message, fmt.Sprintf("2 of 2 shards available; shard %s/dies has not renewed its "+
		"Lease since %s and its objects wait", w.ns, acquired.Format(time.RFC3339)))
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
