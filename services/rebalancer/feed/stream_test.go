package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// fake is an API server that has one object, "x" at version 10, and opens watches whose events the test determines.
type fake struct {
	Server // Get and Patch are not used

	mu       sync.Mutex
	requests []string
	open     []*watching
	// refuse contains the errors of the next lists and watches, by "list", "stream" for streaming lists alone, and
	// "watch".
	refuse map[string]error
	// version is the version of lists.
	version string
}

// watching is a watch that records its stop.
type watching struct {
	events  chan watch.Event
	once    sync.Once
	stopped chan struct{}
	f       *fake
	name    string
}

func (w *watching) ResultChan() <-chan watch.Event { return w.events }

func (w *watching) Stop() {
	w.once.Do(func() {
		w.f.note("stop " + w.name)
		close(w.stopped)
	})
}

func (f *fake) note(request string) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.requests = append(f.requests, request)
}

func (f *fake) Watch(
	_ context.Context, _ schema.GroupVersionResource, _ string, opts metav1.ListOptions,
) (watch.Interface, error) {
	if opts.SendInitialEvents != nil {
		f.note("list " + opts.LabelSelector)

		w := &watching{events: make(chan watch.Event, 2), stopped: make(chan struct{}), f: &fake{}}
		w.events <- watch.Event{Type: watch.Added, Object: meta("x", "10")}

		end := meta("", f.version)
		end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		w.events <- watch.Event{Type: watch.Bookmark, Object: end}

		return w, cmp.Or(f.refused("list"), f.refused("stream"))
	}

	w := &watching{events: make(chan watch.Event, 100), stopped: make(chan struct{}), f: f,
		name: opts.LabelSelector + " from " + opts.ResourceVersion}
	f.note("watch " + w.name)

	if err := f.refused("watch"); err != nil {
		return nil, err
	}

	f.mu.Lock()
	defer f.mu.Unlock()

	f.open = append(f.open, w)

	return w, nil
}

func (f *fake) List(
	_ context.Context, _ schema.GroupVersionResource, _ string, opts metav1.ListOptions,
) (*metav1.PartialObjectMetadataList, error) {
	f.note("pages " + opts.LabelSelector)

	return &metav1.PartialObjectMetadataList{
		ListMeta: metav1.ListMeta{ResourceVersion: f.version}, Items: []metav1.PartialObjectMetadata{*meta("x", "10")},
	}, f.refused("list")
}

func (f *fake) refused(what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()

	return f.refuse[what]
}

func meta(name, version string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "n", Name: name, ResourceVersion: version, Labels: map[string]string{contract.ShardLabel(ring): "a"},
	}}
}

// notes is a sink that records the calls of a stream.
type notes struct {
	mu   sync.Mutex
	said []string
	// slow is how long the sink takes for an object.
	slow time.Duration
}

func (n *notes) say(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.said = append(n.said, fmt.Sprintf(format, args...))
}

func (n *notes) Begin()                 { n.say("begin") }
func (n *notes) Listed(context.Context) { n.say("listed") }

func (n *notes) Present(_ context.Context, o Object) {
	n.say("present %s %s", o.Name, o.ResourceVersion)
	clock.RealClock{}.Sleep(n.slow)
}

func (n *notes) Gone(id ID, version string) { n.say("gone %s %s", id.Name, version) }

func (n *notes) Failed(err error) {
	if err == nil {
		n.say("well")
	} else {
		n.say("failed: %s", err)
	}
}

// bubble is a stream of a fake API server in virtual time.
type bubble struct {
	*testing.T
	*fake
	*notes
	stream *Stream
	known  int // watches
}

// inBubble runs a stream until body returns.
func inBubble(t *testing.T, body func(b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{T: t, fake: &fake{refuse: map[string]error{}, version: "10"}, notes: &notes{}}
		b.stream = NewStream(NewClient(b.fake, contract.LabelKeysOf(ring, "")), Scope{GVR: configMaps, Selector: "one"},
			b.notes, clock.RealClock{})

		ctx, cancel := context.WithCancel(t.Context())

		var wg sync.WaitGroup

		wg.Go(func() { b.stream.Run(ctx) })
		synctest.Wait()
		body(b)
		cancel()
		wg.Wait()

		for _, w := range b.open {
			<-w.stopped // otherwise the bubble reports a deadlock
		}
	})
}

// begins expects that the stream lists, and watches from there.
func (b *bubble) begins() {
	b.Helper()
	b.expect("list one, watch one from 10", "begin, present x 10, listed, well, well")
}

// expect waits until nothing more happens now, and compares the requests and calls of the stream since its last call.
func (b *bubble) expect(requests, said string) {
	b.Helper()
	synctest.Wait()
	b.fake.mu.Lock()
	defer b.fake.mu.Unlock()
	b.notes.mu.Lock()
	defer b.notes.mu.Unlock()

	require.Equal(b, requests, strings.Join(b.requests, ", "))
	require.Equal(b, said, strings.Join(b.said, ", "))
	b.requests, b.said = nil, nil
}

// pass lets time pass.
func (b *bubble) pass(d time.Duration) {
	clock.RealClock{}.Sleep(d)
	synctest.Wait()
}

// send sends an event through the watch that was opened last.
func (b *bubble) send(kind watch.EventType, name, version string) {
	b.last().events <- watch.Event{Type: kind, Object: meta(name, version)}
}

func (b *bubble) last() *watching {
	b.fake.mu.Lock()
	defer b.fake.mu.Unlock()

	return b.open[len(b.open)-1]
}

// set sets the error of the API server from now on; nil means no error.
func (b *bubble) set(what string, err error) {
	b.fake.mu.Lock()
	defer b.fake.mu.Unlock()

	b.refuse[what] = err
}

// count returns the number of requests since its last call.
func (b *bubble) count() int {
	b.fake.mu.Lock()
	defer b.fake.mu.Unlock()

	n := 0

	for _, request := range b.requests {
		if !strings.HasPrefix(request, "stop") {
			n++
		}
	}

	b.requests = nil

	return n
}

var gr = schema.GroupResource{Resource: "configmaps"}

// refusals are errors of an API server that cannot serve a resource at the moment.
var refusals = map[string]error{
	"404": apierrors.NewGenericServerResponse(http.StatusNotFound, "get", gr, "", "404 page not found", 0, true),
	"403": apierrors.NewForbidden(gr, "", errors.New("no")),
	"500": apierrors.NewInternalError(errors.New("etcd")),
	"503": apierrors.NewServiceUnavailable("apiserver not ready"),
	"429": apierrors.NewTooManyRequests("later", 1),
}

// gone is another error of API servers that no longer have the history.
var gone = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonGone, Message: "too old",
}}

func TestStreamFollows(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.begins()
		b.send(watch.Added, "y", "11")
		b.send(watch.Modified, "y", "12")
		b.send(watch.Bookmark, "", "20")
		b.send(watch.Deleted, "y", "21")
		b.expect("", "present y 11, present y 12, gone y 21")

		b.pass(time.Minute)
		close(b.last().events)
		b.expect("stop one from 10, watch one from 21", "well")
	})
}

// An error is reported when it occurs. When the API server serves the resource again, the stream continues from its
// position.
func TestStreamTellsErrors(t *testing.T) {
	for what, err := range refusals {
		t.Run("of a watch, "+what, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				b.begins()
				b.send(watch.Bookmark, "", "30")
				b.pass(time.Minute)
				b.set("watch", err)
				close(b.last().events)
				b.expect("stop one from 10, watch one from 30", "failed: watch configmaps: "+err.Error())
				b.pass(250 * time.Millisecond)
				b.expect("watch one from 30", "failed: watch configmaps: "+err.Error())

				b.set("watch", nil)
				b.pass(time.Second)
				b.expect("watch one from 30", "well")
			})
		})

		t.Run("in a watch, "+what, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				b.begins()

				var status apierrors.APIStatus

				require.ErrorAs(t, err, &status)
				b.last().events <- watch.Event{Type: watch.Error, Object: new(status.Status())}
				b.expect("stop one from 10", "failed: watch configmaps: "+err.Error())
				b.pass(250 * time.Millisecond)
				b.expect("watch one from 10", "well")
			})
		})

		t.Run("of a list, "+what, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				b.begins()
				b.set("list", err)
				b.pass(time.Minute)
				b.stream.Select("one", true)
				b.expect("stop one from 10, list one", "begin, failed: list configmaps: "+err.Error())

				b.set("list", nil)
				b.pass(250 * time.Millisecond)
				b.begins()
			})
		})
	}
}

// The stream lists what the API server can no longer deliver.
func TestStreamListsAgain(t *testing.T) {
	tooLarge := apierrors.NewTimeoutError("Too large resource version", 1)
	tooLarge.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}

	for what, err := range map[string]*apierrors.StatusError{
		"expired": apierrors.NewResourceExpired("too old"), "gone": gone, "too large": tooLarge,
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				b.begins()
				b.last().events <- watch.Event{Type: watch.Error, Object: new(err.Status())}
				b.pass(250 * time.Millisecond)
				b.expect("stop one from 10, list one, watch one from 10", "begin, begin, present x 10, listed, well, well")

				b.pass(time.Minute)
				b.set("watch", err)
				close(b.last().events)
				b.expect("stop one from 10, watch one from 10", "begin")
				b.set("watch", nil)
				b.pass(250 * time.Millisecond)
				b.begins()
			})
		})
	}

	for _, kind := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted, watch.Bookmark} {
		t.Run(string(kind)+" goes back", func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				b.begins()
				b.send(watch.Bookmark, "", "30")
				b.send(kind, "y", "29") // after a restore of the storage
				b.pass(250 * time.Millisecond)
				b.expect("stop one from 10, list one, watch one from 10", "begin, begin, present x 10, listed, well, well")
			})
		})
	}

	t.Run("asked to", func(t *testing.T) {
		inBubble(t, func(b *bubble) {
			b.begins()
			b.pass(time.Minute)
			b.stream.Select("one", true)
			b.expect("stop one from 10, list one, watch one from 10", "begin, present x 10, listed, well, well")
		})
	})
}

// A watch that delivers nothing, not even a bookmark, is not trusted.
func TestStreamDoesNotBelieveSilence(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.begins()

		for range brief {
			b.pass(time.Minute)
			b.send(watch.Bookmark, "", "10")
		}

		b.pass(silence - time.Second)
		b.expect("", "")
		b.pass(time.Second)
		b.expect("stop one from 10, list one, watch one from 10", "begin, present x 10, listed, well, well")
	})
}

// A slow sink is not mistaken for a silent API server.
func TestStreamWaitsForTheSink(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.begins()

		b.slow = 2 * silence
		for i := range 8 {
			b.send(watch.Modified, "y", string(rune('1'+i))+"1")
		}

		b.pass(16*silence + time.Minute)
		b.expect("", "present y 11, present y 21, present y 31, present y 41, "+
			"present y 51, present y 61, present y 71, present y 81")

		b.slow = 0
	})
}

// A new selector continues from the position of the old one, without a list and without a gap.
func TestStreamSelects(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.begins()
		b.send(watch.Bookmark, "", "30")
		b.expect("", "")
		b.stream.Select("two", false)
		b.expect("watch two from 30, stop one from 10", "")
		b.send(watch.Added, "y", "31")
		b.expect("", "present y 31")

		// While the next watch cannot be opened, this is reported, and the old selector is not used again.
		err := refusals["503"]
		b.set("watch", err)
		b.stream.Select("three", false)
		b.expect("watch three from 31, stop two from 30", "failed: watch configmaps: "+err.Error())
		b.stream.Select("four", false)
		b.stream.Select("five", false)
		b.set("watch", nil)
		b.pass(250 * time.Millisecond)
		b.expect("watch five from 31", "well")

		b.stream.Select("five", true)
		b.pass(time.Second)
		b.expect("stop five from 31, list five, watch five from 10", "begin, present x 10, listed, well, well")
	})
}

// Whatever an API server does to watches, the number of requests stays limited.
func TestStreamDoesNotSpin(t *testing.T) {
	for what, end := range map[string]func(b *bubble){
		"cut": func(b *bubble) { close(b.last().events) },
		"no longer": func(b *bubble) {
			b.last().events <- watch.Event{Type: watch.Error, Object: new(gone.Status())}
		},
		"error": func(b *bubble) {
			b.last().events <- watch.Event{Type: watch.Error, Object: new(apierrors.NewInternalError(errors.New("no")).Status())}
		},
		"unknown": func(b *bubble) { b.last().events <- watch.Event{Type: watch.Error, Object: &metav1.Status{}} },
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				for range 6000 { // ten minutes
					if b.opened() {
						end(b)
					}

					b.pass(100 * time.Millisecond)
				}

				require.Less(t, b.count(), 2*(10*2+10), "there should be only the requests of a minute or two")
			})
		})
	}

	t.Run("refused", func(t *testing.T) {
		inBubble(t, func(b *bubble) {
			b.begins()
			b.set("watch", refusals["404"])
			b.set("list", refusals["404"])
			close(b.last().events)
			b.pass(10 * time.Minute)
			require.Less(t, b.count(), 10*2+10)
		})
	})

	t.Run("a list that fails, however often it is requested", func(t *testing.T) {
		inBubble(t, func(b *bubble) {
			b.begins()
			b.set("list", refusals["503"])

			for range 6000 { // ten minutes
				b.stream.Select("one", true)
				b.pass(100 * time.Millisecond)
			}

			require.Less(t, b.count(), 2*(10*2+10), "there should be only the requests of a minute or two")
		})
	})
}

// A list that shows no version from which to watch is an error, and the next one waits.
func TestStreamPausesWithoutVersion(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.begins()
		b.fake.mu.Lock()
		b.version = ""
		b.fake.mu.Unlock()
		b.set("stream", apierrors.NewMethodNotSupported(gr, "watch"))
		b.stream.Select("one", true)
		b.pass(10 * time.Minute)
		require.Less(t, b.count(), 2*(10*2+10), "two requests for a list")
		require.Equal(t, "failed: list configmaps: the list has no resource version from which to watch", b.lastSaid())
	})
}

// Watches that end at once, again and again, are reported until one lasts.
func TestStreamTellsThatWatchesEnd(t *testing.T) {
	for what, end := range map[string]func(b *bubble){
		"cut": func(b *bubble) { close(b.last().events) },
		"no longer": func(b *bubble) {
			b.last().events <- watch.Event{Type: watch.Error, Object: new(gone.Status())}
		},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				const ends = "failed: watch configmaps: again and again, the watch ends within 10s; " +
					"find out what ends it between the rebalancer and the API server"

				for range brief {
					require.True(t, b.opened())
					require.Equal(t, "well", b.lastSaid())
					end(b)

					for !b.opened() {
						b.pass(100 * time.Millisecond)
					}

					b.known--
				}

				require.Equal(t, ends, b.lastSaid())
				b.pass(calm - time.Second)
				require.Equal(t, ends, b.lastSaid())
				b.pass(time.Second)
				require.Equal(t, "well", b.lastSaid(), "this watch lasts")
				end(b)
				b.pass(time.Second)
				require.Equal(t, "well", b.lastSaid())
			})
		})
	}
}

// lastSaid waits until nothing more happens now, and returns the last call of the stream.
func (b *bubble) lastSaid() string {
	synctest.Wait()
	b.notes.mu.Lock()
	defer b.notes.mu.Unlock()

	return b.said[len(b.said)-1]
}

// opened reports whether a watch was opened since its last call.
func (b *bubble) opened() bool {
	b.fake.mu.Lock()
	defer b.fake.mu.Unlock()

	news := len(b.open) > b.known
	b.known = len(b.open)

	return news
}

// A requested list waits for nothing, not even until the API server accepts watches.
func TestStreamListsAtOnceWhenAsked(t *testing.T) {
	inBubble(t, func(b *bubble) {
		err := refusals["503"]

		b.begins()

		for range 3 {
			b.stream.Select("one", true)
			b.expect("stop one from 10, list one, watch one from 10", "begin, present x 10, listed, well, well")
		}

		b.pass(time.Minute)
		b.set("watch", err)
		close(b.last().events)
		b.expect("stop one from 10, watch one from 10", "failed: watch configmaps: "+err.Error())

		b.stream.Select("one", true)
		b.expect("list one, watch one from 10", "begin, present x 10, listed, well, failed: watch configmaps: "+err.Error())
	})
}
