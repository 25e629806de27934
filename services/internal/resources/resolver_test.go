package resources

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	fakediscovery "k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

const sites = "example.org"

// served is what a fake API server serves. Only one goroutine uses it at a time.
type served struct {
	// versions of the group, the preferred one first, with the resources of each.
	versions []string
	lists    map[string][]metav1.APIResource
	failed   map[string]bool
	// err fails all requests.
	err error
	// only hides everything except the core group.
	only bool
	// took is the duration of an answer.
	took time.Duration

	asked, at atomic.Int64
}

var (
	websites = metav1.APIResource{
		Name: "websites", SingularName: "website", ShortNames: []string{"ws"}, Kind: "Website", Namespaced: true,
		Verbs: verbs,
	}
	global = metav1.APIResource{Name: "websites", SingularName: "website", ShortNames: []string{"ws"}, Kind: "Website",
		Verbs: verbs}

	verbs = metav1.Verbs{"create", "get", "list", "patch", "watch"}
)

func serving(versions ...string) *served {
	s := &served{versions: versions, lists: map[string][]metav1.APIResource{}, failed: map[string]bool{}}
	for _, v := range versions {
		s.lists[v] = []metav1.APIResource{websites, {Name: "websites/status", Kind: "Website", Namespaced: true}}
	}

	return s
}

func (s *served) GroupsAndResources(ctx context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	if !s.at.CompareAndSwap(0, 1) {
		panic("discovery is asked twice at a time")
	}
	defer s.at.Store(0)

	s.asked.Add(1)
	changes.Add(1)

	if s.took > 0 { // otherwise, [synctest.Wait] must not return in the middle of an answer
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-clock.RealClock{}.After(s.took):
		}
	}

	if s.err != nil {
		return nil, nil, s.err
	}

	failed := map[schema.GroupVersion]error{}
	fake := &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{Resources: []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "configmaps", SingularName: "configmap", Kind: "ConfigMap", Namespaced: true, Verbs: verbs},
		}},
	}}}

	if !s.only {
		fake.Resources = append(fake.Resources, &metav1.APIResourceList{GroupVersion: v1alpha1.GroupVersion.String()})

		for _, v := range s.versions {
			gv := schema.GroupVersion{Group: sites, Version: v}
			if s.failed[v] {
				failed[gv] = errors.New("stale")
				continue
			}

			fake.Resources = append(fake.Resources,
				&metav1.APIResourceList{GroupVersion: gv.String(), APIResources: s.lists[v]})
		}
	}

	groups, lists, err := fake.ServerGroupsAndResourcesWithContext(ctx)
	if len(failed) > 0 {
		err = &discovery.ErrGroupDiscoveryFailed{Groups: failed}
	}

	return groups, lists, err
}

// bubble is a test in virtual time, with a running resolver that has looked once.
type bubble struct {
	*testing.T

	r *Resolver
}

// resolving runs a resolver in a bubble until f returns.
func resolving(t *testing.T, s *served, f func(t bubble)) {
	t.Helper()

	synctest.Test(t, func(t *testing.T) {
		r := NewResolver(s.GroupsAndResources, clock.RealClock{}, logr.Discard())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)

		go func() { ended <- r.Start(ctx) }()

		require.NoError(t, r.Await(t.Context()))
		f(bubble{t, r})
		cancel()
		require.NoError(t, <-ended)
	})
}

// changes orders a test's changes before the following looks, for the race detector: the passage of time does not.
var changes atomic.Int64

// pass lets time pass, and waits until its effects are over.
func pass(d time.Duration) {
	changes.Add(1)

	<-clock.RealClock{}.After(d)
	synctest.Wait()
}

func ringOf(names ...string) v1alpha1.ClusterRingSpec {
	var s v1alpha1.ClusterRingSpec
	for _, n := range names {
		s.Resources = append(s.Resources, v1alpha1.RingResource{Group: sites, Resource: n})
	}

	return s
}

func missingOf(t testing.TB, r *Resolver, name string) Missing {
	t.Helper()

	m := r.Resolve(ringOf(name)).Missing()
	require.Len(t, m, 1)

	return m[0]
}

func TestResolverFollowsVersionAndScope(t *testing.T) {
	s := serving("v1beta1")
	resolving(t, s, func(t bubble) {
		r := t.r

		var told int

		r.Subscribe(func() { told++ })

		before := r.Resolve(ringOf("websites"))
		require.Equal(t, []Resource{{
			GVR:        schema.GroupVersionResource{Group: sites, Version: "v1beta1", Resource: "websites"},
			Kind:       schema.GroupVersionKind{Group: sites, Version: "v1beta1", Kind: "Website"},
			Namespaced: true,
		}}, before.Main())

		s.versions, s.lists["v1"] = []string{"v1", "v1beta1"},
			[]metav1.APIResource{{Name: "others", Kind: "Other", Verbs: verbs}}

		pass(lookEvery)
		require.Equal(t, 1, told)
		require.True(t, before.Equal(r.Resolve(ringOf("websites"))), "the preferred version does not serve it")

		s.lists["v1"] = []metav1.APIResource{websites}

		pass(lookEvery - time.Millisecond)
		require.Equal(t, 1, told)
		pass(time.Millisecond)
		require.Equal(t, 2, told)

		after := r.Resolve(ringOf("websites"))
		require.False(t, before.Equal(after))
		require.Equal(t, "v1", after.Main()[0].GVR.Version)
		require.Equal(t, "v1", after.Main()[0].Kind.Version)

		s.lists["v1"] = []metav1.APIResource{global}

		r.Ask()
		pass(lookGap)
		require.Equal(t, 3, told)
		require.False(t, after.Equal(r.Resolve(ringOf("websites"))))
		require.False(t, r.Resolve(ringOf("websites")).Main()[0].Namespaced)

		pass(10 * lookEvery)
		require.Equal(t, 3, told, "nobody is told that nothing has changed")
	})
}

func TestResolverBelievesAbsenceOnlyAfterAskingAgain(t *testing.T) {
	s := serving("v1")
	resolving(t, s, func(t bubble) {
		r := t.r
		pass(lookGap)

		s.took = 100 * time.Millisecond

		r.Ask()
		pass(time.Millisecond)

		// A look is in progress, whose answer may be older.
		m := missingOf(t, r, "others")
		require.True(t, m.Absent())
		require.False(t, m.Gone())

		var told int

		r.Subscribe(func() { told++ })
		pass(s.took)
		require.False(t, missingOf(t, r, "others").Gone(), "that look had begun before the question")
		require.Zero(t, told)

		pass(lookGap + s.took)
		require.True(t, missingOf(t, r, "others").Gone())
		require.Equal(t, 1, told)

		s.err = errors.New("the API server is down")

		pass(lookEvery + s.took)

		m = missingOf(t, r, "others")
		require.False(t, m.Gone())
		require.False(t, m.Absent())
		require.ErrorIs(t, m.Err, s.err)
		require.Len(t, r.Resolve(ringOf("websites")).Main(), 1, "what was known stays known")
	})
}

func TestResolverKeepsGroupsThatFail(t *testing.T) {
	s := serving("v1", "v1beta1")
	resolving(t, s, func(t bubble) {
		r := t.r

		s.lists["v1beta1"] = append(s.lists["v1beta1"], metav1.APIResource{Name: "news", Kind: "News", Verbs: verbs})

		known := r.Resolve(ringOf("websites"))

		s.failed["v1"] = true

		pass(lookEvery)
		require.True(t, known.Equal(r.Resolve(ringOf("websites"))), "it stays in its version, though another one has it too")
		require.Equal(t, "v1beta1", r.Resolve(ringOf("news")).Main()[0].GVR.Version, "what can be seen is believed")

		s.failed["v1beta1"] = true

		pass(lookEvery)
		require.True(t, known.Equal(r.Resolve(ringOf("websites"))), "the whole group fails")
		require.Len(t, r.Resolve(ringOf("news")).Main(), 1)

		m := missingOf(t, r, "websits")
		require.False(t, m.Absent())
		pass(lookEvery)
		require.False(t, missingOf(t, r, "websits").Gone(), "nobody can know")
		require.Empty(t,
			r.Resolve(v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Resource: "configmaps"}}}).Missing())

		// A version is visible again, without the resource: the content of the failing version is not known.
		s.failed = map[string]bool{"v1beta1": true}
		s.lists["v1"] = nil

		pass(lookEvery)

		m = missingOf(t, r, "websites")
		require.False(t, m.Absent())

		s.failed = map[string]bool{}
		s.lists["v1beta1"] = nil

		pass(missingEvery)
		require.True(t, missingOf(t, r, "websites").Gone())

		s.versions = nil

		pass(missingEvery)
		require.True(t, missingOf(t, r, "websites").Gone(), "the group is gone with it")
	})
}

// A client without permission gets an empty answer from client-go, and a starting API server may return a short one.
func TestResolverDoesNotBelieveAnEmptyAnswer(t *testing.T) {
	s := serving("v1")
	resolving(t, s, func(t bubble) {
		r := t.r
		s.only = true

		pass(lookEvery)
		require.Len(t, r.Resolve(ringOf("websites")).Main(), 1)
		require.False(t, missingOf(t, r, "others").Absent())
	})
}

func TestResolverSaysWhatMayHaveBeenMeant(t *testing.T) {
	s := serving("v1")
	s.lists["v1"] = append(s.lists["v1"], metav1.APIResource{Name: "tags", Kind: "Tag", SingularName: "tag", Verbs: verbs})

	resolving(t, s, func(t bubble) {
		r := t.r
		for written, meant := range map[string]string{
			"website": "websites.example.org", "ws": "websites.example.org", "configmaps": "configmaps",
			"shops": "",
		} {
			_, err := r.Find(schema.GroupResource{Group: sites, Resource: written})

			e, ok := errors.AsType[*NotServedError](err)
			require.True(t, ok, written)
			require.Equal(t, meant, e.Suggestion, written)
			require.True(t, meta.IsNoMatchError(err))
		}

		require.Equal(t, "the API server does not serve shops.example.org, website.example.org (did you mean "+
			"websites.example.org?); "+
			"is the CustomResourceDefinition installed?", Message(r.Resolve(ringOf("website", "shops", "websites")).Missing()))

		pass(lookGap)
		require.True(t, missingOf(t, r, "website").Gone(), "a typo is not served")
	})
}

func TestResolverFindsKinds(t *testing.T) {
	s := serving("v1")
	resolving(t, s, func(t bubble) {
		r := t.r
		found, err := r.OfKind(schema.GroupKind{Group: sites, Kind: "Website"})
		require.NoError(t, err)
		require.Equal(t, "websites", found.GVR.Resource)

		for _, gk := range []schema.GroupKind{{Group: sites, Kind: "website"}, {Group: sites, Kind: "Websites"},
			{Group: "none", Kind: "Website"}} {
			_, err = r.OfKind(gk)
			require.True(t, meta.IsNoMatchError(err), gk)
		}
	})
}

// TestResolverAsks checks how often discovery is queried, whatever the rings need.
func TestResolverAsks(t *testing.T) {
	s := serving("v1")
	resolving(t, s, func(t bubble) {
		r := t.r
		since := func() int64 { return s.asked.Swap(0) }

		require.EqualValues(t, 1, since())

		for range 1000 {
			r.Resolve(ringOf("websites"))
		}

		pass(10 * lookEvery)
		require.EqualValues(t, 10, since(), "once in a while")
		pass(lookGap)

		for range 1000 {
			r.Ask()
		}

		pass(lookGap - time.Millisecond)
		require.EqualValues(t, 1, since(), "at once, together")
		r.Ask()
		synctest.Wait()
		require.Zero(t, since(), "not twice within a second")
		pass(time.Millisecond)
		require.EqualValues(t, 1, since())

		// A missing resource is looked for immediately, then less and less often.
		pass(lookEvery)
		since()
		pass(lookGap)
		r.Resolve(ringOf("others"))
		r.Resolve(ringOf("others"))
		synctest.Wait()
		require.EqualValues(t, 1, since())

		for _, after := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second,
			5 * time.Second} {
			pass(after - time.Millisecond)
			require.Zero(t, since())
			pass(time.Millisecond)
			require.EqualValues(t, 1, since())
		}

		// Another missing resource is a reason to look soon again; the same one is not.
		r.Resolve(ringOf("others"))
		pass(lookGap)
		require.Zero(t, since())
		r.Resolve(ringOf("more"))
		synctest.Wait()
		require.EqualValues(t, 1, since())

		// Nobody misses them any more.
		pass(forgetAfter + lookEvery)
		since()
		pass(4 * lookEvery)
		require.EqualValues(t, 4, since())
	})
}

func TestResolverWithoutAnyAnswer(t *testing.T) {
	s := serving("v1")
	s.err = errors.New("the API server is down")

	synctest.Test(t, func(t *testing.T) {
		r := NewResolver(s.GroupsAndResources, clock.RealClock{}, logr.Discard())
		require.False(t, missingOf(t, r, "websites").Absent())

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)

		go func() { ended <- r.Start(ctx) }()

		require.ErrorIs(t, r.Await(t.Context()), s.err)
		require.False(t, missingOf(t, r, "websites").Gone())

		s.err, s.took = nil, time.Hour // no answer at all

		pass(lookGap + lookTimeout)
		require.ErrorIs(t, r.Await(t.Context()), context.DeadlineExceeded)

		s.took = 0

		pass(lookTimeout + missingEvery) // another look is in progress
		require.NoError(t, r.Await(t.Context()))
		require.Empty(t, r.Resolve(ringOf("websites")).Missing())

		s.took = time.Hour

		pass(lookEvery)
		cancel()
		require.NoError(t, <-ended, "it ends with a look under way")
	})
}

// A resource that cannot be watched and patched is no part of a ring, and nobody asks for it more often.
func TestResolverKnowsVerbs(t *testing.T) {
	s := serving("v1")
	s.lists["v1"] = append(s.lists["v1"],
		metav1.APIResource{Name: "readings", Kind: "Reading", Verbs: metav1.Verbs{"get", "list"}},
		metav1.APIResource{Name: "leaving", Kind: "Leaving",
			Verbs: metav1.Verbs{"delete", "deletecollection", "get", "list", "watch"}})
	resolving(t, s, func(t bubble) {
		r := t.r
		missing := missingOf(t, r, "readings")
		require.True(t, missing.Gone())
		require.True(t, missing.Absent())
		require.Equal(t, "readings."+sites+" cannot be sharded, because the API server serves it without the verbs patch, "+
			"watch; remove it from the ring",
			Message(r.Resolve(ringOf("readings", "websites")).Missing()))

		_, err := r.Find(schema.GroupResource{Group: sites, Resource: "readings"})
		require.NoError(t, err, "it can still be read")

		require.Empty(t, r.Resolve(ringOf("leaving", "websites")).Missing(),
			"a definition that is being deleted is announced without patch")

		before := s.asked.Load()

		pass(10 * lookEvery)
		require.EqualValues(t, 10, s.asked.Load()-before)
	})
}
