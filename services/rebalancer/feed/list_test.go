package feed

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
)

// lists is an API server that lists "a" and "b" in pages, and streams the events of a test.
type lists struct {
	Server

	refuse  error
	events  chan watch.Event
	stopped bool
	asked   []string
}

func (l *lists) ResultChan() <-chan watch.Event { return l.events }
func (l *lists) Stop()                          { l.stopped = true }

func (l *lists) Watch(_ context.Context, _ schema.GroupVersionResource, _ string, opts metav1.ListOptions) (watch.Interface, error) {
	l.asked = append(l.asked, "stream")

	if opts.SendInitialEvents == nil || !*opts.SendInitialEvents || !opts.AllowWatchBookmarks ||
		opts.ResourceVersionMatch != metav1.ResourceVersionMatchNotOlderThan {
		return nil, errors.New("not a streaming list")
	}

	return l, l.refuse
}

func (l *lists) List(context.Context, schema.GroupVersionResource, string, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	l.asked = append(l.asked, "page")

	return &metav1.PartialObjectMetadataList{
		ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: []metav1.PartialObjectMetadata{*named("a"), *named("b")},
	}, nil
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
			events: append(added("a", "b"), event(watch.Bookmark, ""), event(watch.Modified, "a"), event(watch.Deleted, "b"), endOfList()),
			want:   []string{"a", "b", "a"}, asked: []string{"stream"},
		},
		"of nothing":              {events: []watch.Event{endOfList()}, asked: []string{"stream"}},
		"in pages: not allowed":   {refuse: invalid, want: []string{"a", "b"}, asked: []string{"stream", "page"}},
		"in pages: not known":     {refuse: apierrors.NewBadRequest("?"), want: []string{"a", "b"}, asked: []string{"stream", "page"}},
		"in pages: no watches":    {refuse: apierrors.NewMethodNotSupported(configMaps.GroupResource(), "watch"), want: []string{"a", "b"}, asked: []string{"stream", "page"}},
		"in pages: never over":    {events: added("a"), want: []string{"a", "a", "b"}, asked: []string{"stream", "page"}},
		"refused":                 {refuse: refused, err: "list configmaps: " + refused.Error(), asked: []string{"stream"}},
		"in pages: ended early":   {events: added("a"), ends: true, want: []string{"a", "a", "b"}, asked: []string{"stream", "page"}},
		"an error in the middle":  {events: append(added("a"), status(refused)), want: []string{"a"}, err: "list configmaps: " + refused.Error(), asked: []string{"stream"}},
		"taken slowly":            {events: append(added("a", "b", "c", "d", "e", "f", "g"), endOfList()), slow: 2 * stalled, want: []string{"a", "b", "c", "d", "e", "f", "g"}, asked: []string{"stream"}},
		"an end that is no mark":  {events: append(added("a"), event(watch.Bookmark, "")), want: []string{"a", "a", "b"}, asked: []string{"stream", "page"}},
		"something else comes by": {events: []watch.Event{{Type: watch.Added, Object: &metav1.Status{}}, endOfList()}, asked: []string{"stream"}},
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

				version, err := NewClient(server, keys).All(t.Context(), clock.RealClock{}, Scope{GVR: configMaps}, func(o Object) error {
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
		server := &lists{refuse: refuse, events: make(chan watch.Event, 3)}
		server.events <- event(watch.Added, "a")
		server.events <- event(watch.Added, "b")
		server.events <- endOfList()

		n := 0
		_, err := NewClient(server, keys).All(t.Context(), clock.RealClock{}, Scope{GVR: configMaps}, func(Object) error {
			n++
			return enough
		})
		require.ErrorIs(t, err, enough)
		require.Equal(t, 1, n)
		require.Equal(t, refuse == nil, server.stopped)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	server := &lists{events: make(chan watch.Event)}
	_, err := NewClient(server, keys).All(ctx, clock.RealClock{}, Scope{GVR: configMaps}, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, server.stopped)
}

// noPages is an API server that must not receive requests for pages.
type noPages struct{ Server }

func (noPages) List(context.Context, schema.GroupVersionResource, string, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	return nil, errors.New("request for a page")
}

// streams checks that the real API server streams the given number of objects, and that a watch can continue from there.
func (w *namespace) streams(scope Scope, n int) {
	w.Helper()

	c := NewClient(noPages{w.c.server}, keys)

	var names []string

	version, err := c.All(w.Context(), clock.RealClock{}, scope, func(o Object) error {
		names = append(names, o.Name)
		return nil
	})
	require.NoError(w, err)
	slices.Sort(names)
	require.Len(w, slices.Compact(names), n)

	later, err := NewStream(c, scope, nil, nil).open(w.Context(), version)
	require.NoError(w, err)

	defer later.Stop()

	w.create("later", map[string]string{"of": "many"})

	first := <-later.ResultChan()
	require.Equal(w, watch.Added, first.Type)
	require.Equal(w, "later", first.Object.(*metav1.PartialObjectMetadata).Name) //nolint:forcetypeassert // otherwise the test fails
}
