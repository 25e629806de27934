package pods_test

import (
	"cmp"
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/leasemonitor/pods"
	"github.com/clusterring/clusterring/tools/testkit/kubelettest"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

const (
	patience = 30 * time.Second
	interval = 10 * time.Millisecond
)

// cluster is a ring whose shards are in a namespace with Pods, and a watch of them. The test is the kubelet.
type cluster struct {
	*testing.T
	admin client.Client
	ns    string
	ring  *v1alpha1.ClusterRing
	clock *testclock.FakePassiveClock
	reads client.Reader
	watch *pods.Watch
}

func newCluster(t *testing.T) *cluster {
	t.Helper()

	plane := localplane.Shared(t)
	c := &cluster{T: t, admin: plane.Client, ns: plane.Namespace(t), clock: testclock.NewFakePassiveClock(time.Unix(0, 0))}
	c.ring = &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: "ring-of-" + c.ns},
		Spec: v1alpha1.ClusterRingSpec{
			Resources: []v1alpha1.RingResource{{Resource: "configmaps"}}, ShardNamespaces: []string{c.ns},
		},
	}
	require.NoError(t, c.admin.Create(t.Context(), c.ring))

	reads, err := cache.New(plane.Config, cache.Options{Scheme: plane.Client.Scheme()})
	require.NoError(t, err)
	clients, err := kubernetes.NewForConfig(plane.Config)
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 2)

	go func() { stopped <- reads.Start(ctx) }()

	require.True(t, reads.WaitForCacheSync(ctx))

	c.reads = reads
	c.watch = pods.New(clients, reads, c.clock)

	go func() { stopped <- c.watch.Start(ctx) }()

	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-stopped)
		require.NoError(t, <-stopped)
	})

	return c
}

// pod creates a Pod that runs.
func (c *cluster) pod(name string) *corev1.Pod {
	c.Helper()

	p := kubelettest.Pod(c.ns, name)
	require.NoError(c, c.admin.Create(c.Context(), p))
	c.reports(p, corev1.PodRunning, running)

	return p
}

// reports writes the status of a Pod as the kubelet does.
func (c *cluster) reports(p *corev1.Pod, phase corev1.PodPhase, state corev1.ContainerState) {
	c.Helper()

	p.Status = status(phase, state)
	p.Status.ContainerStatuses[0].Name = "process"
	require.NoError(c, c.admin.Status().Update(c.Context(), p))
}

// delete removes the Pod at once.
func (c *cluster) delete(p *corev1.Pod) {
	c.Helper()
	require.NoError(c, c.admin.Delete(c.Context(), p, client.GracePeriodSeconds(0)))
}

// waitEnded waits until the watch knows that the Pod has ended.
func (c *cluster) waitEnded(p *corev1.Pod) {
	c.Helper()
	require.Eventually(c, func() bool { return c.watch.Ended(p.UID) }, patience, interval, "Pod %s", p.Name)
}

// seesAll waits until the watch has seen everything up to now: it sees the end of a Pod that ends last.
func (c *cluster) seesAll() {
	c.Helper()

	last := c.pod("last")
	c.reports(last, corev1.PodFailed, terminated)
	c.waitEnded(last)
	c.delete(last)
}

// Nothing is believed that a process which still runs could contradict.
func TestWatchBelievesOnlyTheKubelet(t *testing.T) {
	c := newCluster(t)
	forced, unreachable, restarts := c.pod("forced"), c.pod("unreachable"), c.pod("restarts")

	c.delete(forced)
	c.reports(restarts, corev1.PodRunning, terminated)

	// The garbage collector of Pods declares one failed whose container had just crashed when its node was cut off.
	c.reports(unreachable, corev1.PodRunning, terminated)

	unreachable.Status.Phase = corev1.PodFailed
	require.NoError(t, c.admin.Status().Update(t.Context(), unreachable))

	c.seesAll()
	require.False(t, c.watch.Ended(forced.UID))
	require.False(t, c.watch.Ended(unreachable.UID))
	require.False(t, c.watch.Ended(restarts.UID))

	c.delete(unreachable)
	c.seesAll()
	require.False(t, c.watch.Ended(unreachable.UID))
}

// The Lease that a Pod has written is passed on when the Pod ends, and no other.
func TestWatchPassesOnTheLeases(t *testing.T) {
	c := newCluster(t)
	p, other := c.pod("shard-0"), c.pod("shard-1")

	for name, uid := range map[string]types.UID{"shard-0": p.UID, "shard-1": other.UID, "shard-2": ""} {
		shard := &leasetest.Shard{Client: c.admin, Ring: c.ring.Name, Namespace: c.ns, Name: name, PodUID: uid}
		require.NoError(t, shard.Acquire(t.Context()))
	}

	leases := &coordinationv1.LeaseList{}
	require.Eventually(t, func() bool {
		require.NoError(t, c.reads.List(t.Context(), leases, client.InNamespace(c.ns)))
		return len(leases.Items) == 3 //nolint:mnd // all
	}, patience, interval)

	c.reports(p, corev1.PodFailed, terminated)

	require.Eventually(t, func() bool { return len(c.watch.Leases()) == 1 }, patience, interval)
	require.Equal(t, types.NamespacedName{Namespace: c.ns, Name: "shard-0"},
		client.ObjectKeyFromObject((<-c.watch.Leases()).Object))
	c.seesAll()
	require.Empty(t, c.watch.Leases())
}

// A ring may get other namespaces while the watch runs.
func TestWatchFollowsTheRings(t *testing.T) {
	c := newCluster(t)
	here, elsewhere := c.ns, localplane.Shared(t).Namespace(t)
	p := c.pod("shard-0")
	c.seesAll()

	move := func(to string) {
		ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: c.ring.Name}}
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"shardNamespaces":["`+to+`"]}}`))
		require.NoError(t, c.admin.Patch(t.Context(), ring, patch))
	}

	move(elsewhere)

	c.ns = elsewhere
	c.seesAll()

	c.ns = here
	c.reports(p, corev1.PodFailed, terminated)

	c.ns = elsewhere
	c.seesAll()
	require.False(t, c.watch.Ended(p.UID), "its namespace does not count")

	move(here)
	c.waitEnded(p)
}

// Everyone who may create Pods cannot fill the memory with those that have disappeared.
func TestWatchForgetsPodsThatDisappearedLongAgo(t *testing.T) {
	c := newCluster(t)
	old := c.pod("old")
	c.reports(old, corev1.PodFailed, terminated)
	c.waitEnded(old)
	c.delete(old)
	c.seesAll()
	require.True(t, c.watch.Ended(old.UID))

	c.clock.SetTime(c.clock.Now().Add(11 * time.Minute))

	last := c.pod("last-of-all")
	c.reports(last, corev1.PodFailed, terminated)
	c.waitEnded(last)
	c.delete(last)
	require.Eventually(t, func() bool { return !c.watch.Ended(old.UID) }, patience, interval)
	require.True(t, c.watch.Ended(last.UID))
}

var (
	terminated = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error"}}
	notSeen    = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137,
		Reason: "ContainerStatusUnknown"}}
	together = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137,
		Reason: "RestartingAllContainers"}}
	notListed = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: -137, Reason: "NotFound"}}
	running   = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waiting   = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
)

// status is what the kubelet reports of a Pod with these containers.
func status(phase corev1.PodPhase, states ...corev1.ContainerState) corev1.PodStatus {
	reasons := map[corev1.PodPhase]string{corev1.PodFailed: "PodFailed", corev1.PodSucceeded: "PodCompleted"}

	s := corev1.PodStatus{Phase: phase, Conditions: []corev1.PodCondition{{
		Type: corev1.ContainersReady, Status: corev1.ConditionFalse, Reason: cmp.Or(reasons[phase], "ContainersNotReady"),
	}}}
	for _, state := range states {
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{State: state})
	}

	return s
}

// declared is a status whose phase somebody else has changed to Failed.
func declared(s corev1.PodStatus) corev1.PodStatus {
	s.Phase = corev1.PodFailed

	return s
}

func disrupted(s corev1.PodStatus, reason string) corev1.PodStatus {
	s.Conditions = append(s.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: reason})

	return s
}

// A report counts only if no process of the Pod can contradict it.
func TestEnded(t *testing.T) {
	withInit := func(s corev1.PodStatus, state corev1.ContainerState) corev1.PodStatus {
		s.InitContainerStatuses = []corev1.ContainerStatus{{State: state}}

		return s
	}
	withDebugger := func(s corev1.PodStatus, state corev1.ContainerState) corev1.PodStatus {
		s.EphemeralContainerStatuses = []corev1.ContainerStatus{{State: state}}

		return s
	}

	for name, tc := range map[string]struct {
		status corev1.PodStatus
		want   bool
	}{
		"failed":                        {status(corev1.PodFailed, terminated), true},
		"succeeded":                     {status(corev1.PodSucceeded, terminated), true},
		"two containers":                {status(corev1.PodFailed, terminated, terminated), true},
		"with a sidecar":                {withInit(status(corev1.PodFailed, terminated), terminated), true},
		"evicted by the kubelet":        {disrupted(status(corev1.PodFailed, terminated), "TerminationByKubelet"), true},
		"evicted by a request":          {disrupted(status(corev1.PodFailed, terminated), "EvictionByEvictionAPI"), true},
		"runs":                          {status(corev1.PodRunning, running), false},
		"restarts in place, or deleted": {status(corev1.PodRunning, terminated), false},
		"waits for its restart":         {status(corev1.PodRunning, waiting), false},
		"not known":                     {status(corev1.PodUnknown, terminated), false},
		"failed by others":              {declared(status(corev1.PodRunning, running)), false},
		"declared failed after a crash": {declared(status(corev1.PodRunning, terminated)), false},
		"and the node is gone": {disrupted(declared(status(corev1.PodRunning, terminated)), "DeletionByPodGC"),
			false},
		"no condition": {corev1.PodStatus{Phase: corev1.PodFailed,
			ContainerStatuses: []corev1.ContainerStatus{{State: terminated}}}, false},
		"one of two runs":               {status(corev1.PodFailed, terminated, running), false},
		"the sidecar runs":              {withInit(status(corev1.PodFailed, terminated), running), false},
		"a debugger runs":               {withDebugger(status(corev1.PodFailed, terminated), running), false},
		"the kubelet has not seen it":   {status(corev1.PodFailed, notSeen), false},
		"not seen before a restart":     {status(corev1.PodFailed, together), false},
		"a virtual node has lost it":    {status(corev1.PodFailed, notListed), false},
		"rejected, so nothing ever ran": {status(corev1.PodFailed), false},
		"a container without a report":  {status(corev1.PodFailed, corev1.ContainerState{}), false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, pods.Ended(&corev1.Pod{
				Spec: corev1.PodSpec{Containers: make([]corev1.Container, 1)}, Status: tc.status,
			}))
		})
	}

	require.False(t, pods.Ended(&corev1.Pod{
		Spec: corev1.PodSpec{Containers: make([]corev1.Container, 2)}, Status: status(corev1.PodFailed, terminated),
	}), "one of two containers has no report")
}
