package former_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/internal/testenv"
	"github.com/clusterring/clusterring/pkg/shard/former"
)

const (
	patience = 30 * time.Second
	interval = 20 * time.Millisecond

	leaseDuration = 3 * time.Second
	renewDeadline = 2 * time.Second
	retryPeriod   = 200 * time.Millisecond
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }

// running is an election in its own goroutine.
type running struct {
	stop  context.CancelFunc
	held  <-chan struct{}
	ended chan struct{}
	err   error
}

func run(t *testing.T, held <-chan struct{}, start func(context.Context) error) *running {
	t.Helper()

	ctx, cancel := context.WithCancel(t.Context())
	r := &running{stop: cancel, held: held, ended: make(chan struct{})}

	go func() {
		defer close(r.ended)

		r.err = start(ctx)
	}()
	t.Cleanup(func() { r.end(t) })

	return r
}

func (r *running) end(t *testing.T) {
	t.Helper()
	r.stop()
	receive(t, r.ended, "the election ends")
}

// receive waits for a value.
func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()

	return testenv.Receive(t, patience, from, what)
}

func (r *running) holds() bool {
	select {
	case <-r.held:
		return true
	default:
		return false
	}
}

// leader is a process of the former version.
func leader(t *testing.T, namespace, identity string) *running {
	t.Helper()
	c, err := coordinationv1client.NewForConfig(testenv.Config(t))
	require.NoError(t, err)

	held := make(chan struct{})
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: "old"}, Client: c,
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { close(held) }, OnStoppedLeading: func() {}},
	})
	require.NoError(t, err)

	return run(t, held, func(ctx context.Context) error { e.Run(ctx); return nil })
}

// member is a shard of the new version.
func member(t *testing.T, namespace string) (*running, *former.Election) {
	t.Helper()
	e, err := former.New(testenv.Config(t), former.Options{
		Ring: "example", Namespace: namespace, Name: "old",
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
	})
	require.NoError(t, err)

	return run(t, e.Held(), e.Start), e
}

func lease(t *testing.T, namespace string) *coordinationv1.Lease {
	t.Helper()

	return testenv.Lease(t, testenv.Client(t), client.ObjectKey{Namespace: namespace, Name: "old"})
}

// renewals waits for as many changes of the Lease, which go on meanwhile.
func renewals(t *testing.T, namespace string, n int) {
	t.Helper()

	for version := ""; n >= 0; n-- {
		require.Eventually(t, func() bool {
			now := lease(t, namespace).ResourceVersion
			changed := now != version
			version = now

			return changed
		}, patience, interval)
	}
}

func TestShardsReplaceALeaderAndALeaderReplacesThem(t *testing.T) {
	namespace := testenv.Namespace(t)

	old := leader(t, namespace, "old-0")
	receive(t, old.held, "the former version leads")

	one, election := member(t, namespace)
	renewals(t, namespace, 3)
	require.False(t, one.holds(), "it waits for the leader")

	calls := 0
	r := election.Reconciler(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		calls++
		return reconcile.Result{}, errors.New("its own")
	}))
	result, err := r.Reconcile(t.Context(), reconcile.Request{})
	require.NoError(t, err)
	require.Positive(t, result.RequeueAfter)
	require.Zero(t, calls)

	old.end(t)
	receive(t, one.held, "the first shard has the Lease")
	_, err = r.Reconcile(t.Context(), reconcile.Request{})
	require.EqualError(t, err, "its own")
	require.Equal(t, former.Identity("example"), ptr.Deref(lease(t, namespace).Spec.HolderIdentity, ""))

	two, _ := member(t, namespace)
	receive(t, two.held, "the second shard joins it immediately")

	// A rollback: the former version waits for the last shard.
	back := leader(t, namespace, "old-1")

	one.end(t)
	renewals(t, namespace, 20)
	require.False(t, back.holds(), "one shard is left")
	two.end(t)
	require.Equal(t, former.Identity("example"), ptr.Deref(lease(t, namespace).Spec.HolderIdentity, ""), "nobody releases it")
	receive(t, back.held, "the former version leads")
	require.NoError(t, one.err)
	require.NoError(t, two.err)
}

func TestProcessEndsIfTheLeaseIsLost(t *testing.T) {
	namespace := testenv.Namespace(t)
	one, _ := member(t, namespace)
	receive(t, one.held, "it has the Lease")

	require.Eventually(t, func() bool {
		l := lease(t, namespace)
		l.Spec.HolderIdentity = new("thief")
		l.Spec.RenewTime = &metav1.MicroTime{Time: l.Spec.RenewTime.Add(time.Hour)}

		return testenv.Client(t).Update(t.Context(), l) == nil
	}, patience, interval)
	receive(t, one.ended, "the election ends")
	require.ErrorIs(t, one.err, former.ErrLost)
	require.ErrorContains(t, one.err, namespace+"/old")
}

func TestOptionsAreValidated(t *testing.T) {
	config := &rest.Config{Host: "https://example.com"}

	for _, tc := range []struct {
		name    string
		options former.Options
		want    []string
	}{
		{"nothing", former.Options{}, []string{"set Ring, and Namespace and Name"}},
		{"times", former.Options{Ring: "example", Namespace: "a", Name: "b", LeaseDuration: 1, RenewDeadline: 2}, []string{"must be greater than"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := former.New(config, tc.options)
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
		})
	}

	_, err := former.New(config, former.Options{Ring: "example", Namespace: "a", Name: "b", LeaseDuration: 5 * time.Second})
	require.NoError(t, err, "the other durations follow")
}
