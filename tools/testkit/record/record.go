// Package record records the versions of a ring's objects and of its shards' Leases.
//
// It watches them at the API server with administrator rights, and keeps every version that differs in a field of
// [check.Version]. It makes no decisions.
package record

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/history"
)

// Now returns the time since the start of the machine, which is the same for all processes.
func Now() time.Duration { return history.Monotonic() }

// start is one point in time on both clocks.
var start = struct {
	wall  time.Time
	since time.Duration
}{time.Now(), Now()}

// At returns the value of [Now] at a time that this process has measured.
func At(t time.Time) time.Duration { return start.since + t.Sub(start.wall) }

// Options select what to record.
type Options struct {
	// Ring is the name of the ring. LeaseNamespace contains the Leases of its shards; if it is empty, Leases are not
	// recorded.
	Ring, LeaseNamespace string
	// Labels are the labels of the ring.
	Labels Labels
	// Objects are the objects of the ring.
	Objects []Objects
}

// Labels are the keys of the labels that assign an object to a shard of a ring, and that ask the shard to release it.
type Labels struct{ Shard, Drain string }

// Objects are those of one kind in one namespace.
type Objects struct {
	// Kind is one of the kinds of package check, except Lease.
	Kind string
	// Namespace is empty for cluster-scoped objects.
	Namespace string
}

// Recorder records until the context of [Start] ends. It is safe for concurrent use.
type Recorder struct {
	options Options
	waits   []func()

	mu       sync.Mutex
	versions []check.Version
	newest   map[string]check.Version // by UID
	last     map[string]int           // by UID: the index of the last one that was kept
	err      error
}

// watched maps recorded kinds to their resources.
var watched = map[string]schema.GroupVersionResource{
	check.Website:   {Group: "example.clusterring.dev", Version: "v1alpha1", Resource: "websites"},
	check.ConfigMap: {Version: "v1", Resource: "configmaps"},
	check.Fleet:     {Group: "example.clusterring.dev", Version: "v1alpha1", Resource: "fleets"},
	check.Ship:      {Group: "example.clusterring.dev", Version: "v1alpha1", Resource: "ships"},
	check.Lease:     {Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
}

// Resource returns the resource of a recorded kind.
func Resource(kind string) schema.GroupVersionResource { return watched[kind] }

// Start records the existing objects and all changes until ctx ends. Then call [Recorder.Wait].
func Start(ctx context.Context, config *rest.Config, o Options) (*Recorder, error) {
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client to record with: %w", err)
	}

	r := &Recorder{options: o, newest: map[string]check.Version{}, last: map[string]int{}}
	if o.LeaseNamespace != "" {
		of := c.Resource(watched[check.Lease]).Namespace(o.LeaseNamespace)
		if err := r.follow(ctx, check.Lease, of, "alpha.sharding.timebertt.dev/clusterring="+o.Ring); err != nil {
			return nil, err
		}
	}

	for _, of := range o.Objects {
		if err := r.follow(ctx, of.Kind, c.Resource(watched[of.Kind]).Namespace(of.Namespace), ""); err != nil {
			return nil, err
		}
	}

	return r, nil
}

func (r *Recorder) follow(ctx context.Context, kind string, of dynamic.ResourceInterface, selector string) error {
	wait, err := Follow(ctx, of, selector, Observer[*unstructured.Unstructured]{
		See: func(event watch.EventType, object *unstructured.Unstructured) {
			r.add(kind, object, event == watch.Deleted)
		},
		Fail: func(err error) { r.fail(fmt.Errorf("the record of %ss is incomplete: %w", kind, err)) },
	})
	if err != nil {
		return fmt.Errorf("record %ss: %w", kind, err)
	}

	r.waits = append(r.waits, wait)

	return nil
}

func (r *Recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.err = err
}

// add keeps a version if it differs from the previous one.
func (r *Recorder) add(kind string, o *unstructured.Unstructured, deleted bool) {
	labels := o.GetLabels()
	v := check.Version{
		Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID()),
		Shard: labels[r.options.Labels.Shard], At: Now(), Deleted: deleted,
	}
	_, v.Draining = labels[r.options.Labels.Drain]

	if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
		v.Owner = string(owner.UID)
	}

	number, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		r.fail(fmt.Errorf("resource version of %s %s: %w", kind, v.Name, err))
		return
	}

	v.Number = number

	switch kind {
	case check.Lease:
		v.Holder, _, _ = unstructured.NestedString(o.Object, "spec", "holderIdentity")
		seconds, _, _ := unstructured.NestedInt64(o.Object, "spec", "leaseDurationSeconds")
		renewed, _, _ := unstructured.NestedString(o.Object, "spec", "renewTime")
		v.Duration, v.State = time.Duration(seconds)*time.Second, labels["alpha.sharding.timebertt.dev/state"]
		v.Renewed, _ = time.Parse(metav1.RFC3339Micro, renewed) // zero if it was never renewed
	case check.Website:
		v.Complete = complete(o)
	case check.Fleet:
		replicas, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
		ships, _, _ := unstructured.NestedInt64(o.Object, "status", "ships")
		observed, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
		v.Replicas, v.Complete = int(replicas), ships == replicas && observed == o.GetGeneration()
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	before := r.newest[v.UID]
	r.newest[v.UID] = v

	before.At, before.Number, before.Renewed = v.At, v.Number, v.Renewed
	if before != v {
		r.last[v.UID] = len(r.versions)
		r.versions = append(r.versions, v)
	} else {
		r.versions[r.last[v.UID]].Renewed = v.Renewed
	}
}

// complete reports whether the condition Ready is true for the current generation.
func complete(o *unstructured.Unstructured) bool {
	observed, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")

	return observed == o.GetGeneration() && slices.ContainsFunc(conditions, func(c any) bool {
		condition, _ := c.(map[string]any)
		return condition["type"] == "Ready" && condition["status"] == "True"
	})
}

// Versions returns the versions recorded so far. It returns an error if the record is incomplete.
func (r *Recorder) Versions() ([]check.Version, error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	return slices.Clone(r.versions), r.err
}

// Newest returns the newest version of every object, including deleted ones.
func (r *Recorder) Newest() []check.Version {
	r.mu.Lock()
	defer r.mu.Unlock()

	return slices.Collect(maps.Values(r.newest))
}

// Wait waits until recording has stopped after the end of the context.
func (r *Recorder) Wait() {
	for _, wait := range r.waits {
		wait()
	}
}

// Lister is any client of client-go for one resource.
type Lister[L List] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// List is a list of objects.
type List interface {
	runtime.Object
	metav1.ListInterface
}

// Observer receives the events of [Follow].
type Observer[T metav1.Object] struct {
	// See is called for each existing object, as an added one, and then for each change.
	See func(event watch.EventType, object T)
	// Fail is called if events may have been missed.
	Fail func(error)
}

// Follow lists a resource, and then watches it in another goroutine until ctx ends; after that, wait returns. A broken
// watch resumes at the last event, so no event is lost. An empty selector selects all objects.
func Follow[L List, T metav1.Object](ctx context.Context, of Lister[L], selector string,
	o Observer[T]) (wait func(), err error) {
	list, err := of.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}

	err = meta.EachListItem(list, func(item runtime.Object) error {
		object, is := any(item).(T)
		if !is {
			return fmt.Errorf("an item is a %T", item)
		}
		o.See(watch.Added, object)

		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}

	events, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = selector
			return of.Watch(ctx, options)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}

	var running sync.WaitGroup
	running.Go(func() {
		for event := range events.ResultChan() {
			object, is := event.Object.(T)
			switch {
			case event.Type == watch.Bookmark:
			case event.Type == watch.Error || !is:
				o.Fail(fmt.Errorf("the watch has failed: %v", event.Object))
			default:
				o.See(event.Type, object)
			}
		}
	})

	return running.Wait, nil
}
