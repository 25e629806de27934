// Package ancestry remembers who controls the objects that stand between a main object and the objects that follow it, such as the
// ReplicaSets between a Deployment and its Pods, and the labels of main objects that are the keys of those that follow them.
//
// When it is first asked about such an object, it reads the object's metadata from the API server, and remembers the controller for
// some time, because a controller hardly ever changes. A service that passes over all objects reports what it sees, so that most of
// these reads are not necessary. The package writes nothing.
//
// A label changes more often than a controller. A service that does not see every change reads it each time: see
// [Options].LabelsAnew.
package ancestry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/services/internal/resources"
)

const (
	// absent is how long the absence of an object is remembered. No other object can get its UID, but a reader may be ahead of
	// others. It holds only for the name under which the object was looked for: anybody can make an owner reference of a UID and another
	// name.
	absent = 5 * time.Second
)

// Options configure a [Book]. Read, Size, Remember, and Clock are required.
type Options struct {
	// Read reads the metadata of an object. Its error is NotFound if the object does not exist.
	Read func(ctx context.Context, gvr schema.GroupVersionResource, name types.NamespacedName) (*metav1.PartialObjectMetadata, error)
	// Size is the maximum number of remembered objects, at some 300 bytes each, and Remember is how long they are remembered. The
	// least recently used object is dropped first.
	Size     int
	Remember time.Duration
	// Patience is how long a call may take that reads, and AtOnce is how many reads run at a time. Default: 2 seconds, and 32.
	Patience time.Duration
	AtOnce   int
	// LabelsAnew makes [Book.LabelsOf] read all labels of the object for each call, and remember nothing. Otherwise, it returns only the
	// label that is the key.
	LabelsAnew bool
	Clock      clock.PassiveClock
}

// Book implements [resources.Ancestors]. Create it with [New]. It may be used by several goroutines.
type Book struct {
	options Options
	entries *cache.LRUExpireCache
	reads   singleflight.Group
	reading chan struct{} // full while as many reads run as may

	mu sync.RWMutex
	// between are the resources of the objects whose controllers were asked for.
	between sets.Set[schema.GroupResource]
}

// entry is what is remembered about an object that exists.
type entry struct {
	controller *metav1.OwnerReference
	found      bool
}

// named identifies the remembered absence of an object.
type named struct {
	resource schema.GroupResource
	name     types.NamespacedName
	uid      types.UID
}

func nameOf(of resources.Owner) named {
	return named{of.Resource.GroupResource(), of.NamespacedName, of.UID}
}

// keyOf identifies the remembered value of a label.
type keyOf struct {
	uid   types.UID
	label string
}

// keyed is what is remembered about a label of a main object.
type keyed struct {
	value   string
	version string
}

// New returns an empty book.
func New(o Options) *Book {
	o.Patience, o.AtOnce = cmp.Or(o.Patience, 2*time.Second), cmp.Or(o.AtOnce, 32)

	return &Book{options: o, reading: make(chan struct{}, o.AtOnce), entries: cache.NewLRUExpireCacheWithClock(o.Size, o.Clock), between: sets.New[schema.GroupResource]()}
}

// ControllerOf implements [resources.Ancestors].
func (b *Book) ControllerOf(ctx context.Context, of resources.Owner) (controller *metav1.OwnerReference, found bool, err error) {
	b.asked(of.Resource.GroupResource())

	if known, ok := b.entries.Get(of.UID); ok {
		e, _ := known.(entry)
		return e.controller, e.found, nil
	}

	if b.absent(of) {
		return nil, false, nil
	}

	read, err, _ := b.reads.Do(fmt.Sprint(nameOf(of)), func() (any, error) { return b.read(context.WithoutCancel(ctx), of) })
	if err != nil {
		return nil, false, fmt.Errorf("determine who controls %s %s: %w", of.Resource.GroupResource(), of.NamespacedName, err)
	}

	e, _ := read.(entry)

	return e.controller, e.found, nil
}

// absent reports whether the object was looked for lately, and did not exist.
func (b *Book) absent(of resources.Owner) bool {
	_, absent := b.entries.Get(nameOf(of))

	return absent
}

func (b *Book) asked(gr schema.GroupResource) {
	if b.Between(gr) {
		return
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	b.between.Insert(gr)
}

// Between reports whether an object of the resource was ever asked for, because another object follows it.
func (b *Book) Between(gr schema.GroupResource) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()

	return b.between.Has(gr)
}

// Saw records the controller of an object; nil if it has none. It ignores resources that nobody has asked for.
func (b *Book) Saw(gr schema.GroupResource, uid types.UID, controller *metav1.OwnerReference) {
	if b.Between(gr) {
		b.entries.Add(uid, entry{controller: slim(controller), found: true}, b.options.Remember)
	}
}

// LabelsOf implements [resources.Ancestors].
func (b *Book) LabelsOf(ctx context.Context, of resources.Owner) (labels map[string]string, found bool, err error) {
	id := keyOf{of.UID, of.Resource.Key.Label}

	if known, ok := b.entries.Get(id); ok && !b.options.LabelsAnew {
		e, _ := known.(keyed)
		return e.labels(id.label), true, nil
	}

	if !b.options.LabelsAnew && b.absent(of) {
		return nil, false, nil
	}

	// Together with a read that has not begun yet. One that has may not show what the caller knows to have happened.
	name := "labels " + fmt.Sprint(nameOf(of))
	read, err, _ := b.reads.Do(name, func() (any, error) {
		return b.object(context.WithoutCancel(ctx), of, func() { b.reads.Forget(name) })
	})
	obj, _ := read.(*metav1.PartialObjectMetadata)

	switch {
	case err != nil:
		return nil, false, fmt.Errorf("read the label %s of %s %s: %w", id.label, of.Resource.GroupResource(), of.NamespacedName, err)
	case b.options.LabelsAnew && obj == nil:
		return nil, false, nil
	case b.options.LabelsAnew:
		return obj.Labels, true, nil
	case obj == nil:
		b.entries.Add(nameOf(of), struct{}{}, absent)
		return nil, false, nil
	}

	value := obj.Labels[id.label]
	b.SawLabel(id.uid, id.label, value, obj.ResourceVersion)

	return keyed{value: value}.labels(id.label), true, nil
}

func (k keyed) labels(label string) map[string]string {
	if k.value == "" {
		return nil
	}

	return map[string]string{label: k.value}
}

// SawLabel records the value of a main object's label in a version of the object; an empty value is no label. It ignores versions that
// are older than the recorded one.
func (b *Book) SawLabel(uid types.UID, label, value, version string) {
	b.mu.Lock()
	defer b.mu.Unlock()

	id := keyOf{uid, label}
	if known, ok := b.entries.Get(id); ok {
		if e, _ := known.(keyed); older(version, e.version) {
			return
		}
	}

	b.entries.Add(id, keyed{value, version}, b.options.Remember)
}

// older reports whether the resource version a of an object precedes b; false if they are not comparable.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)

	return err == nil && order < 0
}

// object reads an object; nil if it does not exist. It calls the function before.
func (b *Book) object(ctx context.Context, of resources.Owner, begin func()) (*metav1.PartialObjectMetadata, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, b.options.Patience, fmt.Errorf("%w within %s", ErrBusy, b.options.Patience))
	defer cancel()

	select {
	case b.reading <- struct{}{}:
		defer func() { <-b.reading }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}

	begin()

	obj, err := b.options.Read(ctx, of.Resource.GVR, of.NamespacedName)
	if resources.IsGone(err) || err == nil && obj.UID != of.UID {
		return nil, nil //nolint:nilnil // that it does not exist is an answer
	}

	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}

	return obj, err
}

// ErrBusy is the error of a read that was given up.
var ErrBusy = errors.New("the API server has not answered")

func (b *Book) read(ctx context.Context, of resources.Owner) (entry, error) {
	obj, err := b.object(ctx, of, func() {})

	switch {
	case err != nil:
		return entry{}, err
	case obj == nil:
		b.entries.Add(nameOf(of), struct{}{}, absent)
		return entry{}, nil
	}

	e := entry{controller: slim(metav1.GetControllerOfNoCopy(obj)), found: true}
	b.entries.Add(of.UID, e, b.options.Remember)

	return e, nil
}

// slim returns a reference without unused fields.
func slim(ref *metav1.OwnerReference) *metav1.OwnerReference {
	if ref == nil {
		return nil
	}

	return &metav1.OwnerReference{APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name, UID: ref.UID, Controller: ref.Controller}
}
