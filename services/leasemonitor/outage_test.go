package leasemonitor

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	testclock "k8s.io/utils/clock/testing"

	"github.com/clusterring/clusterring/tools/testkit/leasetest"
)

// line is how an instance reaches the API server. It can be cut, which leaves requests without an answer until it is mended.
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
