package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
)

// ErrOtherShard is the error of a read from the cache of a controlled object that exists, but is not this shard's. The cache contains only
// the shard's own.
var ErrOtherShard = errors.New("it exists, but is not this shard's, so the cache does not contain it: read what users create, or what several objects " +
	"share, with GetAPIReader of the manager, or from a second cache without a selector")

var errOutdated = errors.New("the object has been modified; please apply your changes to the latest version and try again")

// absentFor is for how long an object that does not exist is not looked for again.
const absentFor = 30 * time.Second

// elsewhere returns the error of a read from the cache, or ErrOtherShard. Each controlled object that a reconcile does not find costs a request,
// one in absentFor if it does not exist.
func (c *clients) elsewhere(ctx context.Context, d sort, name types.NamespacedName, err error) error {
	k := c.shard.kind(d.GroupKind, name.Namespace)
	if !d.is || d.main || k == nil || !apierrors.IsNotFound(err) || controller.ReconcileIDFromContext(ctx) == "" {
		return err
	}

	key, now := k.key(name), c.shard.term.clock.Now()
	if asked, ok := c.absent.Get(key); ok && now.Sub(asked.(time.Time)) < absentFor { //nolint:forcetypeassert // nothing else is in it
		return err
	}

	obj, liveErr := k.live(ctx, name)

	switch {
	case liveErr != nil && !apierrors.IsForbidden(liveErr):
		return liveErr
	case obj == nil:
		c.absent.Add(key, now)
		return err
	case c.shard.owns(obj):
		return err // the cache will contain it
	default:
		return fmt.Errorf("read %s %s, which has the shard %q: %w", d.Kind, name, obj.GetLabels()[c.keys.Shard], ErrOtherShard)
	}
}

func (c *clients) create(ctx context.Context, obj client.Object, call func() error) error {
	d, err := c.begin(ctx, "create", obj)
	if err != nil {
		return err
	}

	follows, err := c.follows(ctx, d, obj)
	if err != nil {
		return err
	}

	return c.exchange(d, obj, func() error {
		var m ringMeta
		if follows {
			m.shard = &c.shard.options.Name
		}

		if follows || c.hides(d) {
			c.keys.set(obj, m, true)
		}

		return call()
	})
}

// follows reports whether an object of this shard controls the object, which follows it.
func (c *clients) follows(ctx context.Context, d sort, obj client.Object) (bool, error) {
	by := metav1.GetControllerOfNoCopy(obj)
	if by == nil || !d.is || d.main {
		return false, nil
	}

	gk, _, is := c.checks.kinds.of(schema.FromAPIVersionAndKind(by.APIVersion, by.Kind).GroupKind())

	k := c.shard.kind(gk, obj.GetNamespace())
	if k == nil || !is {
		return false, nil
	}

	name, err := k.named(obj.GetNamespace(), by.Name)
	if err != nil {
		return false, err
	}

	owner := k.shown(ctx, name)

	return owner != nil && owner.GetUID() == by.UID && c.shard.owns(owner), nil
}

func (c *clients) update(ctx context.Context, obj client.Object, call func() error) error {
	d, err := c.begin(ctx, "update", obj)
	if err != nil {
		return err
	}

	if !c.hides(d) {
		return call()
	}

	m, version, err := c.carries(ctx, d, obj)
	if err != nil {
		return err
	}

	return c.exchange(d, obj, func() error {
		c.keys.set(obj, m, true)

		return sent(obj, version, call)
	})
}

// sent calls the function, which sends the object with the version as precondition. If the call fails, the object does not keep it.
func sent(obj metav1.Object, version string, call func() error) error {
	given := obj.GetResourceVersion()
	obj.SetResourceVersion(version)

	err := call()
	if err != nil {
		obj.SetResourceVersion(given)
	}

	return err
}

// carries returns what the object carries in its version. For an object without a version, it is what the object carries now, and in which version. The error
// is a conflict if the version is not the latest.
func (c *clients) carries(ctx context.Context, d sort, obj client.Object) (ringMeta, string, error) {
	k, name, version := c.shard.kind(d.GroupKind, obj.GetNamespace()), client.ObjectKeyFromObject(obj), obj.GetResourceVersion()
	if version != "" {
		if cached := k.shown(ctx, name); cached != nil && cached.GetResourceVersion() == version {
			return c.keys.of(cached), version, nil
		}

		if m, ok := c.remembers(obj); ok {
			return m, version, nil
		}
	}

	live, err := k.live(ctx, name)

	switch {
	case err != nil || live == nil:
		return ringMeta{}, version, err
	case version != "" && version != live.GetResourceVersion():
		conflict := apierrors.NewConflict(schema.GroupResource{Group: d.Group, Resource: d.Kind}, name.Name, errOutdated)

		return ringMeta{}, "", conflict //nolint:wrapcheck // as the API server's
	default:
		return c.keys.of(live), live.GetResourceVersion(), nil
	}
}

func (c *clients) patch(ctx context.Context, obj client.Object, patch client.Patch, call func(client.Patch) error) error {
	d, err := c.begin(ctx, "patch", obj)
	if err != nil {
		return err
	}

	if !c.hides(d) && !c.checkWrites {
		return call(patch)
	}

	data, err := c.kept(ctx, d, obj, patch)
	if err != nil {
		return fmt.Errorf("prepare the patch of %s: %w", client.ObjectKeyFromObject(obj), err)
	}

	return c.exchange(d, obj, func() error { return call(client.RawPatch(patch.Type(), data)) })
}

// kept returns the data of the patch so that the object keeps what it carries, with the precondition that it needs.
func (c *clients) kept(ctx context.Context, d sort, obj client.Object, patch client.Patch) ([]byte, error) {
	data, err := patch.Data(obj)
	if err != nil || patch.Type() == types.ApplyCBORPatchType {
		return data, err //nolint:wrapcheck // it is the patch's
	}

	b, err := c.body(patch.Type(), data, func() (metav1.Object, error) {
		live, err := c.shard.kind(d.GroupKind, obj.GetNamespace()).live(ctx, client.ObjectKeyFromObject(obj))
		if err == nil && live == nil {
			return &metav1.PartialObjectMetadata{}, nil // the API server says so itself
		}

		return live, err
	})
	if err == nil && c.hides(d) {
		err = b.keep()
	}

	if err != nil {
		return nil, err
	}

	if version := c.version(ctx, d, obj); version != "" {
		b.requires(version)
	}

	return b.encoded()
}

// version returns the version that a patch of the object is based on, or "" if the object is not known to belong to this shard.
func (c *clients) version(ctx context.Context, d sort, obj metav1.Object) string {
	if !c.checkWrites {
		return ""
	}

	given := obj.GetResourceVersion()
	if m, _ := c.remembers(obj); given != "" && (c.shard.owns(obj) || m.shard != nil && *m.shard == c.shard.Name()) {
		return given
	}

	k := c.shard.kind(d.GroupKind, obj.GetNamespace())
	if k == nil {
		return ""
	}

	cached := k.shown(ctx, types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()})
	if cached == nil || !c.shard.owns(cached) {
		return ""
	}

	return cmp.Or(given, cached.GetResourceVersion())
}

// apply calls the function, which sends the configuration and receives the answer into it.
func (c *clients) apply(ctx context.Context, config kruntime.ApplyConfiguration, call func() error) error {
	d, err := c.begin(ctx, "apply", config)
	if err != nil {
		return err
	}

	obj := metadataOf(config)
	if obj == nil {
		return call()
	}

	version := cmp.Or(obj.GetResourceVersion(), c.version(ctx, d, obj))

	return c.exchange(d, obj, func() error {
		if c.hides(d) {
			c.keys.hide(obj, false) // what is left out is left alone
		}

		return sent(obj, version, call)
	})
}
