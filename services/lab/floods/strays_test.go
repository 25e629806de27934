package floods_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// strays is how many Leases there are of rings that do not exist.
const strays = 10_000

// TestLeasesOfRingsThatDoNotExist: a shard is given up in time, however many Leases of rings that do not exist appear, fall silent, and are renewed.
func TestLeasesOfRingsThatDoNotExist(t *testing.T) {
	const d = 4 * time.Second

	plane, ring := localplane.Shared(t), "among-strays"
	namespace, madeUp := newRing(t, plane, ring), plane.Namespace(t)
	h := begin(t)

	t.Cleanup(func() {
		require.NoError(t, plane.Client.DeleteAllOf(context.WithoutCancel(t.Context()), &coordinationv1.Lease{}, client.InNamespace(madeUp)))
	})

	crash := map[string]func(){}

	for i := range 5 { // of which most stay, because shards that fall silent together get more time
		shard := &leasetest.Shard{Client: plane.Client, Ring: ring, Namespace: namespace, Name: fmt.Sprintf("shard-%d", i), Duration: d}
		require.NoError(t, shard.Acquire(t.Context()))

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)

		go func() { done <- shard.Run(ctx) }()

		crash[shard.Name] = func() {
			cancel()
			require.NoError(t, <-done)
		}
	}

	awaitShards(t, plane, ring, counts{5, 5})

	stray := func(i int) *coordinationv1.Lease {
		l := leaseOf(fmt.Sprintf("made-up-%d", i), madeUp, fmt.Sprintf("stray-%d", i))
		l.Spec.LeaseDurationSeconds = ptr.To[int32](1)

		return l
	}
	renewal := func(i int) error {
		at := metav1.NowMicro().Format(metav1.RFC3339Micro)
		return plane.Client.Patch(t.Context(), stray(i), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, at)))
	}

	// falls has a shard fall silent, and renews the strays until its Lease is taken.
	falls := func(name string) {
		t.Helper()
		crash[name]()
		delete(crash, name)

		began, taken := clock.RealClock{}.Now(), false
		for i := 0; !taken; i += 200 {
			each(t, 200, func(n int) error { return renewal((i + n) % strays) })

			l := &coordinationv1.Lease{}
			require.NoError(t, plane.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, l))
			taken = *l.Spec.HolderIdentity == contract.LeaseControllerIdentity

			require.Less(t, clock.RealClock{}.Since(began), 3*d, "%s is not given up", name)
		}

		t.Logf("%s was given up after %s", name, clock.RealClock{}.Since(began))
	}

	each(t, strays, func(i int) error { return plane.Client.Create(t.Context(), stray(i)) })
	falls("shard-0")
	each(t, strays, renewal)
	falls("shard-1")

	for _, end := range crash {
		end()
	}

	h.survived(namespace, "stray-", "made-up-")
}
