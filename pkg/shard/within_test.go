package shard

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/shard/internal/within"
)

// oneLease is an API server that holds one Lease.
type oneLease struct {
	coordinationv1client.LeaseInterface

	mu    sync.Mutex
	lease *coordinationv1.Lease
	down  bool
	// writes is how many there were. A test that changes the Lease changes its version.
	writes int
}

func (m *oneLease) Leases(string) coordinationv1client.LeaseInterface { return m }

func (m *oneLease) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	m.mu.Lock()
	defer m.mu.Unlock()

	switch {
	case m.down:
		return nil, errDown
	case m.lease == nil:
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), "shard-0")
	default:
		return m.lease.DeepCopy(), nil
	}
}

func (m *oneLease) Create(_ context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return m.write(l)
}

func (m *oneLease) Update(_ context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return m.write(l)
}

func (m *oneLease) write(l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if m.down {
		return nil, errDown
	}

	if m.lease != nil && l.ResourceVersion != m.lease.ResourceVersion {
		return nil, apierrors.NewConflict(coordinationv1.Resource("leases"), "shard-0", nil)
	}

	m.writes++
	m.lease = l.DeepCopy()
	m.lease.ResourceVersion = strconv.Itoa(m.writes)
	m.lease.Spec.RenewTime = new(metav1.NewMicroTime(l.Spec.RenewTime.Truncate(time.Microsecond))) // as on the wire

	return m.lease.DeepCopy(), nil
}

// change calls a function while nobody reads or writes.
func (m *oneLease) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func (m *oneLease) written() (l *coordinationv1.Lease) {
	m.change(func() { l = m.lease.DeepCopy() })

	return l
}

func (m *oneLease) holder() string { return *m.written().Spec.HolderIdentity }

// elector is a program that configures its leader election itself, in a bubble.
type elector struct {
	*oneLease
	exits

	began time.Time // when the program was started
	leads chan time.Duration
	stop  context.CancelFunc
}

// testProgram runs a test with a program whose Lease lasts 15 seconds, with the deadline of 10 seconds, before it is started.
func testProgram(t *testing.T, test func(t *testing.T, p *elector, start func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &elector{oneLease: &oneLease{}, leads: make(chan time.Duration, 1), began: clock.RealClock{}.Now()}

		lock, err := Elect(within.Shard{Ring: "example", Name: "shard-0", Namespace: "default", Leases: p.oneLease, Exit: p.exit})
		require.NoError(t, err)

		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lock, LeaseDuration: testDuration, RenewDeadline: testDeadline, RetryPeriod: time.Second, ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { p.leads <- clock.RealClock{}.Since(p.began) },
				OnStoppedLeading: func() {},
			},
		})
		require.NoError(t, err)

		ctx, stop := context.WithCancel(t.Context())
		p.stop = stop

		defer stop()
		test(t, p, func() { go elector.Run(ctx) })
		lock.(*programLock).term.close() //nolint:forcetypeassert // stops the timer
	})
}

// A elector that takes its Lease begins after the hold-off that the Lease announces.
func TestProgramWaitsForTheHoldOff(t *testing.T) {
	testProgram(t, func(t *testing.T, p *elector, start func()) {
		t.Helper()
		start()
		require.Equal(t, testHoldOff, <-p.leads)
		require.Equal(t, "shard-0", p.holder())
		require.Equal(t, "example", p.written().Labels[contract.LabelClusterRing])
		require.Equal(t, testHoldOff.String(), p.written().Annotations[contract.AnnotationHoldOff])
		pass(time.Hour)
		p.stop()
		synctest.Wait()
		require.Empty(t, p.holder(), "it is released")
		pass(time.Hour)
		require.Zero(t, p.count.Load())
	})
}

// A hold-off that is longer than the Lease does not cost the Lease.
func TestProgramRenewsDuringALongHoldOff(t *testing.T) {
	testProgram(t, func(t *testing.T, p *elector, start func()) {
		t.Helper()

		p.lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "shard-0"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: new("")}}
		p.lease.Annotations = map[string]string{contract.AnnotationHoldOff: "1m0s"}
		start()

		led := <-p.leads
		require.GreaterOrEqual(t, led, time.Minute)
		require.Less(t, led, time.Minute+testHoldOff)
		require.Equal(t, "shard-0", p.holder())
	})
}

func TestProgramThatIsStoppedDuringItsHoldOffReleasesTheLease(t *testing.T) {
	testProgram(t, func(t *testing.T, p *elector, start func()) {
		t.Helper()
		start()
		pass(time.Second)
		require.Equal(t, "shard-0", p.holder())
		p.stop()
		synctest.Wait()
		require.Empty(t, p.holder())
	})
}

// Nobody tells the workers of a program that the Lease is lost, and one that was frozen would work until its election notices.
func TestProgramThatHasLostItsLeaseEnds(t *testing.T) {
	for _, tc := range []struct {
		name string
		lose func(p *elector)
		ends time.Duration // since the last renewal
	}{
		{"API server down", func(p *elector) { p.down = true }, testDuration + testDuration/3},
		{"taken", func(p *elector) {
			p.lease.ResourceVersion, p.lease.Spec.HolderIdentity = "taken", new("shardlease-controller")
		}, testDuration/3 + time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testProgram(t, func(t *testing.T, p *elector, start func()) {
				t.Helper()
				start()
				<-p.leads
				pass(time.Hour)
				p.change(func() { tc.lose(p) })
				pass(tc.ends - time.Second)
				require.Zero(t, p.count.Load())
				pass(2 * time.Second)
				require.EqualValues(t, 1, p.count.Load())
			})
		})
	}
}
