package apiserver_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

var (
	websites = schema.GroupResource{Group: "example.com", Resource: "websites"}
	v1       = websites.WithVersion("v1")
	now      = clock.RealClock{}.Now // the clock of the bubble
)

// bubble is a server with one client, in a bubble of its own.
type bubble struct {
	*testing.T
	server *apiserver.Server
	c      *apiserver.Client
}

// in runs a test in a bubble.
func in(t *testing.T, c apiserver.Config, test func(w *bubble)) {
	t.Helper()

	synctest.Test(t, func(t *testing.T) {
		w := &bubble{T: t, server: apiserver.New(c)}
		w.c = w.server.Client("tester/0")
		w.server.Serve(websites, apiserver.Served{Version: "v1", Others: []string{"v1beta1"}, Kind: "Website",
			Namespaced: true})
		test(w)
	})
}

func id(name string) apiserver.ID {
	return apiserver.ID{GroupResource: websites, Namespace: "n", Name: name}
}

func objectID(name string) feed.ID { return feed.ID{GVR: v1, Namespace: "n", Name: name} }

func (w *bubble) create(name, label string) {
	w.Helper()

	o := &metav1.PartialObjectMetadata{}
	if label != "" {
		o.Labels = map[string]string{"l": label}
	}

	require.NoError(w, w.c.Create(w.Context(), id(name), o))
}

func (w *bubble) label(name, label string) {
	w.Helper()
	require.NoError(w, w.c.Edit(w.Context(), id(name),
		func(o *metav1.PartialObjectMetadata) { o.Labels = map[string]string{"l": label} }))
}

func (w *bubble) patch(name, body string) (*metav1.PartialObjectMetadata, error) {
	return w.c.Patch(w.Context(), objectID(name), []byte(body), "")
}

func (w *bubble) list(opts metav1.ListOptions) (*metav1.PartialObjectMetadataList, []string, error) {
	list, err := w.c.List(w.Context(), v1, "", opts)
	if err != nil {
		return nil, nil, err
	}

	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}

	return list, names, nil
}

// watch opens a watch, and returns a function that returns the next event, or reports silence after a while.
func (w *bubble) watch(opts metav1.ListOptions) (next func() string) {
	w.Helper()

	opened, err := w.c.Watch(w.Context(), v1, "", opts)
	require.NoError(w, err)
	w.Cleanup(func() {
		opened.Stop()

		for range opened.ResultChan() {
		}
	})

	return func() string {
		select {
		case e, ok := <-opened.ResultChan():
			if !ok {
				return "end"
			}

			return told(e)
		case <-(clock.RealClock{}).After(10 * time.Second):
			return "silence"
		}
	}
}

func told(e watch.Event) string {
	if e.Type == watch.Error {
		return "error " + string(apierrors.ReasonForError(apierrors.FromObject(e.Object)))
	}

	o := e.Object.(*metav1.PartialObjectMetadata) //nolint:forcetypeassert // there are no other types

	text := fmt.Sprintf("%s %s", e.Type, o.Name)
	if l, ok := o.Labels["l"]; ok {
		text += "=" + l
	}

	if o.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
		text += "the initial events end"
	}

	return fmt.Sprintf("%s v%s", text, o.ResourceVersion)
}

func TestListsAreOfOneVersion(t *testing.T) {
	in(t, apiserver.Config{Page: 2}, func(w *bubble) {
		for _, name := range []string{"b", "a", "d"} {
			w.create(name, "")
		}

		page, names, err := w.list(metav1.ListOptions{Limit: 500})
		require.NoError(w, err)
		require.Equal(w, []string{"a", "b"}, names, "a server may make pages smaller than requested")

		w.create("c", "")

		rest, names, err := w.list(metav1.ListOptions{Limit: 500, Continue: page.Continue})
		require.NoError(w, err)
		require.Equal(w, []string{"d"}, names, "c was created later")
		require.Equal(w, page.ResourceVersion, rest.ResourceVersion)
		require.Empty(w, rest.Continue)

		w.server.Compact()

		_, _, err = w.list(metav1.ListOptions{Limit: 500, Continue: page.Continue})
		require.True(w, apierrors.IsResourceExpired(err), "%v", err)

		status := apierrors.APIStatus(nil)
		require.ErrorAs(w, err, &status)

		_, names, err = w.list(metav1.ListOptions{Limit: 500, Continue: status.Status().Continue})
		require.NoError(w, err)
		require.Equal(w, []string{"c", "d"}, names, "the list should continue from the same place at a newer version")
	})
}

func TestSelectors(t *testing.T) {
	in(t, apiserver.Config{}, func(w *bubble) {
		w.create("a", "one")
		w.create("b", "two")
		w.create("c", "")

		for _, tc := range []struct {
			opts metav1.ListOptions
			want []string
		}{
			{metav1.ListOptions{LabelSelector: "l in (one,two)"}, []string{"a", "b"}},
			{metav1.ListOptions{LabelSelector: "l notin (one)"}, []string{"b", "c"}},
			{metav1.ListOptions{LabelSelector: "l", FieldSelector: "metadata.name!=a"}, []string{"b"}},
			{metav1.ListOptions{FieldSelector: "metadata.namespace!=n"}, nil},
		} {
			_, names, err := w.list(tc.opts)
			require.NoError(w, err)
			require.Equal(w, tc.want, names, "%+v", tc.opts)
		}

		_, _, err := w.list(metav1.ListOptions{LabelSelector: "a b"})
		require.True(w, apierrors.IsBadRequest(err))
		_, _, err = w.list(metav1.ListOptions{FieldSelector: "spec.x=1"})
		require.True(w, apierrors.IsBadRequest(err))
	})
}

func TestWatchFollowsItsSelector(t *testing.T) {
	in(t, apiserver.Config{}, func(w *bubble) {
		w.create("a", "one") // v2
		next := w.watch(metav1.ListOptions{LabelSelector: "l=one", ResourceVersion: "2"})

		w.create("b", "two")
		w.label("b", "one")
		require.Equal(w, "ADDED b=one v4", next())

		w.label("a", "two")
		require.Equal(w, "DELETED a=one v5", next(), "the previous object, in the version of the change")

		require.NoError(w, w.c.Edit(w.Context(), id("b"), func(o *metav1.PartialObjectMetadata) {
			o.Annotations = map[string]string{"x": "y"}
		}))
		require.Equal(w, "MODIFIED b=one v6", next())

		require.NoError(w, w.c.Delete(w.Context(), id("b")))
		require.Equal(w, "DELETED b=one v7", next())
		require.Equal(w, "silence", next())

		again := w.watch(metav1.ListOptions{LabelSelector: "l=two", ResourceVersion: "3"})
		require.Equal(w, "DELETED b=two v4", again(), "the changes since")
		require.Equal(w, "ADDED a=two v5", again())
	})
}

func TestWatchesEnd(t *testing.T) {
	in(t, apiserver.Config{}, func(w *bubble) {
		open := w.watch(metav1.ListOptions{ResourceVersion: "1"})
		w.create("a", "")
		w.server.Compact()
		require.Equal(w, "ADDED a v2", open(), "an open watch continues")

		late := w.watch(metav1.ListOptions{ResourceVersion: "1"})
		require.Equal(w, "error Expired", late())
		require.Equal(w, "end", late())

		w.server.Cut(apiserver.Failed, "somebody", "")
		require.Equal(w, "silence", open())
		w.server.Cut(apiserver.Failed, "tester", websites.String())
		require.Equal(w, "error InternalError", open())
		require.Equal(w, "end", open())

		timed := w.watch(metav1.ListOptions{ResourceVersion: "2", TimeoutSeconds: new(int64(5))})
		require.Equal(w, "end", timed())
	})
}

func TestBookmarksComeEveryMinute(t *testing.T) {
	in(t, apiserver.Config{}, func(w *bubble) {
		opened, err := w.c.Watch(w.Context(), v1, "",
			metav1.ListOptions{ResourceVersion: "1", AllowWatchBookmarks: true, LabelSelector: "l"})
		require.NoError(w, err)
		w.create("a", "")
		require.Equal(w, "BOOKMARK  v2", told(<-opened.ResultChan()))

		began := now()
		require.Equal(w, "BOOKMARK  v2", told(<-opened.ResultChan()))
		require.InDelta(w, time.Minute, now().Sub(began), float64(time.Second))
		opened.Stop()

		for range opened.ResultChan() {
		}
	})
}

func TestStreamingLists(t *testing.T) {
	opts := metav1.ListOptions{
		SendInitialEvents: new(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		AllowWatchBookmarks: true, LabelSelector: "l",
	}

	in(t, apiserver.Config{Streaming: true}, func(w *bubble) {
		w.create("b", "one")
		w.create("a", "one")
		w.create("c", "")

		next := w.watch(opts)
		require.Equal(w, "ADDED a=one v3", next())
		require.Equal(w, "ADDED b=one v2", next())
		require.Equal(w, "BOOKMARK the initial events end v4", next())
		w.label("c", "one")
		require.Equal(w, "ADDED c=one v5", next())

		without := opts
		without.ResourceVersionMatch = ""
		_, err := w.c.Watch(w.Context(), v1, "", without)
		require.True(w, apierrors.IsInvalid(err), "%v", err)
	})

	in(t, apiserver.Config{}, func(w *bubble) {
		_, err := w.c.Watch(w.Context(), v1, "", opts)
		require.True(w, apierrors.IsInvalid(err), "%v", err)
	})

	in(t, apiserver.Config{Streaming: true}, func(w *bubble) {
		w.server.Inject(apiserver.Fault{
			From: now(), Until: now().Add(time.Minute), Effect: apiserver.Refuse, Code: http.StatusForbidden, Verb: "list",
		})

		_, err := w.c.Watch(w.Context(), v1, "", opts)
		require.True(w, apierrors.IsForbidden(err), "what hits lists hits these: %v", err)

		_, err = w.c.Watch(w.Context(), v1, "", metav1.ListOptions{})
		require.NoError(w, err)
	})
}

func TestPatch(t *testing.T) {
	admitted := 0
	in(t, apiserver.Config{Admit: func(apiserver.Write) { admitted++ }}, func(w *bubble) {
		w.create("a", "one") // v2

		o, err := w.patch("a", `{"metadata":{"resourceVersion":"2","labels":{"l":null,"m":"two"},"annotations":{"x":"y"}}}`)
		require.NoError(w, err)
		require.Equal(w, map[string]string{"m": "two"}, o.Labels)
		require.Equal(w, map[string]string{"x": "y"}, o.Annotations)
		require.Equal(w, "3", o.ResourceVersion)
		require.Equal(w, 2, admitted)

		_, err = w.patch("a", `{"metadata":{"resourceVersion":"2","labels":{"l":"x"}}}`)
		require.True(w, apierrors.IsConflict(err), "%v", err)
		_, err = w.patch("a", `{"metadata":{"uid":"another","labels":{"l":"x"}}}`)
		require.True(w, apierrors.IsConflict(err), "%v", err)
		_, err = w.patch("b", `{"metadata":{"labels":{"l":"x"}}}`)
		require.True(w, resources.IsGone(err), "%v", err)
		_, err = w.patch("a", `{"spec":{}}`)
		require.True(w, apierrors.IsBadRequest(err), "%v", err)

		o, err = w.patch("a", `{"metadata":{"labels":{"m":"two"}}}`)
		require.NoError(w, err)
		require.Equal(w, "3", o.ResourceVersion, "nothing should be changed")
	})
}

func TestResourcesChange(t *testing.T) {
	in(t, apiserver.Config{}, func(w *bubble) {
		w.create("a", "")

		read := func(version string) error {
			_, err := w.c.Get(w.Context(), feed.ID{GVR: websites.WithVersion(version), Namespace: "n", Name: "a"})
			return err
		}

		require.NoError(w, read("v1"))
		require.NoError(w, read("v1beta1"))

		next := w.watch(metav1.ListOptions{ResourceVersion: "2"})
		w.server.Serve(websites, apiserver.Served{Version: "v2", Kind: "Website", Namespaced: true})
		require.Equal(w, "end", next())
		require.NoError(w, read("v2"))

		err := read("v1")
		require.True(w, apierrors.IsNotFound(err))
		require.False(w, resources.IsGone(err), "it proves nothing about the object")

		w.server.Serve(websites, apiserver.Served{Version: "v2", Kind: "Website", Namespaced: true, Down: true})
		require.True(w, apierrors.IsServiceUnavailable(read("v2")))

		w.server.Withdraw(websites)
		require.True(w, apierrors.IsNotFound(read("v2")))
	})
}

func TestFaults(t *testing.T) {
	during := func(w *bubble, f apiserver.Fault, do func()) {
		f.From, f.Until = now(), now().Add(time.Minute)
		w.server.Inject(f)
		do()
		<-(clock.RealClock{}).After(f.Until.Sub(now()))
	}

	in(t, apiserver.Config{}, func(w *bubble) {
		w.create("a", "one")

		during(w, apiserver.Fault{Effect: apiserver.Refuse, Code: http.StatusForbidden, Verb: "write", Client: "tester"},
			func() {
				_, err := w.patch("a", `{"metadata":{"labels":{"l":"refused"}}}`)
				require.True(w, apierrors.IsForbidden(err), "%v", err)
				_, _, err = w.list(metav1.ListOptions{})
				require.NoError(w, err)
			})

		during(w, apiserver.Fault{Effect: apiserver.Lose, Resource: websites.String()}, func() {
			_, err := w.patch("a", `{"metadata":{"labels":{"l":"lost"}}}`)
			require.True(w, apierrors.IsTimeout(err), "%v", err)
			require.Equal(w, "lost", w.server.Object(id("a")).Labels["l"], "it should be executed")
		})

		during(w, apiserver.Fault{Effect: apiserver.Hang}, func() {
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			defer cancel()

			_, err := w.c.List(ctx, v1, "", metav1.ListOptions{})
			require.ErrorIs(w, err, context.DeadlineExceeded)

			began := now()
			_, err = w.c.List(w.Context(), v1, "", metav1.ListOptions{})
			require.ErrorContains(w, err, "connection lost")
			require.InDelta(w, 45*time.Second, now().Sub(began), float64(time.Second))
		})

		during(w, apiserver.Fault{Effect: apiserver.Slow, Delay: 5 * time.Second, Verb: "list"}, func() {
			began := now()
			_, _, err := w.list(metav1.ListOptions{})
			require.NoError(w, err)
			require.Greater(w, now().Sub(began), 5*time.Second)
		})
	})
}

func TestWatchesThatAreBlindOrLate(t *testing.T) {
	in(t, apiserver.Config{}, func(w *bubble) {
		late := w.watch(metav1.ListOptions{ResourceVersion: "1"})
		w.server.Inject(apiserver.Fault{Effect: apiserver.Stall, From: now(), Until: now().Add(15 * time.Second)})
		w.create("a", "")
		require.Equal(w, "silence", late())
		require.Equal(w, "ADDED a v2", late())

		<-(clock.RealClock{}).After(10 * time.Second)

		w.server.Inject(apiserver.Fault{Effect: apiserver.Blind, From: now(), Until: now().Add(15 * time.Second)})
		during := w.watch(metav1.ListOptions{ResourceVersion: "2"})
		<-(clock.RealClock{}).After(20 * time.Second)
		w.create("b", "")
		w.server.Cut(apiserver.Closed, "", "")
		require.Equal(w, "silence", late(), "it is blind forever, and does not even deliver its end")
		require.Equal(w, "silence", during())
		require.Equal(w, "ADDED b v3", w.watch(metav1.ListOptions{ResourceVersion: "2"})())
	})
}

// The duration of a request depends only on the seed, the request, and the number of earlier equal requests.
func TestTimesRepeatThemselves(t *testing.T) {
	times := func(seed uint64, noise int) (all []time.Duration) {
		in(t, apiserver.Config{Seed: seed}, func(w *bubble) {
			w.create("a", "")

			for range noise {
				_, _, err := w.list(metav1.ListOptions{})
				assert.NoError(w, err)
			}

			for range 5 {
				began := now()
				_, err := w.c.Get(w.Context(), objectID("a"))
				assert.NoError(w, err)

				all = append(all, now().Sub(began))
			}
		})

		return all
	}

	first := times(1, 0)
	require.Equal(t, first, times(1, 3))
	require.NotEqual(t, first, times(2, 0))
	require.NotEqual(t, first[0], first[1])
}

// A write whose sender is gone may be executed anyway, once.
func TestWritesOutliveTheirSender(t *testing.T) {
	carried := 0

	for seed := range uint64(20) {
		in(t, apiserver.Config{Seed: seed}, func(w *bubble) {
			w.create("a", "one")

			ctx, cancel := context.WithTimeout(w.Context(), time.Microsecond)
			defer cancel()

			_, err := w.c.Patch(ctx, objectID("a"), []byte(`{"metadata":{"labels":{"l":"two"}}}`), "")
			require.ErrorIs(w, err, context.DeadlineExceeded)
			w.server.Wait()

			if w.server.Object(id("a")).Labels["l"] == "two" {
				carried++
			}
		})
	}

	require.Positive(t, carried)
	require.Less(t, carried, 20)
}
