package world

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// stepper is a clock that is a second later each time it is asked.
type stepper struct{ now time.Time }

func (s *stepper) Now() time.Time {
	s.now = s.now.Add(time.Second)
	return s.now
}

func following(what watching) (*watch.FakeWatcher, *observer) {
	events := watch.NewFake()

	o := &observer{watching: events, counted: make(chan times, 1), ended: make(chan error, 1), clock: &stepper{now: time.Unix(0, 0)}}
	go o.follow(what)

	return events, o
}

func TestObjectsThatLeaveAreCounted(t *testing.T) {
	defer goleak.VerifyNone(t)

	events, o := following(watching{leaves: true, count: 3, mark: 2})
	object := &metav1.PartialObjectMetadata{}
	events.Modify(object) // changed, and still selected

	for range 3 {
		events.Delete(object)
	}

	got, err := o.await(t.Context(), 3)
	require.NoError(t, err)
	require.Equal(t, times{seen: 3, first: time.Unix(1, 0), mark: time.Unix(2, 0), last: time.Unix(3, 0)}, got)
	o.stop()
	require.ErrorContains(t, <-o.ended, "has ended")
}

func TestObjectsThatComeAreCountedAlsoIfNobodyKnowsHowMany(t *testing.T) {
	defer goleak.VerifyNone(t)

	events, o := following(watching{})

	object := &metav1.PartialObjectMetadata{}
	for range 5 {
		events.Add(object)
		events.Modify(object)
	}

	got, err := o.await(t.Context(), 5)
	require.NoError(t, err)
	require.Equal(t, 5, got.seen)
	again, err := o.await(t.Context(), 2)
	require.NoError(t, err, "nothing new has to come for that")
	require.Equal(t, got, again)
	require.True(t, got.mark.IsZero())
	o.stop()
	<-o.ended
}

func TestObjectsThatChangeAreCounted(t *testing.T) {
	defer goleak.VerifyNone(t)

	events, o := following(watching{alters: true, count: 1})
	object := &metav1.PartialObjectMetadata{}
	events.Add(object)
	events.Delete(object)
	events.Modify(object)

	got, err := o.await(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, 1, got.seen)
	o.stop()
	<-o.ended
}

func TestEndOfTheWatchIsAnError(t *testing.T) {
	defer goleak.VerifyNone(t)

	events, o := following(watching{leaves: true, count: 1})
	status := apierrors.NewResourceExpired("too old").Status()
	events.Error(&status)

	_, err := o.await(t.Context(), 1)
	require.True(t, apierrors.IsResourceExpired(err), "%v", err)

	events, o = following(watching{leaves: true, count: 1})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	_, err = o.await(ctx, 1)
	require.ErrorIs(t, err, context.Canceled)
	events.Stop()
	<-o.ended
}

// An API server ends the watch of a client that is slow, and objects go on moving.
func TestNothingIsMissedWhenAWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watches := make(chan *watch.FakeWatcher)
		from := make(chan metav1.ListOptions)
		begin := func(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
			from <- options
			return <-watches, nil
		}
		o, err := newObserver(t.Context(), watching{selector: "a=b", version: "4", leaves: true, count: 2}, &stepper{}, begin)
		require.NoError(t, err)

		for _, version := range []string{"4", "5"} {
			options := <-from
			require.Equal(t, "a=b", options.LabelSelector)
			require.Equal(t, version, options.ResourceVersion)

			events := watch.NewFake()
			watches <- events

			object := &metav1.PartialObjectMetadata{}
			object.ResourceVersion = "5"
			events.Delete(object)
			events.Stop()
		}

		got, err := o.await(t.Context(), 2)
		require.NoError(t, err)
		require.Equal(t, 2, got.seen)

		<-from
		watches <- watch.NewFake()
		o.stop()
		require.ErrorContains(t, <-o.ended, "has ended")
	})
}
