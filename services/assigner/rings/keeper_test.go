package rings

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/assigner/admission"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// discovery is what an API server serves, and how often it was asked.
type discovery struct {
	kinds []string
	err   error
	asked int
}

// failing is a mapper whose discovery has failed.
type failing struct {
	meta.RESTMapper
	err error
}

func (f failing) KindFor(schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	return schema.GroupVersionKind{}, f.err
}

func (d *discovery) mapper() (meta.RESTMapper, error) {
	d.asked++

	if d.err != nil {
		return failing{err: d.err}, nil //nolint:nilerr // the mapper can be made, and fails when it is asked
	}

	m := meta.NewDefaultRESTMapper(nil)
	for _, k := range d.kinds {
		m.Add(schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: k}, meta.RESTScopeNamespace)
	}

	return m, nil
}

func newRing(generation int64, names ...string) *v1alpha1.ClusterRing {
	r := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "r", UID: "1", Generation: generation}}
	for _, n := range names {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: "example.org", Resource: n})
	}

	return r
}

// TestMissingResources follows one ring through time: how often discovery is asked, and what is known.
func TestMissingResources(t *testing.T) {
	d := &discovery{kinds: []string{"Site"}}
	clk := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	k := &Keeper{Discover: d.mapper, Clock: clk}
	ring := newRing(1, "sites", "shops")

	resolve := func() (found int, retry time.Duration) {
		t.Helper()

		set, retry, err := k.resolve(ring)
		require.NoError(t, err)

		return len(set.Main()), retry
	}
	pass := func(d time.Duration) { clk.SetTime(clk.Now().Add(d)) }

	// Looked for ever less often while it is missing.
	for _, ms := range []int64{100, 200, 400, 800, 1600, 3200, 5000, 5000} {
		want := time.Duration(ms) * time.Millisecond
		found, retry := resolve()
		require.Equal(t, 1, found)
		require.Equal(t, want, retry)

		asked := d.asked
		_, retry = resolve()
		require.Equal(t, want, retry, "other events do not hurry it")
		require.Equal(t, asked, d.asked)
		pass(want)
	}

	// What is known stays known while discovery fails.
	d.err = errors.New("the API server is down")
	found, retry := resolve()
	require.Equal(t, 1, found)
	require.Equal(t, lastRetry, retry)

	// Found at last, and from then on looked for now and then.
	d.err, d.kinds = nil, []string{"Site", "Shop"}

	pass(lastRetry)

	found, retry = resolve()
	require.Equal(t, 2, found)
	require.Equal(t, lookAgain, retry)

	asked := d.asked

	pass(lookAgain - 1)

	_, retry = resolve()
	require.Equal(t, time.Millisecond, retry)
	require.Equal(t, asked, d.asked)

	// Another spec, or another ring of the same name, is looked at anew.
	ring = newRing(2, "sites", "houses")
	found, retry = resolve()
	require.Equal(t, 1, found)
	require.Equal(t, firstRetry, retry)
	require.Equal(t, asked+1, d.asked)

	ring.UID = "2"
	d.kinds = append(d.kinds, "House")

	pass(time.Minute)

	found, retry = resolve()
	require.Equal(t, 2, found)
	require.Equal(t, lookAgain, retry)
}

// TestResourcesThatChange follows a ring whose resources were all found: what the API server serves may change.
func TestResourcesThatChange(t *testing.T) {
	d := &discovery{kinds: []string{"Site", "Shop"}}
	clk := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	k := &Keeper{Discover: d.mapper, Clock: clk}
	ring := newRing(1, "sites", "shops")

	resolve := func(after time.Duration) *resources.Set {
		t.Helper()
		clk.SetTime(clk.Now().Add(after))

		set, _, err := k.resolve(ring)
		require.NoError(t, err)

		return set
	}

	first := resolve(0)
	require.Empty(t, first.Missing())
	require.Same(t, first, resolve(lookAgain), "nobody is told that nothing has changed")
	require.Equal(t, 2, d.asked)

	d.err = errors.New("the API server is down")
	require.Same(t, first, resolve(lookAgain))
	d.err = nil

	d.kinds = []string{"Site"}
	require.Same(t, first, resolve(lookAgain-1), "it is not time yet")
	require.Len(t, resolve(1).Missing(), 1)

	// Made anew, and looked for like any that is missing.
	d.kinds = append(d.kinds, "Shop")
	require.Len(t, resolve(firstRetry).Missing(), 1, "discovery is shared for a moment")
	require.Empty(t, resolve(mapperAge).Missing())
}

func lease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelClusterRing: "r"}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new(name)},
	}
}

func TestStore(t *testing.T) {
	index := membership.NewIndex()

	var forgotten, told []string

	s := NewStore(index, func(ring string) { forgotten = append(forgotten, ring) })
	s.Subscribe(func(ring string) { told = append(told, ring) })

	set := &resources.Set{}
	put := func(generation int64, set *resources.Set) {
		s.put(admission.Facts{Name: "r", Resources: set}, "1", generation)
	}

	require.Nil(t, s.Ring("r"))
	s.refresh("r")
	require.Nil(t, s.Ring("r"), "news of shards do not make a ring")
	s.remove("r")
	require.Empty(t, told)

	put(1, set)
	require.NotNil(t, s.Ring("r"))
	require.Same(t, set, s.Resources("r", "1", 1))
	require.Nil(t, s.Resources("r", "1", 2), "not known for that generation")
	require.Nil(t, s.Resources("r", "2", 1), "not known for that ring")
	require.Equal(t, []string{"r"}, told)

	index.Upsert(lease("a"))
	require.False(t, s.current("r", "1"))
	s.refresh("r")
	require.True(t, s.current("r", "1"))
	require.Equal(t, []string{"a"}, s.Ring("r").Facts().View.AvailableShards())
	require.Same(t, set, s.Resources("r", "1", 1))

	put(1, set)
	require.Equal(t, []string{"r"}, told, "nothing has changed")
	put(1, &resources.Set{})
	put(2, s.Resources("r", "1", 1))
	require.Equal(t, []string{"r", "r", "r"}, told)
	require.Empty(t, forgotten)

	s.remove("r")
	require.Nil(t, s.Ring("r"))
	require.Equal(t, []string{"r"}, forgotten)
	require.Len(t, told, 4)
}

// TestConcurrentNews: whoever publishes last, the newest view is the one that stays.
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
