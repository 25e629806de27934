package query_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/query"
)

// counting is a mapper that knows ConfigMaps and counts how often it is asked.
type counting struct {
	*meta.DefaultRESTMapper

	asked int
}

func newCounting() *counting {
	m := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
	m.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)

	return &counting{DefaultRESTMapper: m}
}

func (c *counting) KindFor(resource schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	c.asked++
	return c.DefaultRESTMapper.KindFor(resource)
}

func ringOf(resources ...string) *v1alpha1.ClusterRing {
	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "example", UID: "1", Generation: 1}}
	for _, r := range resources {
		ring.Spec.Resources = append(ring.Spec.Resources, v1alpha1.RingResource{Resource: r})
	}

	return ring
}

func TestResourcesAreAskedForOnce(t *testing.T) {
	mapper, clock := newCounting(), testclock.NewFakeClock(time.Unix(0, 0))
	known := query.NewResources(mapper, clock)
	ring := ringOf("configmaps")

	for range 3 {
		require.Len(t, known.Of(ring).Main(), 1)
		clock.Step(time.Hour)
	}
	require.Equal(t, 1, mapper.asked)

	ring.Generation++
	known.Of(ring)
	require.Equal(t, 2, mapper.asked, "the ring has changed")
	ring.UID = types.UID("2")
	known.Of(ring)
	require.Equal(t, 3, mapper.asked, "it is another ring")
	known.Keep(nil)
	known.Of(ring)
	require.Equal(t, 4, mapper.asked, "the ring was gone")
	known.Keep([]*v1alpha1.ClusterRing{ring})
	known.Of(ring)
	require.Equal(t, 4, mapper.asked, "the ring was kept")
}

func TestMissingResourcesAreAskedForNowAndThen(t *testing.T) {
	mapper, clock := newCounting(), testclock.NewFakeClock(time.Unix(0, 0))
	known := query.NewResources(mapper, clock)
	ring := ringOf("foos")

	for range 100 {
		require.Len(t, known.Of(ring).Missing(), 1)
	}
	require.Equal(t, 1, mapper.asked)

	mapper.Add(corev1.SchemeGroupVersion.WithKind("Foo"), meta.RESTScopeNamespace)
	clock.Step(time.Minute)
	require.Empty(t, known.Of(ring).Missing())
}
