package rings_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources/resourcestest"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

func ringOf(resources ...string) *v1alpha1.ClusterRing {
	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "example", UID: "1", Generation: 1}}
	for _, r := range resources {
		ring.Spec.Resources = append(ring.Spec.Resources, v1alpha1.RingResource{Resource: r})
	}

	return ring
}

func TestResourcesAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &resourcestest.Discovery{}
		known := rings.NewResources(resourcestest.Resolver(t, d))
		ring := ringOf("configmaps")

		first := known.Of(ring)
		require.Len(t, first.Main(), 1)
		<-clock.RealClock{}.After(time.Minute)
		require.Same(t, first, known.Of(ring))

		ring.Generation++
		second := known.Of(ring)
		require.NotSame(t, first, second, "the ring has changed")

		ring.UID = types.UID("2")
		third := known.Of(ring)
		require.NotSame(t, second, third, "it is another ring")
		require.Same(t, third, known.Of(ring))
	})
}

func TestMissingResourcesAppear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &resourcestest.Discovery{}
		known := rings.NewResources(resourcestest.Resolver(t, d))
		ring := ringOf("foos")

		for range 100 {
			require.Len(t, known.Of(ring).Missing(), 1)
		}

		synctest.Wait()
		require.LessOrEqual(t, d.Asked(), 2, "questions do not turn into as many requests")
		d.Serve(resourcestest.Namespaced("", "v1", "foos", "Foo"))
		<-clock.RealClock{}.After(time.Minute)
		require.Empty(t, known.Of(ring).Missing())
	})
}

func TestWhatIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &resourcestest.Discovery{}
		known := rings.NewResources(resourcestest.Resolver(t, d))

		for _, ref := range []rings.Reference{{Resource: "configmaps"}, {Kind: "ConfigMap"}} {
			found, err := known.Find(ref)
			require.NoError(t, err)
			require.Equal(t, "configmaps", found.GVR.Resource)
		}

		for _, ref := range []rings.Reference{{Resource: "configmap"}, {Kind: "Configmap"}} {
			_, err := known.Find(ref)
			require.ErrorIs(t, err, rings.ErrNotServed)
			require.ErrorContains(t, err, "did you mean configmaps?")
		}

		asked := d.Asked()
		_, err := known.Find(rings.Reference{Resource: "shops"})
		require.ErrorIs(t, err, rings.ErrNotServed)
		synctest.Wait()
		require.Equal(t, asked, d.Asked(), "nobody has others asked by naming what is not there")

		d.Fail(errors.New("the API server is down"))
		<-clock.RealClock{}.After(time.Minute)

		_, err = known.Find(rings.Reference{Resource: "shops"})
		require.ErrorIs(t, err, rings.ErrUnavailable)
	})
}
