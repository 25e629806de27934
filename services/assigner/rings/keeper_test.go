package rings

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/admission"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/internal/resources/resourcestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newRing(generation int64, names ...string) *v1alpha1.ClusterRing {
	r := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "r", UID: "1", Generation: generation}}
	for _, n := range names {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: "example.org", Resource: n})
	}

	return r
}

func serving(kinds ...string) []resources.Resource {
	var all []resources.Resource
	for _, k := range kinds {
		all = append(all, resourcestest.Namespaced("example.org", "v1", strings.ToLower(k)+"s", k))
	}

	return all
}

// TestResourcesThatChange follows one ring through time: what the API server serves may change.
func TestResourcesThatChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &resourcestest.Discovery{}
		d.Serve(serving("Site")...)

		k := &Keeper{Resources: resourcestest.Resolver(t, d), Store: NewStore(membership.NewIndex(), nil)}
		ring := newRing(1, "sites", "shops")
		look := func() *resources.Set {
			set := k.resolve(ring)
			k.Store.put(admission.Facts{Name: ring.Name, Resources: set}, ring.UID, ring.Generation)

			return set
		}
		later := func() *resources.Set {
			<-clock.RealClock{}.After(time.Minute)

			return look()
		}

		first := look()
		require.Len(t, first.Main(), 1)
		require.Same(t, first, later(), "nobody is told that nothing has changed")

		d.Serve(serving("Site", "Shop")...)

		second := later()
		require.Len(t, second.Main(), 2)

		d.Fail(errors.New("the API server is down"))
		require.Same(t, second, later(), "what is known stays known")

		d.Serve(serving("Shop")...)
		require.Len(t, later().Main(), 1)

		// Another spec, or another ring of the same name, is looked at anew.
		ring.Generation++
		third := look()
		ring.UID = "2"
		require.NotSame(t, third, look())

		// That a resource is missing for another reason is news for people.
		fourth := later()
		d.Fail(errors.New("the API server is down"))
		require.NotEqual(t, fourth.MissingMessage(), later().MissingMessage())
	})
}

func lease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{contract.LabelClusterRing: "r"}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new(name)},
	}
}

// TestConcurrentNews: no matter who publishes last, the newest view is the one that stays.
func TestConcurrentNews(t *testing.T) {
	index := membership.NewIndex()
	s := NewStore(index, nil)
	s.put(admission.Facts{Name: "r", Resources: &resources.Set{}}, "1", 1)

	var wg sync.WaitGroup

	for i := range 8 {
		wg.Go(func() {
			for j := range 20 {
				index.Upsert(lease(fmt.Sprintf("%d-%d", i, j)))

				if i%2 == 0 {
					s.refresh("r")
				} else {
					s.put(admission.Facts{Name: "r", Resources: &resources.Set{}}, "1", int64(j))
				}

				require.NotNil(t, s.Ring("r"))
			}
		})
	}

	wg.Wait()
	require.Len(t, s.Ring("r").Facts().View.AvailableShards(), 160)
}
