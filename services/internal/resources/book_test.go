package resources

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

var (
	replicaSets = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}
)

// server is an API server with some objects. It counts requests.
type server struct {
	mu      sync.Mutex
	objects map[string]*metav1.PartialObjectMetadata
	err     error
	asked   int
}

func (s *server) read(
	_ context.Context, gvr schema.GroupVersionResource, name types.NamespacedName,
) (*metav1.PartialObjectMetadata, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.asked++

	if s.err != nil {
		return nil, s.err
	}

	if obj, ok := s.objects[name.Name]; ok {
		return obj, nil
	}

	return nil, apierrors.NewNotFound(gvr.GroupResource(), name.Name)
}

func (s *server) times() int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.asked
}

func ownedBy(name string) *metav1.OwnerReference {
	return &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name, UID: types.UID(name),
		Controller: new(true)}
}

func replicaSet(name string, owners ...metav1.OwnerReference) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name),
		OwnerReferences: owners}}
}

func the(name, uid string) Owner {
	return Owner{
		Resource: Resource{GVR: replicaSets}, NamespacedName: types.NamespacedName{Namespace: "ns", Name: name},
		UID: types.UID(uid),
	}
}

// shelf is a book with the API server behind it.
type shelf struct {
	*testing.T
	*server

	book  *Book
	clock *clocktesting.FakePassiveClock
}

func newShelf(t *testing.T, objects ...*metav1.PartialObjectMetadata) *shelf {
	t.Helper()

	s := &shelf{T: t, server: &server{objects: map[string]*metav1.PartialObjectMetadata{}},
		clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))}
	for _, o := range objects {
		s.objects[o.Name] = o
	}

	s.book = NewBook(BookOptions{Read: s.read, Size: 10, Remember: time.Minute, Patience: time.Second, AtOnce: 2,
		Clock: s.clock})

	return s
}

func (s *shelf) pass(d time.Duration) { s.clock.SetTime(s.clock.Now().Add(d)) }

// controlled requires that the object exists and has this controller, after so many reads of all objects.
func (s *shelf) controlled(of Owner, by *metav1.OwnerReference, reads int) {
	s.Helper()

	controller, found, err := s.book.ControllerOf(s.Context(), of)
	require.NoError(s, err)
	require.True(s, found)
	require.Equal(s, by, controller)
	require.Equal(s, reads, s.times())
}

// gone requires that the object does not exist, after so many reads of all objects.
func (s *shelf) gone(of Owner, reads int) {
	s.Helper()

	_, found, err := s.book.ControllerOf(s.Context(), of)
	require.NoError(s, err)
	require.False(s, found)
	require.Equal(s, reads, s.times())
}

// An object is read when it is first asked for, and again after some time.
func TestReadsOnce(t *testing.T) {
	s := newShelf(t, replicaSet("rs", *ownedBy("web")), replicaSet("alone"))

	s.controlled(the("rs", "rs"), ownedBy("web"), 1)
	s.controlled(the("alone", "alone"), nil, 2)
	s.controlled(the("rs", "rs"), ownedBy("web"), 2)
	s.controlled(the("alone", "alone"), nil, 2)

	s.objects["rs"] = replicaSet("rs", *ownedBy("other"))
	s.pass(time.Minute + time.Nanosecond)
	s.controlled(the("rs", "rs"), ownedBy("other"), 3)
}

// The absence of an object, or another object of the same name, is remembered for a moment. A failure is not.
func TestAbsence(t *testing.T) {
	s := newShelf(t, replicaSet("rs", *ownedBy("web")))

	s.gone(the("gone", "gone"), 1)
	s.gone(the("rs", "another"), 2)
	s.gone(the("gone", "gone"), 2)
	s.gone(the("rs", "another"), 2)
	s.pass(5*time.Second + time.Nanosecond)

	s.err = errAway

	for i := range 2 {
		_, _, err := s.book.ControllerOf(t.Context(), the("gone", "gone"))
		require.ErrorIs(t, err, errAway)
		require.ErrorContains(t, err, "determine who controls replicasets.apps ns/gone")
		require.Equal(t, 3+i, s.times())
	}
}

// Everyone who may create an object can give it an owner reference with the UID of any object and another name.
func TestMadeUpNamesSayNothingAboutAnObject(t *testing.T) {
	s := newShelf(t, replicaSet("rs", *ownedBy("web")))
	s.gone(the("made-up", "rs"), 1)
	s.controlled(the("rs", "rs"), ownedBy("web"), 2)
}

// A service that sees objects anyway reports them, so that they need not be read.
func TestSaw(t *testing.T) {
	s := newShelf(t, replicaSet("rs", *ownedBy("web")))

	s.book.Saw(replicaSets.GroupResource(), "seen", ownedBy("web"))
	require.False(t, s.book.Between(replicaSets.GroupResource()))
	s.gone(the("seen", "seen"), 1) // nobody had asked for any
	require.True(t, s.book.Between(replicaSets.GroupResource()))

	s.book.Saw(replicaSets.GroupResource(), "seen", ownedBy("web"))
	s.controlled(the("seen", "seen"), ownedBy("web"), 1)
}

func keyedOwner(name, uid string) Owner {
	o := the(name, uid)
	o.Resource.Key.Label, o.Resource.Selector = "tenant", "other=x"

	return o
}

func tenantOf(version, tenant string) *metav1.PartialObjectMetadata {
	o := replicaSet("web")
	o.ResourceVersion, o.Labels = version, map[string]string{"tenant": tenant, "other": "x"}

	return o
}

// A label, and whether a selector selects the object, are read once. Later versions of the object that were seen
// replace them, and earlier ones do not. Another selector is another question.
func TestLabelsAreRemembered(t *testing.T) {
	s := newShelf(t, tenantOf("10", "acme"))
	of := keyedOwner("web", "web")

	is := func(tenant string, selected bool, reads int) {
		t.Helper()

		labels, found, err := s.book.LabelsOf(t.Context(), of)
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, tenant, labels.All["tenant"])
		require.NotContains(t, labels.All, "other")
		require.Equal(t, selected, labels.Selected)
		require.Equal(t, reads, s.times())
	}

	is("acme", true, 1)
	is("acme", true, 1)
	s.book.SawLabels(of.Resource, Sight{UID: "web", Value: "beta", Selected: false, Version: "11"})
	is("beta", false, 1)
	s.book.SawLabels(of.Resource, Sight{UID: "web", Value: "acme", Selected: true, Version: "9"})
	is("beta", false, 1)
	s.book.SawLabels(of.Resource, Sight{UID: "web", Value: "", Selected: true, Version: "12"})
	is("", true, 1)

	of.Resource.Selector = "!other"
	is("acme", false, 2)
	s.pass(2 * time.Minute)
	is("acme", false, 3)
}

func TestLabelsOfWhatDoesNotExist(t *testing.T) {
	s := newShelf(t, tenantOf("10", "acme"))

	for _, of := range []Owner{keyedOwner("gone", "gone"), keyedOwner("web", "an earlier one")} {
		labels, found, err := s.book.LabelsOf(t.Context(), of)
		require.NoError(t, err)
		require.False(t, found)
		require.Empty(t, labels)
	}

	s.err = errAway
	_, _, err := s.book.LabelsOf(t.Context(), keyedOwner("other", "other"))
	require.ErrorIs(t, err, errAway)
	require.ErrorContains(t, err, "read the labels of replicasets.apps ns/other")
}

// A book that relies on no memory returns all labels, as they are now.
func TestLabelsAnew(t *testing.T) {
	s := newShelf(t)
	b := anew(s.read, 1)

	for i, tenant := range []string{"acme", "beta"} {
		s.objects["web"] = tenantOf("11", tenant)

		labels, found, err := b.LabelsOf(t.Context(), keyedOwner("web", "web"))
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, Labels{All: map[string]string{"tenant": tenant, "other": "x"}, Selected: true}, labels)
		require.Equal(t, i+1, s.times())
	}
}

type reads func(ctx context.Context, gvr schema.GroupVersionResource,
	name types.NamespacedName) (*metav1.PartialObjectMetadata, error)

// anew returns a book that reads labels anew.
func anew(read reads, atOnce int) *Book {
	return NewBook(BookOptions{
		Read: read, Size: 10, Remember: time.Minute, LabelsAnew: true, Patience: 100 * time.Millisecond, AtOnce: atOnce,
		Clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0)),
	})
}

// Callers that wait for a read share it, unless it has begun, and give up after a while.
func TestReadsAreSharedBeforeTheyBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, proceed := make(chan string, 10), make(chan struct{})
		b := anew(func(ctx context.Context, _ schema.GroupVersionResource,
			name types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
			begun <- name.Name

			select {
			case <-proceed:
				return tenantOf("10", "acme"), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}, 1)

		results := make(chan error, 10)
		ask := func() {
			go func() {
				_, _, err := b.LabelsOf(t.Context(), keyedOwner("web", "web"))
				results <- err
			}()
			synctest.Wait()
		}

		ask()
		require.Equal(t, "web", <-begun)

		for range 3 {
			ask() // after the first read has begun
		}

		require.Empty(t, begun, "one read runs at a time")
		proceed <- struct{}{}
		synctest.Wait()
		require.Len(t, begun, 1, "three callers share the second read")
		proceed <- struct{}{}

		for range 4 {
			require.NoError(t, <-results)
		}

		<-begun

		ctx, cancel := context.WithTimeout(t.Context(), 99*time.Millisecond)
		defer cancel()

		ask()
		ask()
		<-ctx.Done()
		synctest.Wait()
		require.Empty(t, results)
		require.ErrorIs(t, <-results, ErrBusy)
		require.ErrorIs(t, <-results, ErrBusy)
	})
}

func TestIsGone(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, "x")
	unserved := apierrors.NewGenericServerResponse(http.StatusNotFound, "GET",
		schema.GroupResource{Resource: "configmaps"}, "x", "404 page not found", 0, true)
	silent := &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonNotFound,
		Code: http.StatusNotFound}}

	require.True(t, IsGone(gone))
	require.True(t, IsGone(fmt.Errorf("read it: %w", gone)))

	for name, err := range map[string]error{
		"the resource is not served": unserved, "nobody says what is not found": silent, "another error": errors.New("x"),
		"none":       nil,
		"a conflict": apierrors.NewConflict(schema.GroupResource{}, "x", errors.New("changed")),
	} {
		require.False(t, IsGone(err), name)
	}
}

func TestContinuation(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old")
	expired.ErrStatus.Continue = "go on here"

	require.Equal(t, "go on here", Continuation(fmt.Errorf("wrapped: %w", expired)))
	require.Empty(t, Continuation(apierrors.NewConflict(schema.GroupResource{}, "a", nil)))
	require.Empty(t, Continuation(nil))
}

// The number of remembered objects is bounded.
func TestForgets(t *testing.T) {
	s := newShelf(t, replicaSet("a"), replicaSet("b"), replicaSet("c"))
	s.book = NewBook(BookOptions{Read: s.read, Size: 2, Remember: time.Minute, Patience: time.Second, AtOnce: 2,
		Clock: s.clock})

	for reads, name := range []string{"a", "b", "c", "a", "b", "c"} {
		s.controlled(the(name, name), nil, reads+1)
	}
}
