package feed

import (
	"context"
	"errors"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

const ring = "example"

var keys = contract.LabelKeysOf(ring, "")

var configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")

type namespace struct {
	*testing.T
	plain client.Client
	ns    string
	c     *Client
}

func newNamespace(t *testing.T) *namespace {
	t.Helper()

	plane := localplane.Shared(t)

	httpClient, err := rest.HTTPClientFor(plane.Config)
	require.NoError(t, err)
	api, err := Connect(plane.Config, httpClient, Bounds{PerSecond: 10000, AtOnce: 64})
	require.NoError(t, err)

	return &namespace{T: t, plain: plane.Client, ns: plane.Namespace(t), c: NewClient(api, keys)}
}

func (w *namespace) create(name string, labels map[string]string) *corev1.ConfigMap {
	w.Helper()

	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, Labels: labels}}
	require.NoError(w, w.plain.Create(w.Context(), cm))

	return cm
}

func (w *namespace) a() ID { return ID{GVR: configMaps, Namespace: w.ns, Name: "a"} }

func TestLabelChangesJustTheTwoLabels(t *testing.T) {
	w := newNamespace(t)
	cm := w.create("a", map[string]string{"mine": "stays"})

	o, err := w.c.Get(t.Context(), w.a())
	require.NoError(t, err)
	require.Equal(t, Object{ID: w.a(), UID: cm.UID, ResourceVersion: cm.ResourceVersion}, o)

	for _, step := range []struct {
		to   Labels
		want map[string]string
	}{
		{Labels{Shard: "one"}, map[string]string{"mine": "stays", contract.ShardLabel(ring): "one"}},
		{Labels{Shard: "one", Drain: contract.DrainValue}, map[string]string{
			"mine": "stays", contract.ShardLabel(ring): "one", contract.DrainLabel(ring): "true",
		}},
		{Labels{Shard: "two"}, map[string]string{"mine": "stays", contract.ShardLabel(ring): "two"}},
		{Labels{}, map[string]string{"mine": "stays"}},
	} {
		written, err := w.c.Label(t.Context(), o, step.to)
		require.NoError(t, err)
		o, err = w.c.Get(t.Context(), w.a())
		require.NoError(t, err)
		require.Equal(t, o, written, "the answer should be the current object")
		require.NoError(t, w.plain.Get(t.Context(), client.ObjectKeyFromObject(cm), cm))
		require.Equal(t, step.want, cm.Labels)
		require.Equal(t, cm.ResourceVersion, o.ResourceVersion)
		require.Equal(t, step.want[contract.ShardLabel(ring)], o.Shard)
		require.Equal(t, step.want[contract.ShardLabel(ring)] != "", o.Labelled)
		require.Equal(t, step.want[contract.DrainLabel(ring)] != "", o.Draining)
	}
}

func TestLabelFailsIfTheObjectIsAnother(t *testing.T) {
	w := newNamespace(t)
	cm := w.create("a", nil)

	old, err := w.c.Get(t.Context(), w.a())
	require.NoError(t, err)

	cm.Data = map[string]string{"changed": "meanwhile"}
	require.NoError(t, w.plain.Update(t.Context(), cm))

	_, err = w.c.Label(t.Context(), old, Labels{Shard: "one"})
	require.True(t, apierrors.IsConflict(err), "changed: %v", err)

	require.NoError(t, w.plain.Delete(t.Context(), cm))

	_, err = w.c.Label(t.Context(), old, Labels{Shard: "one"})
	require.True(t, apierrors.IsNotFound(err), "gone: %v", err)

	w.create("a", nil)

	_, err = w.c.Label(t.Context(), old, Labels{Shard: "one"})
	require.True(t, apierrors.IsConflict(err), "another of the same name: %v", err)
}

// Lists are read page by page, at the newest version: a list at resource version 0 would come in one piece. Pages grow
// in long lists, because each page costs the API server more than its objects.
func TestPagesHoldOnePageAtATime(t *testing.T) {
	l, n := &lists{more: 6}, 0
	version, err := NewClient(l, keys).pages(t.Context(), Scope{GVR: configMaps}, func(Object) error {
		require.Len(t, l.limits, n/2+1, "the next page should come when this one is over")

		n++

		return nil
	})
	require.NoError(t, err)
	require.Equal(t, "9", version)
	require.Equal(t, 14, n)
	require.Equal(t, []int64{PageSize, PageSize, PageSize, PageSize, PageSize, largePage, largePage}, l.limits)
}

// lists is an API server that lists "a" and "b" in each page, and streams the events of a test.
type lists struct {
	Server

	refuse  error
	events  chan watch.Event
	stopped bool
	asked   []string
	limits  []int64
	// more is how many pages follow the next one, which next continues.
	more int
	next string
}

func (l *lists) ResultChan() <-chan watch.Event { return l.events }
func (l *lists) Stop()                          { l.stopped = true }

func (l *lists) Watch(
	_ context.Context, _ schema.GroupVersionResource, _ string, opts metav1.ListOptions,
) (watch.Interface, error) {
	l.asked = append(l.asked, "stream")

	if opts.SendInitialEvents == nil || !*opts.SendInitialEvents || !opts.AllowWatchBookmarks ||
		opts.ResourceVersionMatch != metav1.ResourceVersionMatchNotOlderThan {
		return nil, errors.New("not a streaming list")
	}

	return l, l.refuse
}

func (l *lists) List(
	_ context.Context, _ schema.GroupVersionResource, _ string, opts metav1.ListOptions,
) (*metav1.PartialObjectMetadataList, error) {
	if opts.ResourceVersion != "" || opts.Continue != l.next {
		return nil, errors.New("not the next page of a list at the newest version")
	}

	l.asked, l.limits, l.next = append(l.asked, "page"), append(l.limits, opts.Limit), ""
	list := &metav1.PartialObjectMetadataList{
		ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: []metav1.PartialObjectMetadata{*named("a"), *named("b")},
	}

	if l.more > 0 {
		l.next = strconv.Itoa(l.more)
		list.Continue = l.next
		l.more--
	}

	return list, nil
}

func named(name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "5"}}
}

func event(kind watch.EventType, name string) watch.Event {
	return watch.Event{Type: kind, Object: named(name)}
}

func endOfList() watch.Event {
	m := named("")
	m.ResourceVersion = "9"
	m.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}

	return watch.Event{Type: watch.Bookmark, Object: m}
}

// status is an error event of a watch.
func status(err *apierrors.StatusError) watch.Event {
	return watch.Event{Type: watch.Error, Object: new(err.Status())}
}

func TestAll(t *testing.T) {
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil)
	refused := apierrors.NewForbidden(configMaps.GroupResource(), "", errors.New("no"))
	added := func(names ...string) (all []watch.Event) {
		for _, name := range names {
			all = append(all, event(watch.Added, name))
		}

		return all
	}

	for what, tc := range map[string]struct {
		refuse error
		events []watch.Event
		ends   bool          // whether the stream ends after the events
		slow   time.Duration // how long yield takes
		want   []string
		err    string
		asked  []string
	}{
		"as a stream": {
			events: append(added("a", "b"), event(watch.Bookmark, ""), event(watch.Modified, "a"), event(watch.Deleted, "b"),
				endOfList()),
			want: []string{"a", "b", "a"}, asked: []string{"stream"},
		},
		"of nothing":            {events: []watch.Event{endOfList()}, asked: []string{"stream"}},
		"in pages: not allowed": {refuse: invalid, want: []string{"a", "b"}, asked: []string{"stream", "page"}},
		"in pages: not known": {refuse: apierrors.NewBadRequest("?"), want: []string{"a", "b"},
			asked: []string{"stream", "page"}},
		"in pages: no watches": {refuse: apierrors.NewMethodNotSupported(configMaps.GroupResource(), "watch"),
			want: []string{"a", "b"}, asked: []string{"stream", "page"}},
		"in pages: never over": {events: added("a"), want: []string{"a", "a", "b"}, asked: []string{"stream", "page"}},
		"refused":              {refuse: refused, err: "list configmaps: " + refused.Error(), asked: []string{"stream"}},
		"in pages: ended early": {events: added("a"), ends: true, want: []string{"a", "a", "b"},
			asked: []string{"stream", "page"}},
		"an error in the middle": {events: append(added("a"), status(refused)), want: []string{"a"},
			err: "list configmaps: " + refused.Error(), asked: []string{"stream"}},
		"taken slowly": {events: append(added("a", "b", "c", "d", "e", "f", "g"), endOfList()), slow: 2 * stalled,
			want: []string{"a", "b", "c", "d", "e", "f", "g"}, asked: []string{"stream"}},
		"an end that is no mark": {events: append(added("a"), event(watch.Bookmark, "")), want: []string{"a", "a", "b"},
			asked: []string{"stream", "page"}},
		"something else comes by": {events: []watch.Event{{Type: watch.Added, Object: &metav1.Status{}}, endOfList()},
			asked: []string{"stream"}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &lists{refuse: tc.refuse, events: make(chan watch.Event, len(tc.events))}
				for _, e := range tc.events {
					server.events <- e
				}

				if tc.ends {
					close(server.events)
				}

				var got []string

				version, err := NewClient(server, keys).All(t.Context(), clock.RealClock{}, Scope{GVR: configMaps},
					func(o Object) error {
						got = append(got, o.Name)
						clock.RealClock{}.Sleep(tc.slow)

						return nil
					})

				require.Equal(t, tc.want, got)
				require.Equal(t, tc.asked, server.asked)
				require.Equal(t, tc.refuse == nil, server.stopped, "an open watch should be stopped")

				if tc.err != "" {
					require.EqualError(t, err, tc.err)
					return
				}

				require.NoError(t, err)
				require.Equal(t, "9", version)
			})
		})
	}
}

func TestAllEndsWithTheErrorOfTheReader(t *testing.T) {
	enough := errors.New("enough")

	for _, refuse := range []error{nil, apierrors.NewBadRequest("?")} {
		server := &lists{refuse: refuse, events: make(chan watch.Event, 2)}
		server.events <- event(watch.Added, "a")
		server.events <- event(watch.Added, "b")

		n := 0
		_, err := NewClient(server, keys).All(t.Context(), clock.RealClock{}, Scope{GVR: configMaps}, func(Object) error {
			n++
			return enough
		})
		require.ErrorIs(t, err, enough)
		require.Equal(t, 1, n)
		require.Equal(t, refuse == nil, server.stopped)
	}
}

// The API server streams lists, and in pages they are the same. A watch can continue from there.
func TestListsOfTheAPIServer(t *testing.T) {
	w := newNamespace(t)
	scope := Scope{GVR: configMaps, Namespace: w.ns, Selector: "of=many"}

	for _, name := range []string{"a", "b", "c"} {
		w.create(name, map[string]string{"of": "many"})
	}

	w.create("other", nil)

	var names []string

	yield := func(o Object) error {
		names = append(names, o.Name)
		return nil
	}
	version, err := w.c.streamed(t.Context(), clock.RealClock{}, scope, yield)
	require.NoError(t, err)

	paged, err := w.c.pages(t.Context(), scope, yield)
	require.NoError(t, err)
	require.False(t, Older(paged, version))
	require.ElementsMatch(t, []string{"a", "b", "c", "a", "b", "c"}, names)

	later, err := NewStream(w.c, scope, nil, nil).open(t.Context(), version)
	require.NoError(t, err)

	defer later.Stop()

	w.create("later", map[string]string{"of": "many"})

	first := <-later.ResultChan()
	require.Equal(t, watch.Added, first.Type)
	require.Equal(t, "later", first.Object.(*metav1.PartialObjectMetadata).Name)
}

// The number of requests per second is limited, except for a burst at the beginning.
func TestRequestsPerSecondAreBounded(t *testing.T) {
	plane := localplane.Shared(t)

	httpClient, err := rest.HTTPClientFor(plane.Config)
	require.NoError(t, err)
	api, err := Connect(plane.Config, httpClient, Bounds{PerSecond: 50, AtOnce: 20})
	require.NoError(t, err)

	wall := clock.RealClock{}
	began := wall.Now()

	var all errgroup.Group
	for range 150 {
		all.Go(func() error {
			_, err := api.Get(t.Context(), ID{GVR: configMaps, Namespace: "default", Name: "kube-root-ca.crt"})
			if resources.IsGone(err) {
				err = nil
			}

			return err
		})
	}

	require.NoError(t, all.Wait())
	require.GreaterOrEqual(t, wall.Since(began), 900*time.Millisecond)
}

func TestPausesGrowToTheirBoundAndAreSpread(t *testing.T) {
	named := func(name string) wait.Backoff { return Pauses(name, 200*time.Millisecond, 30*time.Second) }
	p, same, other := named("one"), named("one"), named("two")

	differ := 0

	for i := range 40 {
		least := min(200*time.Millisecond<<min(i, 20), 30*time.Second)
		d := p.Step()
		require.GreaterOrEqual(t, d, least)
		require.LessOrEqual(t, d, least*6/5)
		require.Equal(t, d, same.Step(), "pauses should be reproducible")

		if other.Step() != d {
			differ++
		}
	}

	require.Greater(t, differ, 30)
}
