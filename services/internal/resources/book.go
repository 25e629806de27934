package resources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/clock"
)

// absent is how long the absence of an object is remembered. No other object can get its UID, but a reader may be ahead
// of others. It holds only for the name under which the object was looked for: anybody can make an owner reference of a
// UID and another name.
const absent = 5 * time.Second

// BookOptions configure a [Book]. Read, Size, Remember, and Clock are required.
type BookOptions struct {
	// Read reads the metadata of an object. Its error is NotFound if the object does not exist.
	Read func(ctx context.Context, gvr schema.GroupVersionResource,
		name types.NamespacedName) (*metav1.PartialObjectMetadata, error)
	// Size is the maximum number of remembered objects, at some 300 bytes each, and Remember is how long they are
	// remembered. The least recently used object is dropped first.
	Size     int
	Remember time.Duration
	// Patience is how long a call may take that reads, and AtOnce is how many reads run at a time. Default: 2 seconds,
	// and 32.
	Patience time.Duration
	AtOnce   int
	// LabelsAnew makes [Book.LabelsOf] read all labels of the object for each call, and remember nothing. Otherwise, it
	// returns only the label that is the key.
	LabelsAnew bool
	Clock      clock.PassiveClock
}

// Book remembers who controls the objects that stand between a main object and the objects that follow it, such as the
// ReplicaSets between a Deployment and its Pods, and the labels of main objects that are the keys of those that follow
// them.
//
// When it is first asked about such an object, it reads the object's metadata from the API server, and remembers the
// controller for some time, because a controller hardly ever changes. A service that passes over all objects reports
// what it sees, so that most of these reads are not necessary. A label changes more often than a controller. A service
// that does not see every change reads it each time: see [BookOptions].LabelsAnew.
//
// Book implements [Ancestors]. Create it with [NewBook]. It may be used by several goroutines.
type Book struct {
	options BookOptions
	// entries are by UID who controls an object, as an owner reference, nil for nobody; by keyOf what its labels decide;
	// and by Owner that it did not exist.
	entries *cache.LRUExpireCache
	reads   singleflight.Group
	reading chan struct{} // full while as many reads run as may

	// between are the resources of the objects whose controllers were asked for: [schema.GroupResource].
	between sync.Map
	mu      sync.Mutex // held while a sight is compared with the recorded one
}

// keyOf identifies what is remembered of the labels of a main object: the value of one, and whether a selector selects
// the object.
type keyOf struct {
	uid             types.UID
	label, selector string
}

// NewBook returns an empty book.
func NewBook(o BookOptions) *Book {
	o.Patience, o.AtOnce = cmp.Or(o.Patience, 2*time.Second), cmp.Or(o.AtOnce, 32)

	return &Book{
		options: o, reading: make(chan struct{}, o.AtOnce),
		entries: cache.NewLRUExpireCacheWithClock(o.Size, o.Clock),
	}
}

// ControllerOf implements [Ancestors].
func (b *Book) ControllerOf(ctx context.Context, of Owner) (controller *metav1.OwnerReference, found bool, err error) {
	b.between.LoadOrStore(of.Resource.GroupResource(), struct{}{})

	if known, ok := b.entries.Get(of.UID); ok {
		controller, _ = known.(*metav1.OwnerReference)

		return controller, true, nil
	}

	obj, err := b.object(ctx, of, false)
	if err != nil {
		return nil, false, fmt.Errorf("determine who controls %s %s: %w", of.Resource.GroupResource(), of.NamespacedName, err)
	}

	if obj == nil {
		return nil, false, nil
	}

	controller = metav1.GetControllerOf(obj)
	b.entries.Add(of.UID, controller, b.options.Remember)

	return controller, true, nil
}

// Between reports whether an object of the resource was ever asked for, because another object follows it.
func (b *Book) Between(gr schema.GroupResource) bool {
	_, asked := b.between.Load(gr)

	return asked
}

// Saw records the controller of an object; nil if it has none. It ignores resources that nobody has asked for.
func (b *Book) Saw(gr schema.GroupResource, uid types.UID, controller *metav1.OwnerReference) {
	if b.Between(gr) {
		b.entries.Add(uid, controller.DeepCopy(), b.options.Remember)
	}
}

// LabelsOf implements [Ancestors].
func (b *Book) LabelsOf(ctx context.Context, of Owner) (labels Labels, found bool, err error) {
	id := keyOf{of.UID, of.Resource.Key.Label, of.Resource.Selector}

	if known, ok := b.entries.Get(id); ok && !b.options.LabelsAnew {
		e, _ := known.(Sight)
		return e.labels(id.label), true, nil
	}

	obj, err := b.object(ctx, of, b.options.LabelsAnew)

	switch {
	case err != nil:
		return labels, false, fmt.Errorf("read the labels of %s %s: %w", of.Resource.GroupResource(), of.NamespacedName, err)
	case obj == nil:
		return labels, false, nil
	case b.options.LabelsAnew:
		return Labels{All: obj.Labels, Selected: of.Resource.Selects(obj.Labels)}, true, nil
	}

	now := Sight{of.UID, obj.Labels[id.label], of.Resource.Selects(obj.Labels), obj.ResourceVersion}
	b.SawLabels(of.Resource, now)

	return now.labels(id.label), true, nil
}

// Sight is what the labels of a main object decide in a version of the object.
type Sight struct {
	UID types.UID
	// Value is the value of the label that is the key of the object; empty if it has none.
	Value string
	// Selected reports whether the selector of the resource selects the object.
	Selected bool
	// Version is the resource version of the object.
	Version string
}

func (s Sight) labels(label string) Labels {
	if s.Value == "" {
		return Labels{Selected: s.Selected}
	}

	return Labels{All: map[string]string{label: s.Value}, Selected: s.Selected}
}

// SawLabels records a sight of a main object of the resource. It ignores versions that are older than the recorded one.
func (b *Book) SawLabels(of Resource, is Sight) {
	b.mu.Lock()
	defer b.mu.Unlock()

	id := keyOf{is.UID, of.Key.Label, of.Selector}

	if known, ok := b.entries.Get(id); ok {
		if e, _ := known.(Sight); Older(is.Version, e.Version) {
			return
		}
	}

	b.entries.Add(id, is, b.options.Remember)
}

// object reads an object; nil if it does not exist, which is remembered for a while. Callers share a read, and if they
// want it anew, only one that has not begun yet: one that has may not show what the caller knows to have happened.
func (b *Book) object(ctx context.Context, of Owner, anew bool) (*metav1.PartialObjectMetadata, error) {
	if _, known := b.entries.Get(of); known && !anew {
		return nil, nil //nolint:nilnil // that it does not exist is an answer
	}

	name := fmt.Sprint(of.Resource.GVR, of.NamespacedName, of.UID, anew)

	read, err, _ := b.reads.Do(name, func() (any, error) {
		return b.read(context.WithoutCancel(ctx), of, func() {
			if anew {
				b.reads.Forget(name)
			}
		})
	})
	if err != nil {
		return nil, err //nolint:wrapcheck // that of the read
	}

	obj, _ := read.(*metav1.PartialObjectMetadata)
	if obj == nil && !anew {
		b.entries.Add(of, struct{}{}, absent)
	}

	return obj, nil
}

// ErrBusy is the error of a read that was given up.
var ErrBusy = errors.New("the API server has not answered")

// read reads an object; nil if it does not exist. It calls the function before.
func (b *Book) read(ctx context.Context, of Owner, begin func()) (*metav1.PartialObjectMetadata, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, b.options.Patience,
		fmt.Errorf("%w within %s", ErrBusy, b.options.Patience))
	defer cancel()

	select {
	case b.reading <- struct{}{}:
		defer func() { <-b.reading }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}

	begin()

	obj, err := b.options.Read(ctx, of.Resource.GVR, of.NamespacedName)
	if IsGone(err) || err == nil && obj.UID != of.UID {
		return nil, nil //nolint:nilnil // that it does not exist is an answer
	}

	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}

	return obj, err
}

// IsGone reports whether the error of a request for one object means that the object does not exist. If an API server
// does not serve the resource, or not in that version, it also answers "not found", which proves nothing about the
// object. In that case, only its mux answers; it sends no Status, and the client records this.
func IsGone(err error) bool {
	var status apierrors.APIStatus

	return apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil &&
		!apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// Continuation returns the token with which a list can continue at a newer version, from the error that the list has
// expired; empty for other errors.
func Continuation(err error) (token string) {
	if status := apierrors.APIStatus(nil); apierrors.IsResourceExpired(err) && errors.As(err, &status) {
		return status.Status().Continue
	}

	return ""
}

// Older reports whether the resource version a of an object precedes b; false if they are not comparable.
func Older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)

	return err == nil && order < 0
}
