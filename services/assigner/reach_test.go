package assigner_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// firewall stands between API servers and the assigner. While it is closed, bytes vanish, as packets that a firewall drops.
type firewall struct {
	address, behind string

	mu   sync.Mutex
	pass *sync.Cond
	shut bool
}

func newFirewall(t *testing.T) *firewall {
	t.Helper()

	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)

	f := &firewall{address: l.Addr().String(), behind: localplane.FreeAddress(t)}
	f.pass = sync.NewCond(&f.mu)

	t.Cleanup(func() {
		f.open()

		_ = l.Close()
	})

	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}

			go f.serve(conn)
		}
	}()

	return f
}

func (f *firewall) serve(outside net.Conn) {
	defer func() { _ = outside.Close() }()

	inside, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", f.behind)
	if err != nil {
		return
	}

	defer func() { _ = inside.Close() }()

	go func() {
		_, _ = io.Copy(outside, inside)
		_ = outside.Close()
	}()

	buf := make([]byte, 64<<10)

	for {
		n, err := outside.Read(buf)
		if err != nil {
			return
		}

		f.wait()

		if _, err := inside.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (f *firewall) wait() {
	f.mu.Lock()
	defer f.mu.Unlock()

	for f.shut {
		f.pass.Wait()
	}
}

func (f *firewall) close() {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.shut = true
}

func (f *firewall) open() {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.shut = false
	f.pass.Broadcast()
}

// arrives returns the metric of a ring: whether calls arrive; -1 if there is none.
func arrives(t *testing.T, ring string) float64 {
	t.Helper()

	families, err := metrics.Registry.Gather()
	require.NoError(t, err)

	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "clusterring_assigner_calls_arrive" && m.GetLabel()[0].GetValue() == ring {
				return m.GetGauge().GetValue()
			}
		}
	}

	return -1
}

// within waits for a condition as eventually does, but up to a minute.
func within(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, time.Minute, interval, what)
}

func TestCallsThatDoNotArriveAreReported(t *testing.T) {
	f := newFixture(t, "unreached", "a")
	wall := newFirewall(t)
	r := launchAt(t, f.Plane, wall.behind, "--webhook-url=https://"+wall.address, "--webhook-timeout=1s")
	eventually(t, r.ready, "the assigner becomes ready")
	f.registered()
	within(t, func() bool { return arrives(t, f.name) == 1 }, "the metric shows that calls arrive")

	// Nobody writes an object of the ring.
	asked := count(t, f.name, "")

	wall.close()
	within(t, func() bool { return f.reason() == "False CallsNotAnswered" }, "the condition shows that calls do not arrive")

	message := apimeta.FindStatusCondition(f.ring().Status.Conditions, v1alpha1.ConditionWebhookRegistered).Message
	require.Contains(t, message, "context deadline exceeded")
	require.Contains(t, message, "Allow API servers to connect to https://"+wall.address)
	require.Zero(t, arrives(t, f.name))
	require.Equal(t, asked, count(t, f.name, ""))

	start := clock.RealClock{}.Now()
	f.create(f.website("waits"))
	require.Less(t, clock.RealClock{}.Since(start), 3*time.Second, "a write waits a second for an assigner that does not answer")

	wall.open()
	within(t, func() bool { return f.reason() == "True Registered" }, "the condition shows that calls arrive again")
	require.InDelta(t, 1, arrives(t, f.name), 0)
}

func TestNineRingsDelayAWriteLessThanTenSeconds(t *testing.T) {
	f := newFixture(t, "overlap-0", "a")
	wall := newFirewall(t)
	r := launchAt(t, f.Plane, wall.behind, "--webhook-url=https://"+wall.address, "--webhook-timeout=1s")
	eventually(t, r.ready, "the assigner becomes ready")
	f.registered()

	for i := 1; i < 9; i++ {
		other := *f
		other.name = fmt.Sprintf("overlap-%d", i)
		other.join("a")
		other.declare(v1alpha1.RingResource{Group: f.kind.Group, Resource: "websites"})
		other.registered()
	}

	wall.close()

	start := clock.RealClock{}.Now()
	f.create(f.website("waits"))
	require.Less(t, clock.RealClock{}.Since(start), 10*time.Second)
}
