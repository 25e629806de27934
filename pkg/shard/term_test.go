package shard

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
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

const (
	testDuration = 15 * time.Second
	testDeadline = 10 * time.Second
	testHoldOff  = 2 * time.Second
	instant      = time.Nanosecond
)

// exits records how often the process would have ended, and why.
type exits struct {
	count atomic.Int64
	last  atomic.Value
}

func (e *exits) exit(err error) {
	e.count.Add(1)
	e.last.Store(err)
}

// testTerm runs a test in a bubble whose clock stands still until all goroutines wait.
func testTerm(t *testing.T, test func(t *testing.T, term *term, exits *exits)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &exits{}
		term := newTerm(Options{LeaseDuration: testDuration, RenewDeadline: testDeadline, Exit: e.exit}, clock.RealClock{})
		t.Cleanup(func() { term.close() })
		test(t, term, e)
	})
}

// pass lets time pass in the bubble, with all timers on time.
func pass(d time.Duration) {
	<-clock.RealClock{}.After(d)
	synctest.Wait()
}

func work(t *testing.T, term *term) (context.Context, func()) {
	t.Helper()
	ctx, end, err := term.begin(t.Context())
	require.NoError(t, err)

	return ctx, end
}

func TestTermEndsAtTheRenewDeadline(t *testing.T) {
	testTerm(t, func(t *testing.T, term *term, exits *exits) {
		t.Helper()

		sent := term.clock.Now()
		pass(time.Second) // for the answer
		term.taken(sent, 0)
		ctx, end := work(t, term)

		pass(4 * time.Second)

		sent = term.clock.Now()
		pass(2 * time.Second)
		term.renewed(sent)

		pass(8*time.Second - instant)
		require.NoError(t, ctx.Err())
		require.NoError(t, term.held())
		pass(instant)
		require.ErrorIs(t, context.Cause(ctx), errLate, "ten seconds after the renewal was sent")
		require.ErrorIs(t, term.held(), ErrLost)
		term.renewed(term.clock.Now())
		term.taken(term.clock.Now(), 0)
		require.ErrorIs(t, term.held(), ErrLost, "workers have been told to stop")

		end()
		pass(time.Hour)
		require.Zero(t, exits.count.Load(), "the worker has stopped")
	})
}

// A process that was told to stop releases its Lease when the last worker ends. If this worker does not end, the Lease
// may be lost meanwhile, and only the term can detect it.
func TestProcessEndsIfAWorkerDoesNotStop(t *testing.T) {
	taken := errors.New("taken")

	for name, tc := range map[string]struct {
		over  func(*term)
		cause error
		left  time.Duration
	}{
		"after the renew deadline": {func(*term) { pass(testDeadline) }, errLate, testDuration - testDeadline},
		"after a Lease was taken": {func(term *term) { pass(time.Second); term.lose(taken) }, taken,
			testDuration - testDeadline},
		"after a Lease could not be given back": {func(term *term) { pass(time.Second); term.close() }, errGiven,
			testDuration - time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			testTerm(t, func(t *testing.T, term *term, exits *exits) {
				t.Helper()
				term.taken(term.clock.Now(), 0)

				ctx, end := work(t, term)
				defer end()

				_, other := work(t, term)

				tc.over(term)
				require.ErrorIs(t, context.Cause(ctx), tc.cause)
				require.ErrorIs(t, term.held(), tc.cause)
				other()
				pass(tc.left - instant)
				require.Zero(t, exits.count.Load())
				pass(instant)
				require.EqualValues(t, 1, exits.count.Load())
				err, _ := exits.last.Load().(error)
				require.ErrorIs(t, err, errStuck)
				require.ErrorContains(t, err, "1 of them")
				pass(time.Hour)
				require.EqualValues(t, 1, exits.count.Load())
			})
		})
	}
}

func TestNobodyBeginsDuringTheHoldOff(t *testing.T) {
	testTerm(t, func(t *testing.T, term *term, _ *exits) {
		t.Helper()

		sent := term.clock.Now()
		pass(time.Second)
		term.taken(sent, testHoldOff)
		pass(testHoldOff - time.Millisecond)

		_, _, err := term.begin(t.Context())

		var wait waitError
		require.ErrorAs(t, err, &wait, "it counts from the answer: until then the Lease may have been free")
		require.Equal(t, time.Millisecond, wait.left)
		require.ErrorIs(t, err, ErrNotHeld)
		require.ErrorIs(t, term.held(), ErrNotHeld, "nor does anybody write")

		term.renewed(term.clock.Now())
		pass(time.Millisecond)

		_, end := work(t, term)
		end()
	})
}

// lateClock has advanced while timers have not fired, as in a process that was frozen.
type lateClock struct {
	clock.RealClock
	ahead atomic.Int64
}

func (c *lateClock) Now() time.Time { return c.RealClock.Now().Add(time.Duration(c.ahead.Load())) }

func TestProcessThatWasFrozen(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"until the deadline": testDeadline,
		"until its Lease has run out": testDuration} {
		for step, look := range map[string]func(t *testing.T, term *term) error{
			"begins nothing": func(t *testing.T, term *term) error {
				t.Helper()
				_, _, err := term.begin(t.Context())

				return err
			},
			"writes nothing": func(_ *testing.T, term *term) error { return term.held() },
			"does not prolong what is over": func(_ *testing.T, term *term) error {
				term.renewed(term.clock.Now())
				return term.lost()
			},
		} {
			t.Run(name+" "+step, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					clk, e := &lateClock{}, &exits{}
					term := newTerm(Options{LeaseDuration: testDuration, RenewDeadline: testDeadline, Exit: e.exit}, clk)
					t.Cleanup(func() { term.close() })
					term.taken(clk.Now(), 0)

					ctx, end := work(t, term)
					defer end()
					clk.ahead.Store(int64(ahead))

					require.ErrorIs(t, look(t, term), errLate)
					require.ErrorIs(t, context.Cause(ctx), errLate, "what runs is cancelled when anybody asks")
					require.Equal(t, ahead == testDuration, e.count.Load() == 1, "there is time to stop, or there is none")
				})
			})
		}
	}
}

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

func (m *oneLease) Create(
	_ context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	return m.write(l)
}

func (m *oneLease) Update(
	_ context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
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

// testProgram runs a test with a program whose Lease lasts 15 seconds, with the deadline of 10 seconds, before it is
// started.
func testProgram(t *testing.T, test func(t *testing.T, p *elector, start func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &elector{oneLease: &oneLease{}, leads: make(chan time.Duration, 1), began: clock.RealClock{}.Now()}

		lock, err := Elect(within.Shard{Ring: "example", Name: "shard-0", Namespace: "default", Leases: p.oneLease,
			Exit: p.exit})
		require.NoError(t, err)

		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lock, LeaseDuration: testDuration, RenewDeadline: testDeadline, RetryPeriod: time.Second,
			ReleaseOnCancel: true,
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

// A hold-off that is longer than the Lease does not cost the Lease.
func TestProgramRenewsDuringALongHoldOff(t *testing.T) {
	testProgram(t, func(t *testing.T, p *elector, start func()) {
		t.Helper()

		p.lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "shard-0"},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: new("")}}
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

// Nobody tells the workers of a program that the Lease is lost, and one that was frozen would work until its election
// notices.
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
