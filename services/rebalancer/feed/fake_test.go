package feed

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
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
	// refuse contains the errors of the next lists and watches, by "list", "stream" for streaming lists alone, and "watch".
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

func (f *fake) Watch(_ context.Context, _ schema.GroupVersionResource, _ string, opts metav1.ListOptions) (watch.Interface, error) {
	if opts.SendInitialEvents != nil {
		f.note("list " + opts.LabelSelector)

		w := &watching{events: make(chan watch.Event, 2), stopped: make(chan struct{}), f: &fake{}}
		w.events <- watch.Event{Type: watch.Added, Object: meta("x", "10")}

		end := meta("", f.version)
		end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		w.events <- watch.Event{Type: watch.Bookmark, Object: end}

		return w, cmp.Or(f.refused("list"), f.refused("stream"))
	}

	w := &watching{events: make(chan watch.Event, 100), stopped: make(chan struct{}), f: f, name: opts.LabelSelector + " from " + opts.ResourceVersion}
	f.note("watch " + w.name)

	if err := f.refused("watch"); err != nil {
		return nil, err
	}

	f.mu.Lock()
	defer f.mu.Unlock()

	f.open = append(f.open, w)

	return w, nil
}

func (f *fake) List(_ context.Context, _ schema.GroupVersionResource, _ string, opts metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
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

func (n *notes) Begin()  { n.say("begin") }
func (n *notes) Listed() { n.say("listed") }

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
		b.stream = NewStream(NewClient(b.fake, contract.LabelKeysOf(ring, "")), Scope{GVR: configMaps, Selector: "one"}, b.notes, clock.RealClock{})

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
