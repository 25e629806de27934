package lease_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/internal/testenv"
	"github.com/clusterring/clusterring/pkg/shard/compat/lease"
)

const (
	patience = 30 * time.Second
	interval = 20 * time.Millisecond
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }

func TestNameIsThatOfTheHost(t *testing.T) {
	host, err := os.Hostname()
	require.NoError(t, err)

	config := &rest.Config{Host: "https://example.com", UserAgent: "mine"}
	lock, err := lease.NewResourceLock(config, nil, lease.Options{ClusterRingName: "example", LeaseNamespace: "default"})
	require.NoError(t, err)
	require.Equal(t, host, lock.Identity())
	require.Equal(t, "default/"+host, lock.Describe())
	require.Equal(t, "mine", config.UserAgent, "the config is the caller's")

	_, err = lease.NewResourceLock(config, nil, lease.Options{})
	require.ErrorContains(t, err, "ring: set the name")
	require.ErrorContains(t, err, "namespace: set it")
}

// election is a leader election of client-go that runs until it is stopped.
type election struct {
	cancel  context.CancelFunc
	leading chan struct{}
	ended   chan struct{}
}

func elect(t *testing.T, lock resourcelock.Interface) *election {
	t.Helper()

	e := &election{leading: make(chan struct{}), ended: make(chan struct{})}

	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 200 * time.Millisecond,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(e.leading) },
			OnStoppedLeading: func() {},
		},
	})
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // it ends in the cleanup
	e.cancel = cancel

	go func() {
		defer close(e.ended)
		elector.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-e.ended
	})

	return e
}

func read(t *testing.T, namespace string) *coordinationv1.Lease {
	t.Helper()

	return testenv.Lease(t, testenv.Client(t), client.ObjectKey{Namespace: namespace, Name: "shard-0"})
}

func TestClientGoKeepsAndReleasesTheLease(t *testing.T) {
	namespace := testenv.Namespace(t)
	recorder := record.NewFakeRecorder(10)
	recorder.IncludeObject = true
	lock, err := lease.NewResourceLock(testenv.Config(t), recorder,
		lease.Options{ClusterRingName: namespace, LeaseNamespace: namespace, ShardName: "shard-0"})
	require.NoError(t, err)

	e := elect(t, lock)
	require.Eventually(t, func() bool { return ptr.Deref(read(t, namespace).Spec.HolderIdentity, "") == "shard-0" },
		patience, interval)
	<-e.leading

	held := read(t, namespace)
	require.Equal(t, namespace, held.Labels[contract.LabelClusterRing])
	require.Equal(t, int32(15), *held.Spec.LeaseDurationSeconds)
	require.Equal(t, "2s", held.Annotations[contract.AnnotationHoldOff])
	require.GreaterOrEqual(t, clock.RealClock{}.Since(held.Spec.AcquireTime.Time), 2*time.Second,
		"the election waits for its end")
	require.Eventually(t, func() bool { return read(t, namespace).Spec.RenewTime.After(held.Spec.RenewTime.Time) },
		patience, interval)

	// The labels of the services stay.
	mine := client.RawPatch("application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{"`+contract.LabelState+`":"ready"}}}`))
	require.NoError(t, testenv.Client(t).Patch(t.Context(), held, mine))
	require.Eventually(t, func() bool { return read(t, namespace).Spec.RenewTime.After(held.Spec.RenewTime.Time) },
		patience, interval)

	e.cancel()
	<-e.ended

	released := read(t, namespace)
	require.Empty(t, ptr.Deref(released.Spec.HolderIdentity, ""))
	require.Equal(t, "ready", released.Labels[contract.LabelState])
	require.Equal(t, namespace, released.Labels[contract.LabelClusterRing])

	const of = " involvedObject{kind=Lease,apiVersion=coordination.k8s.io/v1}"

	require.Equal(t, "Normal LeaderElection shard-0 became leader"+of, <-recorder.Events)
	require.Equal(t, "Normal LeaderElection shard-0 stopped leading"+of, <-recorder.Events)
}
