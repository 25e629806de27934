package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// bookmarks is the interval of bookmarks.
	bookmarks = time.Minute
	// longest is the duration of a watch that requests no timeout.
	longest = 30 * time.Minute
)

// Watch delivers changes from a version on: ADDED when an object begins to match, and DELETED with the previous object
// when it no longer matches. With sendInitialEvents, or without a version, it begins with the existing objects.
func (c *Client) Watch(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) (watch.Interface, error) {
	initial := opts.SendInitialEvents != nil && *opts.SendInitialEvents

	r := request{
		verb: "watch", resource: gvr.GroupResource(),
		what: fmt.Sprintf("%s %q %q %q %t", gvr.Version, namespace, opts.LabelSelector, opts.FieldSelector, initial),
	}
	if initial {
		r.kind = "list"
	}

	var w *watcher

	err := c.do(ctx, r, func() error {
		if err := c.server.refuses(gvr, r); err != nil {
			return err
		}

		f, err := newFilter(namespace, opts)
		if err != nil {
			return err
		}

		if opts.SendInitialEvents != nil && !c.server.config.Streaming {
			return apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "ListOptions"}, "",
				field.ErrorList{field.Forbidden(field.NewPath("sendInitialEvents"), "the feature gate WatchList is not enabled")})
		}

		w = c.server.open(c, r, opts)
		w.gvr, w.filter = gvr, f
		w.begin(opts, initial)

		return nil
	})
	if err != nil {
		return nil, err
	}

	c.server.group.Go(func() { w.run(ctx) })

	return w, nil
}

// watcher is an open watch. Its events wait in line, each for its time.
type watcher struct {
	server  *Server
	client  *Client
	request request
	gvr     schema.GroupVersionResource
	filter  filter
	seed    uint64
	ends    time.Time
	marks   bool
	results chan watch.Event
	stopped chan struct{}
	wake    chan struct{}

	// The lock of the server guards the remaining fields.
	line  []item
	last  time.Time // when the last item in line is due
	said  uint64
	blind bool
	over  bool // no more items are added
	done  bool // Stop was called
}

// item is one event in line. Without a type, it is the end of the watch.
type item struct {
	due   time.Time
	event watch.Event
}

// open creates a watcher. The lock is held.
func (s *Server) open(c *Client, r request, opts metav1.ListOptions) *watcher {
	key := "watcher " + c.name + " " + r.resource.String() + " " + r.what
	s.nth[key]++

	w := &watcher{
		server: s, client: c, request: r, seed: s.hash(key, s.nth[key]), marks: opts.AllowWatchBookmarks,
		results: make(chan watch.Event), stopped: make(chan struct{}), wake: make(chan struct{}, 1),
		last: s.clock.Now(),
	}

	w.ends = s.clock.Now().Add(longest + time.Duration(w.seed%uint64(longest)))
	if opts.TimeoutSeconds != nil && *opts.TimeoutSeconds > 0 {
		w.ends = s.clock.Now().Add(time.Duration(*opts.TimeoutSeconds) * time.Second)
	}

	w.blind = s.lasts(Blind, c.class, r) > 0

	return w
}

// begin adds the changes since the version to the line, and registers the watcher. The lock is held.
func (w *watcher) begin(opts metav1.ListOptions, initial bool) {
	s := w.server
	from, err := strconv.ParseInt(opts.ResourceVersion, 10, 64)

	switch {
	case initial || err != nil || from == 0:
		for _, o := range w.filter.selected(s.store(w.gvr.GroupResource()).objects) {
			w.say(watch.Added, o, s.version)
		}

		if initial && w.marks {
			w.mark(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		}
	case from < s.compacted:
		w.end(Expired)
		return
	default:
		for _, c := range s.store(w.gvr.GroupResource()).history {
			if c.version > from {
				w.notice(c)
			}
		}
	}

	s.watchers[w] = struct{}{}
}

// notice adds the event that a change causes in this watch to the line. The lock is held.
func (w *watcher) notice(c change) {
	before, after := w.filter.matches(c.before), w.filter.matches(c.after)

	switch {
	case before && after:
		w.say(watch.Modified, c.after, c.version)
	case after:
		w.say(watch.Added, c.after, c.version)
	case before:
		gone := c.before.DeepCopy()
		gone.ResourceVersion = strconv.FormatInt(c.version, 10)
		w.say(watch.Deleted, gone, c.version)
	}
}

func (w *watcher) mark(annotations map[string]string) {
	o := &metav1.PartialObjectMetadata{}
	o.ResourceVersion, o.Annotations = strconv.FormatInt(w.server.version, 10), annotations
	w.say(watch.Bookmark, o, w.server.version)
}

// say adds an event to the line. The lock is held.
func (w *watcher) say(what watch.EventType, o runtime.Object, version int64) {
	if w.over {
		return
	}

	s := w.server
	now := s.clock.Now()

	w.said++
	due := now.Add(time.Millisecond + time.Duration(mix(w.seed, w.said^uint64(version)<<20)%uint64(12*time.Millisecond))) //nolint:gosec // a version
	due = due.Add(s.lasts(Stall, w.client.class, w.request))

	if !due.After(w.last) {
		due = w.last.Add(1 + time.Duration(mix(w.seed, w.said)%1000))
	}

	w.last = due
	w.line = append(w.line, item{due, watch.Event{Type: what, Object: o}})

	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// end adds the end of the watch to the line. The lock is held.
func (w *watcher) end(how Break) {
	switch how {
	case Expired:
		w.say(watch.Error, &apierrors.NewResourceExpired("too old resource version").ErrStatus, w.server.version)
	case Failed:
		w.say(watch.Error, &metav1.Status{
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError,
			Message: "an error on the server has prevented the request from succeeding",
		}, w.server.version)
	case Closed:
	}

	w.say("", nil, w.server.version)
	w.over = true
}

// ResultChan returns the channel of events. It is closed when the watch has ended.
func (w *watcher) ResultChan() <-chan watch.Event { return w.results }

// Stop ends the watch. It may be called several times and is safe for concurrent use.
func (w *watcher) Stop() {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()

	if !w.done {
		w.done, w.over = true, true
		delete(w.server.watchers, w)
		close(w.stopped)
	}
}

// run delivers the items in line until the watch ends.
func (w *watcher) run(ctx context.Context) {
	defer close(w.results)
	defer w.Stop()

	s := w.server
	nextMark := s.clock.Now().Add(bookmarks/2 + time.Duration(mix(w.seed, 7)%uint64(bookmarks/2)))

	for {
		s.mu.Lock()

		now := s.clock.Now()
		if w.marks && !now.Before(nextMark) {
			nextMark = nextMark.Add(bookmarks)
			w.mark(nil)
		}

		if !now.Before(w.ends) && !w.over {
			w.end(Closed)
		}

		wait := min(nextMark.Sub(now), max(0, w.ends.Sub(now)))
		if w.over || !w.marks {
			wait = w.ends.Sub(now)
		}

		var next *item

		if len(w.line) > 0 {
			if wait = w.line[0].due.Sub(now); wait <= 0 {
				next = &w.line[0]
				w.line = w.line[1:]
			}
		} else if w.over {
			wait = longest
		}

		blind := w.blind
		s.mu.Unlock()

		switch {
		case next == nil:
			if !w.sleep(ctx, wait) {
				return
			}
		case blind: // neither events nor the end are delivered
		case next.event.Type == "":
			return
		case !w.deliver(ctx, next.event):
			return
		}
	}
}

// sleep waits until there may be something to do. It returns false if the watch has ended.
func (w *watcher) sleep(ctx context.Context, d time.Duration) bool {
	timer := w.server.clock.NewTimer(max(d, 1))
	defer timer.Stop()

	select {
	case <-timer.C():
		return true
	case <-w.wake:
		return true
	case <-w.stopped:
		return false
	case <-ctx.Done():
		return false
	}
}

func (w *watcher) deliver(ctx context.Context, e watch.Event) bool {
	select {
	case w.results <- e:
		return true
	case <-w.stopped:
		return false
	case <-ctx.Done():
		return false
	}
}
