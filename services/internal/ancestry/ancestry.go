// Package ancestry knows who controls the objects that stand between a main object and those which follow it: the ReplicaSets between a
// Deployment and its Pods.
//
// It reads the metadata of such an object from the API server when somebody asks for it first, and remembers who controls it for some time.
// That hardly ever changes; a service that goes over all objects says what it sees, so that neither has to be read then. It writes nothing.
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
	// absent is for how long it is remembered that there is no such object. Nobody can get its UID, but a reader may be ahead of others.
	absent = 5 * time.Second
)

// Options are what a [Book] needs. All fields are required.
type Options struct {
	// Read reads the metadata of an object. Its error is NotFound if there is none.
	Read func(ctx context.Context, gvr schema.GroupVersionResource, name types.NamespacedName) (*metav1.PartialObjectMetadata, error)
	// Size is how many objects are remembered at most, at some 300 bytes each, and Remember for how long. Whoever is looked for longest ago goes
	// first.
	Size     int
	Remember time.Duration
	Clock    clock.PassiveClock
}

// Book implements [resources.Ancestors]. Make it with [New]; it may be used by several goroutines.
type Book struct {
	options Options
	entries *cache.LRUExpireCache
	reads   singleflight.Group

	mu sync.RWMutex
	// between are the resources of those that were asked for.
	between sets.Set[schema.GroupResource]
}

// entry is what is remembered of an object.
type entry struct {
	controller *metav1.OwnerReference
	found      bool
}

// New returns a book in which nothing is written yet.
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
		return nil, false, fmt.Errorf("find out who controls %s %s: %w", of.Resource.GroupResource(), of.NamespacedName, err)
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

// Between reports whether an object of the resource was ever asked for, because another follows it.
func (b *Book) Between(gr schema.GroupResource) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()

	return b.between.Has(gr)
}

// Saw notes who controls an object, nil if nobody does. Of resources that nobody has asked for nothing is kept.
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

// slim returns a reference without what nobody reads.
func slim(ref *metav1.OwnerReference) *metav1.OwnerReference {
	if ref == nil {
		return nil
	}

	return &metav1.OwnerReference{APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name, UID: ref.UID, Controller: ref.Controller}
}
