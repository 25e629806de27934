package rebalancer

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

var counted = regexp.MustCompile(`(?m)^apiserver_request_total{.*resource="componentstatuses".*} (\S+)$`)

// asked returns how many requests for componentstatuses the API server has answered.
func (w *testRing) asked() (n int) {
	w.Helper()

	c, err := kubernetes.NewForConfig(w.Plane.Config)
	require.NoError(w, err)

	body, err := c.RESTClient().Get().AbsPath("/metrics").DoRaw(w.Context())
	require.NoError(w, err)

	for _, m := range counted.FindAllStringSubmatch(string(body), -1) {
		requests, err := strconv.ParseFloat(m[1], 64)
		require.NoError(w, err)

		n += int(requests)
	}

	return n
}

// A resource that cannot be watched and patched is reported, costs nothing, and leaves with the ring's spec, or with the ring.
func TestResourceWithoutVerbs(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Resource: "componentstatuses"})
	})
	w.Join("a")

	before := w.asked()

	w.start()
	require.Contains(t, w.Assigned(v1alpha1.ReasonResourcesMissing).Message,
		"componentstatuses cannot be sharded, because the API server serves it without the verbs patch, watch")
	w.Eventually(ringtest.Placed{Shard: "a"}, w.Main("other", ""))
	require.Equal(t, before, w.asked(), "nobody should ask for what is known")

	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.Resources = s.Resources[:1] })
	w.Assigned(v1alpha1.ReasonAllAssigned)
	w.AtRest()

	w.edit(func(s *v1alpha1.ClusterRingSpec) {
		s.Resources = append(s.Resources, v1alpha1.RingResource{Resource: "componentstatuses"})
	})
	w.Assigned(v1alpha1.ReasonResourcesMissing)
	require.NoError(t, w.Shards["a"].Release(t.Context()))
	require.NoError(t, w.Client.Delete(t.Context(), w.Ring))
	w.gone()
	require.Equal(t, before, w.asked())
}

// Such a resource may be in the status, where an earlier version has recorded it.
func TestResourceWithoutVerbsThatIsRemembered(t *testing.T) {
	w := newTestRing(t)
	w.Join("a")
	require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))

	earlier := clusterring.StatusWriter{Client: w.Client, Owner: name, Clock: clock.RealClock{}}
	require.NoError(t, earlier.Write(t.Context(), w.Ring, clusterring.StatusPart{
		Assignment: &v1alpha1.AssignmentStatus{Resources: []v1alpha1.AssignedResource{{Resource: "configmaps"}, {Resource: "componentstatuses"}}},
	}))
	w.start()
	w.AtRest()
	require.Len(t, w.Ring.Status.Assignment.Resources, 1)
	require.NoError(t, w.Shards["a"].Release(t.Context()))
	require.NoError(t, w.Client.Delete(t.Context(), w.Ring))
	w.gone()
}

// The API accepts rings with 256 kinds, and the rebalancer works on all that are served.
func TestManyKinds(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		for i := len(r.Spec.Resources); i < 256; i++ {
			r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: "kinds.example.com", Resource: fmt.Sprint("kind", i)})
		}
	})
	w.Join("a")
	w.start()

	main := w.Main("main", "")
	w.Eventually(ringtest.Placed{Shard: "a"}, main, w.Child(main, ""))
	w.Assigned(v1alpha1.ReasonResourcesMissing)
}

// A resource that several main resources list as controlled is one resource of the ring.
func TestControlledByTwo(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{
			Group: "networking.k8s.io", Resource: "ingressclasses", ControlledResources: r.Spec.Resources[0].ControlledResources,
		})
	})
	w.Join("a")
	w.start()

	class := w.class(w.Namespace, "")
	of := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "of-class"}}
	require.NoError(t, controllerutil.SetControllerReference(class, of, w.Client.Scheme()))
	require.NoError(t, w.Client.Create(t.Context(), of))

	main := w.Main("main", "")
	w.Eventually(ringtest.Placed{Shard: "a"}, class, of, main, w.Child(main, ""))
	w.AtRest()

	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.Resources[0].ControlledResources = nil })
	w.AtRest()
	require.Equal(t, ringtest.Placed{Shard: "a"}, w.Placed(of))
}

// Users may label objects with names that no shard ever had. The status does not name them: nobody has to keep a Lease from them.
func TestMadeUpShards(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	dead := w.Main(w.NamesOf("a", 1)[0], "b")

	for i := range 30 {
		w.Main(fmt.Sprint("made-up-", i), fmt.Sprint("made-up-", i))
	}

	require.NoError(t, w.Shards["b"].Release(t.Context()))
	w.start()

	said := sets.New[string]()

	require.Eventually(t, func() bool {
		require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))

		s := w.Ring.Status.Assignment
		if s == nil {
			return false
		}

		said.Insert(s.LostShards...)

		return s.Unassigned >= 30
	}, 30*time.Second, time.Millisecond)
	w.Eventually(ringtest.Placed{Shard: "a"}, dead)
	require.Empty(t, said.Delete("b").UnsortedList())
}
