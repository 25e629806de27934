// Package ancestry remembers who controls the objects that stand between a main object and the objects that follow it, such as the
// ReplicaSets between a Deployment and its Pods.
//
// When it is first asked about such an object, it reads the object's metadata from the API server, and remembers the controller for
// some time, because a controller hardly ever changes. A service that passes over all objects reports what it sees, so that most of
// these reads are not necessary. The package writes nothing.
package ancestry

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/services/internal/resources"
)

const (
	// patience is how long one read may take.
	patience = 2 * time.Second
	// absent is how long the absence of an object is remembered. No other object can get its UID, but a reader may be ahead of
	// others.
	absent = 5 * time.Second
)

// Options configure a [Book]. All fields are required.
type Options struct {
	// Read reads the metadata of an object. Its error is NotFound if the object does not exist.
	Read func(ctx context.Context, gvr schema.GroupVersionResource, name types.NamespacedName) (*metav1.PartialObjectMetadata, error)
	// Size is the maximum number of remembered objects, at some 300 bytes each, and Remember is how long they are remembered. The
	// least recently used object is dropped first.
	Size     int
	Remember time.Duration
	Clock    clock.PassiveClock
}

// Book implements [resources.Ancestors]. Create it with [New]. It may be used by several goroutines.
type Book struct {
	options Options
	entries *cache.LRUExpireCache
	reads   singleflight.Group

	mu sync.RWMutex
	// between are the resources of the objects that were asked for.
	between sets.Set[schema.GroupResource]
}

// entry is what is remembered about an object.
type entry struct {
	controller *metav1.OwnerReference
	found      bool
}

// New returns an empty book.
func New(o Options) *Book {
	return &Book{options: o, entries: cache.NewLRUExpireCacheWithClock(o.Size, o.Clock), between: sets.New[schema.GroupResource]()}
}

// ControllerOf implements [resources.Ancestors].
func (b *Book) ControllerOf(ctx context.Context, of resources.Owner) (controller *metav1.OwnerReference, found bool, err error) {
	b.asked(of.Resource.GroupResource())

	if known, ok := b.entries.Get(of.UID); ok {
		e, _ := known.(entry)
		return e.controller, e.found, nil
	}

	read, err, _ := b.reads.Do(string(of.UID), func() (any, error) { return b.read(context.WithoutCancel(ctx), of) })
	if err != nil {
		return nil, false, fmt.Errorf("determine who controls %s %s: %w", of.Resource.GroupResource(), of.NamespacedName, err)
	}

	e, _ := read.(entry)

	return e.controller, e.found, nil
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

func (b *Book) read(ctx context.Context, of resources.Owner) (entry, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	obj, err := b.options.Read(ctx, of.Resource.GVR, of.NamespacedName)

	switch {
	case resources.IsGone(err), err == nil && obj.UID != of.UID:
		b.entries.Add(of.UID, entry{}, absent)
		return entry{}, nil
	case err != nil:
		return entry{}, err
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
