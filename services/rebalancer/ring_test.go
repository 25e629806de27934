package rebalancer

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// controller-runtime leaves a goroutine for a watch of metadata that ends while there is an event.
func TestMain(m *testing.M) {
	os.Exit(localplane.Main(m, v1alpha1.AddToScheme,
		goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop")))
}

// clusterRings is what a ring is.
var clusterRings = ringtest.Kind[*v1alpha1.ClusterRing]{
	New: func(name string, namespaces map[string]string) *v1alpha1.ClusterRing {
		return &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ClusterRingSpec{
			Resources: []v1alpha1.RingResource{{
				Resource: "configmaps", ControlledResources: []v1alpha1.ControlledResource{{Resource: "secrets"}},
			}},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: namespaces},
		}}
	},
	Labels:     func(r *v1alpha1.ClusterRing) (shard, drain string) { return r.LabelKeys().Shard, r.LabelKeys().Drain },
	Announced:  func(r *v1alpha1.ClusterRing) string { return r.Spec.ShardLabel },
	Conditions: func(r *v1alpha1.ClusterRing) []metav1.Condition { return r.Status.Conditions },
}

type fixture = ringtest.Fixture[*v1alpha1.ClusterRing]

// testRing is a ring whose rebalancer runs with the permissions of its service account.
type testRing struct{ *fixture }

func newTestRing(t *testing.T, change ...func(*v1alpha1.ClusterRing)) *testRing {
	t.Helper()

	return &testRing{ringtest.New(t, clusterRings, change...)}
}

// withClasses adds IngressClasses to the ring, which are cluster-scoped.
func withClasses(r *v1alpha1.ClusterRing) {
	r.Spec.Resources = append(r.Spec.Resources,
		v1alpha1.RingResource{Group: "networking.k8s.io", Resource: "ingressclasses"})
}

// View returns the view of the ring's current Leases.
func (w *testRing) View() *membership.View {
	w.Helper()

	return membership.RulesOf(w.Ring).View(w.Ring.Name, w.Leases(), nil)
}

// named returns the key of an object by its name.
func named(group, kind, namespace string) func(name string) key.Key {
	return func(name string) key.Key { return key.Key{Group: group, Kind: kind, Namespace: namespace, Name: name} }
}

// owners returns a function that returns the current shard of the key of a name.
func (w *testRing) owners(of func(name string) key.Key) func(name string) string {
	w.Helper()

	view := w.View()

	return func(name string) string {
		shard, ok := view.Owner(of(name))
		require.True(w, ok, "no shard is available")

		return shard
	}
}

// Owner returns the shard that owns the key of the named ConfigMap.
func (w *testRing) Owner(name string) string {
	w.Helper()

	return w.owners(named("", "ConfigMap", w.Namespace))(name)
}

// NamesOf returns n names of ConfigMaps whose keys the shard currently owns.
func (w *testRing) NamesOf(shard string, n int) []string {
	w.Helper()

	return w.fixture.NamesOf(shard, n, w.owners(named("", "ConfigMap", w.Namespace)))
}

// Converged waits until the status of the ring reports that every object is at its shard among those of the
// fingerprint.
func (w *testRing) Converged(fingerprint string) {
	w.Helper()

	require.Eventually(w, func() bool {
		return w.assignment().Fingerprint == fingerprint
	}, 30*time.Second, 20*time.Millisecond, "the ring should converge: %+v", &w.Ring.Status)
}

// AtRest waits until the ring has converged for the current shards.
func (w *testRing) AtRest() {
	w.Helper()
	w.Converged(w.View().Fingerprint())
}

// start runs the rebalancer until the test ends or stop is called.
func (w *testRing) start(args ...string) (stop func()) {
	w.Helper()

	cmd := NewCommand()
	cmd.SetArgs(append([]string{
		"--kubeconfig", w.Plane.ServiceKubeconfig(w, name), "--leader-elect=false", "--settle-period=100ms",
		"--metrics-bind-address=0", "--health-probe-bind-address=0", "--log-level=error",
	}, args...))

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)

	go func() { ended <- cmd.ExecuteContext(ctx) }()

	running := true
	stop = func() {
		if running {
			running = false

			cancel()
			require.NoError(w, <-ended)
		}
	}

	w.Cleanup(stop)

	return stop
}

// noticed is longer than the 15 seconds within which the rebalancer has to notice that the API server's resources have
// changed.
const noticed = time.Minute

// says waits until the condition Assigned has the reason, and a message that contains the texts.
func (w *testRing) says(reason string, texts ...string) string {
	w.Helper()

	message := ""

	require.Eventually(w, func() bool {
		message = w.Assigned(reason).Message

		return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(message, text) })
	}, noticed, 20*time.Millisecond, "Assigned should be %s and say %q; last: %s", reason, texts, &message)

	return message
}

// announces waits until an event of the ring has the reason and contains the text.
func (w *testRing) announces(reason, text string) {
	w.Helper()
	require.Eventually(w, func() bool {
		var list eventsv1.EventList
		require.NoError(w, w.Client.List(w.Context(), &list))

		return slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Name == w.Ring.Name && e.Reason == reason && strings.Contains(e.Note, text)
		})
	}, noticed, 50*time.Millisecond, "an event should report %s: %s", reason, text)
}

// assignment reads the ring, and returns what its status says about the objects; empty if it says nothing.
func (w *testRing) assignment() v1alpha1.AssignmentStatus {
	w.Helper()
	require.NoError(w, w.Client.Get(w.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))

	return ptr.Deref(w.Ring.Status.Assignment, v1alpha1.AssignmentStatus{})
}

// edit changes the ring's spec, even if others write to the ring at the same time.
func (w *testRing) edit(change func(*v1alpha1.ClusterRingSpec)) {
	w.Helper()
	require.NoError(w, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := w.Client.Get(w.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring); err != nil {
			return err
		}

		change(&w.Ring.Spec)

		return w.Client.Update(w.Context(), w.Ring)
	}))
}

// release makes a shard release its Lease.
func (w *testRing) release(shard string) {
	w.Helper()
	require.NoError(w, w.Shards[shard].Release(w.Context()))
}

// handOver waits until a main object is drained, acknowledges that, and waits until the object, and what follows it, is
// at the next shard; with "", at none.
func (w *testRing) handOver(from, to string, main client.Object, followers ...client.Object) {
	w.Helper()
	w.Eventually(ringtest.Placed{Shard: from, Drain: true}, main)

	for _, f := range followers {
		require.Equal(w, ringtest.Placed{Shard: from}, w.Placed(f), "it should wait for its owner")
	}

	w.Acknowledge(main)
	w.Eventually(ringtest.Placed{Shard: to}, append(followers, main)...)
}

// delete deletes the ring.
func (w *testRing) delete() {
	w.Helper()
	require.NoError(w, w.Client.Delete(w.Context(), w.Ring))
}

// gone waits until the ring no longer exists.
func (w *testRing) gone() {
	w.Helper()
	require.Eventually(w, func() bool {
		return apierrors.IsNotFound(w.Client.Get(w.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
	}, noticed, 20*time.Millisecond, "the ring should disappear: %+v", &w.Ring.Status)
}
