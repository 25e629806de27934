package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller"
)

// clients wraps the clients, readers, and caches of a program that runs as the shard.
//
//	C1  Objects of declared kinds show neither the labels nor the annotations of the ring: in what is read, in events, in
//	    index functions, and in the answers of writes. A program that copies labels would restart workloads with each
//	    move.
//	C2  What is written keeps them. An update carries them as they are in the version that it replaces, or is a conflict.
//	    A patch or an apply configuration does not touch them.
//	C3  A controlled object that is created with a controller reference to an object of this shard gets this shard's
//	    label.
//	C4  A reconcile of a controller that was not added to the manager gets errors, as does one that would take a part of
//	    the objects for all of them.
//	C5  A controlled object that exists and is not this shard's is not reported as missing.
//
// If show is set, C1 and C2 do not apply. If checkWrites is set, writes are checked, see [Shard.CheckWrites].
type clients struct {
	shard             *Shard
	keys              ringKeys
	checks            checks
	show, checkWrites bool
	// shared is true if reads from the cache return its own objects.
	shared bool
	// subresource is that of the object, or empty.
	subresource string
	// recent are the last answers by uid, as far as the caches may not contain them yet.
	recent *lru.Cache
	// absent is when the API server said last that an object does not exist.
	absent *lru.Cache
}

// remembered is how many objects are remembered. An update of one that is not costs a request more.
const remembered = 4096

type clientOptions struct {
	scheme *kruntime.Scheme
	// inner are the options of the clients that are wrapped.
	inner       *client.CacheOptions
	kinds       declared
	showLabels  bool
	checkWrites bool
	// shared is true if the cache has UnsafeDisableDeepCopy for any kind.
	shared bool
}

// newClients returns what wraps the clients of a program with these kinds. The shard must not use what is wrapped.
func (s *Shard) newClients(o clientOptions) (*clients, error) {
	inner := ptr.Deref(o.inner, client.CacheOptions{})

	live := map[schema.GroupKind]bool{}

	for _, obj := range inner.DisableFor {
		gvk, err := apiutil.GVKForObject(obj, o.scheme)
		if err != nil {
			return nil, fmt.Errorf("determine the kind of %T: %w", obj, err)
		}

		live[gvk.GroupKind()] = true
	}

	return &clients{
		shard: s, keys: ringKeys(s.LabelKeys()), show: o.showLabels, checkWrites: o.checkWrites, shared: o.shared,
		checks: checks{scheme: o.scheme, kinds: o.kinds, live: live, unstructured: inner.Unstructured},
		recent: lru.New(remembered), absent: lru.New(remembered),
	}, nil
}

// CheckWrites returns a client that writes only as this shard. Reads go to the given client, unchanged. It is meant for
// the reconcilers of sharded objects, and is safe for concurrent use:
//
//   - Outside the shard's term, every write fails with [ErrNotHeld] or [ErrLost]. The term begins at the end of the
//     hold-off and ends at the renew deadline, even in a process that was frozen.
//   - A patch of a sharded object, or of a subresource, gets the object's resourceVersion as a precondition unless it
//     has one: if the object has changed since, for example because it has moved, the API server answers Conflict. The
//     version is that of the passed object, or else that in the cache. Apply configurations count as patches.
//
// Updates, deletes, patches of subresources with a body of their own (such as Scale), patches in CBOR, and patches of
// objects that are not this shard's are sent as they are. A patch that would have merged with the writes of others is
// now a conflict. So is a second patch from the same old copy, so refresh the copy with the answer.
func (s *Shard) CheckWrites(c client.Client) client.Client {
	// without kinds, it has no errors
	all, _ := s.newClients(clientOptions{scheme: c.Scheme(), showLabels: true, checkWrites: true})

	return all.client(c)
}

func (c *clients) client(inner client.Client) client.Client {
	return &ringClient{ringReader{c, inner, c.checks.cached}, innerClient{inner}}
}

func (c *clients) reader(inner client.Reader) client.Reader {
	return &ringReader{c, inner, func(kruntime.Object) bool { return false }}
}

func (c *clients) cache(inner cache.Cache) cache.Cache {
	return &ringCache{ringReader{c, inner, func(kruntime.Object) bool { return true }}, innerCache{inner}}
}

func (c *clients) hides(d sort) bool { return d.is && !c.show }

// begin returns why the program must not write.
func (c *clients) begin(ctx context.Context, verb string, obj any) (sort, error) {
	d, err := c.checks.request(ctx, obj, false)
	if err == nil && c.checkWrites {
		if err = c.shard.term.held(); err != nil {
			err = fmt.Errorf("refused to %s: %w", verb, err)
		}
	}

	if err != nil {
		c.shard.progress.refused(c.shard.progress.writes, verb, reasonOf(run, false, err))
	}

	return d, err
}

func (c *clients) may(ctx context.Context, verb string, obj any, call func() error) error {
	if _, err := c.begin(ctx, verb, obj); err != nil {
		return err
	}

	return call()
}

// exchange calls the function, which sends the object and receives the answer into it.
func (c *clients) exchange(d sort, obj metav1.Object, call func() error) error {
	if !c.hides(d) {
		return call()
	}

	err := call()
	if err == nil {
		c.remember(obj)
	}

	c.keys.hide(obj, false)

	return err
}

type lastAnswer struct {
	version string
	ringMeta
}

// remember remembers the answer of the API server. That of a subresource other than the status can be another object.
func (c *clients) remember(obj metav1.Object) {
	if obj.GetUID() != "" && (c.subresource == "" || c.subresource == "status") {
		c.recent.Add(obj.GetUID(), lastAnswer{obj.GetResourceVersion(), c.keys.of(obj)})
	}
}

func (c *clients) remembers(obj metav1.Object) (ringMeta, bool) {
	v, ok := c.recent.Get(obj.GetUID())
	a, _ := v.(lastAnswer)

	return a.ringMeta, ok && a.version == obj.GetResourceVersion()
}

type ringReader struct {
	*clients

	inner  client.Reader
	cached func(kruntime.Object) bool
}

func (r *ringReader) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	cached := r.cached(obj)

	d, err := r.checks.request(ctx, obj, cached)
	if err != nil {
		return err
	}

	get := func() error { return r.inner.Get(ctx, key, obj, opts...) }
	if !cached {
		return r.exchange(d, obj, get)
	}

	if err = get(); err != nil {
		return r.elsewhere(ctx, d, key, err)
	}

	if r.hides(d) {
		o := (&client.GetOptions{}).ApplyOptions(opts)
		r.keys.hide(obj, r.shared || ptr.Deref(o.UnsafeDisableDeepCopy, false))
	}

	return nil
}

func (r *ringReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	cached := r.cached(list)

	d, err := r.checks.request(ctx, list, cached)
	if err != nil {
		return err
	}

	if err := r.inner.List(ctx, list, opts...); err != nil || !r.hides(d) {
		return err //nolint:wrapcheck // it is the inner reader's
	}

	o := (&client.ListOptions{}).ApplyOptions(opts)

	return r.keys.each(list, cached && (r.shared || ptr.Deref(o.UnsafeDisableDeepCopy, false)), func(obj client.Object) {
		if !cached {
			r.remember(obj)
		}
	})
}

// ringClient is a client as the program sees it. It returns errors of the inner client unchanged.
type ringClient struct {
	ringReader
	innerClient
}

// innerClient is embedded one level deeper than the reader, whose methods take precedence.
type innerClient struct{ client.Client }

func (c *ringClient) Apply(ctx context.Context, config kruntime.ApplyConfiguration, opts ...client.ApplyOption) error {
	return c.apply(ctx, config, func() error { return c.Client.Apply(ctx, config, opts...) })
}

func (c *ringClient) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	return c.create(ctx, obj, func() error { return c.Client.Create(ctx, obj, opts...) })
}

func (c *ringClient) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	return c.may(ctx, "delete", obj, func() error { return c.Client.Delete(ctx, obj, opts...) })
}

func (c *ringClient) DeleteAllOf(ctx context.Context, obj client.Object, opts ...client.DeleteAllOfOption) error {
	return c.may(ctx, "delete", obj, func() error { return c.Client.DeleteAllOf(ctx, obj, opts...) })
}

func (c *ringClient) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	return c.update(ctx, obj, func() error { return c.Client.Update(ctx, obj, opts...) })
}

func (c *ringClient) Patch(ctx context.Context, obj client.Object, p client.Patch, opts ...client.PatchOption) error {
	return c.patch(ctx, obj, p, func(p client.Patch) error { return c.Client.Patch(ctx, obj, p, opts...) })
}

func (c *ringClient) Status() client.SubResourceWriter {
	return &ringSubresource{c.at("status"), nil, c.Client.Status()}
}

func (c *ringClient) SubResource(name string) client.SubResourceClient {
	inner := c.Client.SubResource(name)

	return &ringSubresource{c.at(name), inner, inner}
}

func (c *clients) at(subresource string) *clients {
	at := *c
	at.subresource = subresource

	return &at
}

type ringSubresource struct {
	*clients

	reader client.SubResourceReader
	writer client.SubResourceWriter
}

func (w *ringSubresource) Get(ctx context.Context, obj, sub client.Object, opts ...client.SubResourceGetOption) error {
	d, err := w.checks.request(ctx, obj, false)
	if err != nil {
		return err
	}

	return w.exchange(d, sub, func() error { return w.reader.Get(ctx, obj, sub, opts...) })
}

func (w *ringSubresource) Apply(
	ctx context.Context, config kruntime.ApplyConfiguration, opts ...client.SubResourceApplyOption,
) error {
	call := func() error { return w.writer.Apply(ctx, config, opts...) }

	if o := (&client.SubResourceApplyOptions{}).ApplyOpts(opts); o.SubResourceBody != nil {
		return w.may(ctx, "apply", config, call)
	}

	return w.apply(ctx, config, call)
}

func (w *ringSubresource) Create(
	ctx context.Context, obj, sub client.Object, opts ...client.SubResourceCreateOption,
) error {
	return w.may(ctx, "create", obj, func() error { return w.writer.Create(ctx, obj, sub, opts...) })
}

func (w *ringSubresource) Update(ctx context.Context, obj client.Object, opts ...client.SubResourceUpdateOption) error {
	call := func() error { return w.writer.Update(ctx, obj, opts...) }

	if sent := w.sent(obj, (&client.SubResourceUpdateOptions{}).ApplyOptions(opts).SubResourceBody); sent != nil {
		return w.update(ctx, sent, call)
	}

	return w.may(ctx, "update", obj, call)
}

func (w *ringSubresource) Patch(
	ctx context.Context, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption,
) error {
	call := func(patch client.Patch) error { return w.writer.Patch(ctx, obj, patch, opts...) }

	if sent := w.sent(obj, (&client.SubResourcePatchOptions{}).ApplyOptions(opts).SubResourceBody); sent != nil {
		return w.patch(ctx, sent, patch, call)
	}

	return w.may(ctx, "patch", obj, func() error { return call(patch) })
}

// sent returns what stands for the object in the request: itself, or a body of its kind; nil for other kinds of object.
func (w *ringSubresource) sent(obj, body client.Object) client.Object {
	if body == nil {
		return obj
	}

	if w.checks.sort(body).GroupKind != w.checks.sort(obj).GroupKind {
		return nil
	}

	body.SetName(cmp.Or(body.GetName(), obj.GetName())) // as the inner client does
	body.SetNamespace(cmp.Or(body.GetNamespace(), obj.GetNamespace()))

	return body
}

type applied struct {
	metav1.Object // nil: nothing else of it is used

	config *metav1ac.ObjectMetaApplyConfiguration
}

// metadataOf returns the metadata of an apply configuration; nil if it is not like generated ones have.
func metadataOf(config kruntime.ApplyConfiguration) metav1.Object {
	if obj, ok := config.(metav1.Object); ok { // an unstructured one
		return obj
	}

	if v := reflect.Indirect(reflect.ValueOf(config)); v.Kind() == reflect.Struct {
		if field := v.FieldByName("ObjectMetaApplyConfiguration"); field.IsValid() {
			if m, _ := reflect.TypeAssert[*metav1ac.ObjectMetaApplyConfiguration](field); m != nil {
				return applied{config: m}
			}
		}
	}

	return nil
}

func (a applied) GetName() string                   { return ptr.Deref(a.config.Name, "") }
func (a applied) GetNamespace() string              { return ptr.Deref(a.config.Namespace, "") }
func (a applied) GetUID() types.UID                 { return ptr.Deref(a.config.UID, "") }
func (a applied) GetResourceVersion() string        { return ptr.Deref(a.config.ResourceVersion, "") }
func (a applied) GetLabels() map[string]string      { return a.config.Labels }
func (a applied) GetAnnotations() map[string]string { return a.config.Annotations }

func (a applied) SetLabels(labels map[string]string)           { a.config.Labels = labels }
func (a applied) SetAnnotations(annotations map[string]string) { a.config.Annotations = annotations }

func (a applied) SetResourceVersion(version string) {
	if a.config.ResourceVersion = &version; version == "" {
		a.config.ResourceVersion = nil
	}
}

var (
	// ErrNotAdded is the error of a request for a sharded kind by a controller that was not added to the shard's manager.
	ErrNotAdded = errors.New("its controller was not added to the manager of the shard, so it would work on objects " +
		"while another shard does: call SetupWithManager, or controller.New, with that manager")
	// ErrPartialCache is the error of a read of a sharded kind from the cache by what runs in one replica.
	ErrPartialCache = errors.New("it runs in one replica, whose cache contains only the objects of its own shard: read " +
		"with GetAPIReader of the manager, or declare the controller as sharded")
)

// checks find reconciles that bypass the shard. The context of a reconcile whose controller was added to the shard's
// manager has a mark. One that has none, but the identifier that controller-runtime gives to every reconcile, belongs
// to a controller that was not. What is not called by a reconcile, such as a webhook, is not checked.
type checks struct {
	scheme *kruntime.Scheme
	kinds  declared
	live   map[schema.GroupKind]bool // not read from the cache
	// unstructured is true if unstructured objects are read from the cache.
	unstructured bool
}

type mark struct {
	controller string
	oneReplica bool // it does not run in every replica, so the cache of its process does not contain all that it works on
}

type markKey struct{}

// marked returns a context whose reconciles are those of a controller of the manager. They all inherit the context of
// its Start.
func marked(ctx context.Context, m mark) context.Context { return context.WithValue(ctx, markKey{}, m) }

// request returns what is declared of an object, a list, or an apply configuration, or why nobody may ask for it.
func (c *checks) request(ctx context.Context, obj any, cached bool) (sort, error) {
	d := c.sort(obj)
	if !d.is || controller.ReconcileIDFromContext(ctx) == "" {
		return d, nil
	}

	m, ok := ctx.Value(markKey{}).(mark)
	if !ok {
		return d, fmt.Errorf("shard: a reconciler works on %s: %w", d.Kind, ErrNotAdded)
	}

	if m.oneReplica && cached {
		return d, fmt.Errorf("shard: controller %q reads %s: %w", m.controller, d.Kind, ErrPartialCache)
	}

	return d, nil
}

func (c *checks) cached(obj kruntime.Object) bool {
	_, loose := obj.(kruntime.Unstructured)

	return !c.live[c.sort(obj).GroupKind] && (!loose || c.unstructured)
}

// sort is a kind, whether it is declared, and as what.
type sort struct {
	schema.GroupKind

	is, main bool
}

// sort returns that of an object, a list, an apply configuration, or a kind.
func (c *checks) sort(obj any) sort {
	var gvk schema.GroupVersionKind

	switch obj := obj.(type) {
	case schema.GroupVersionKind:
		gvk = obj
	case kruntime.Object:
		var err error
		if gvk, err = apiutil.GVKForObject(obj, c.scheme); err != nil {
			return sort{} // the request fails
		}
	case interface {
		GetAPIVersion() *string
		GetKind() *string
	}: // an apply configuration
		gvk = schema.FromAPIVersionAndKind(ptr.Deref(obj.GetAPIVersion(), ""), ptr.Deref(obj.GetKind(), ""))
	}

	gk, kind, is := c.kinds.of(gvk.GroupKind())

	return sort{gk, is, is && kind.main}
}

// ErrOtherShard is the error of a read from the cache of a controlled object of another shard. The cache has only the
// shard's own.
var ErrOtherShard = errors.New("it exists, but is not this shard's, so the cache does not contain it: read what " +
	"users create, or what several objects share, with GetAPIReader of the manager, or from a second cache without a " +
	"selector")

var errOutdated = errors.New("the object has been modified; apply your changes to the latest version and try again")

// absentFor is for how long an object that does not exist is not looked for again.
const absentFor = 30 * time.Second

// elsewhere returns the error of a read from the cache, or ErrOtherShard. Each controlled object that a reconcile does
// not find costs a request, one in absentFor if it does not exist.
func (c *clients) elsewhere(ctx context.Context, d sort, name types.NamespacedName, err error) error {
	k := c.shard.kind(d.GroupKind, name.Namespace)
	if !d.is || d.main || k == nil || !apierrors.IsNotFound(err) || controller.ReconcileIDFromContext(ctx) == "" {
		return err
	}

	key, now := k.key(name), c.shard.term.clock.Now()
	//nolint:forcetypeassert // nothing else is in it
	if asked, ok := c.absent.Get(key); ok && now.Sub(asked.(time.Time)) < absentFor {
		return err
	}

	obj, liveErr := k.live(ctx, name)

	switch {
	case liveErr != nil && !apierrors.IsForbidden(liveErr):
		return liveErr
	case obj == nil:
		c.absent.Add(key, now)
		return err
	case c.shard.Owns(obj):
		return err // the cache will contain it
	default:
		return fmt.Errorf("read %s %s, which has the shard %q: %w", d.Kind, name, obj.GetLabels()[c.keys.Shard],
			ErrOtherShard)
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

	return owner != nil && owner.GetUID() == by.UID && c.shard.Owns(owner), nil
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

// sent calls the function, which sends the object with the version as precondition. If it fails, that does not keep it.
func sent(obj metav1.Object, version string, call func() error) error {
	given := obj.GetResourceVersion()
	obj.SetResourceVersion(version)

	err := call()
	if err != nil {
		obj.SetResourceVersion(given)
	}

	return err
}

// carries returns what the object carries in its version. For an object without a version, it is what the object
// carries now, and in which version. The error is a conflict if the version is not the latest.
func (c *clients) carries(ctx context.Context, d sort, obj client.Object) (ringMeta, string, error) {
	k, name, version := c.shard.kind(d.GroupKind, obj.GetNamespace()), client.ObjectKeyFromObject(obj),
		obj.GetResourceVersion()
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

func (c *clients) patch(
	ctx context.Context, obj client.Object, patch client.Patch, call func(client.Patch) error,
) error {
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

// version returns the version that a patch of the object is based on, or "" if it is not known to belong to this shard.
func (c *clients) version(ctx context.Context, d sort, obj metav1.Object) string {
	if !c.checkWrites {
		return ""
	}

	given := obj.GetResourceVersion()
	if m, _ := c.remembers(obj); given != "" && (c.shard.Owns(obj) || m.shard != nil && *m.shard == c.shard.Name()) {
		return given
	}

	k := c.shard.kind(d.GroupKind, obj.GetNamespace())
	if k == nil {
		return ""
	}

	cached := k.shown(ctx, types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()})
	if cached == nil || !c.shard.Owns(cached) {
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
