package shard

import (
	"context"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// program is what a program that runs as a shard has: clients and caches that hide the ring. Its main kind is ConfigMap; Secrets and others are
// controlled.
type program struct {
	*fixture

	shard  *Shard
	inner  client.Client // what is wrapped
	stored cache.Cache   // also

	clients *clients
	client  client.Client
	reader  client.Reader
	cache   cache.Cache
	writes  atomic.Int64
	looks   atomic.Int64 // live reads of metadata
}

// program runs a cache as the shard until the test ends.
func (f *fixture) program(s *Shard, changes ...func(*clientOptions)) *program {
	f.Helper()

	o := clientOptions{
		scheme: scheme.Scheme, shared: f.cache.DefaultUnsafeDisableDeepCopy != nil && *f.cache.DefaultUnsafeDisableDeepCopy,
	}
	o.kinds, _ = Kinds{
		Main(&corev1.ConfigMap{}), Controlled(&corev1.Secret{}), Controlled(&corev1.Pod{}), Controlled(&appsv1.Deployment{}), Controlled(&appsv1.StatefulSet{}),
	}.in(scheme.Scheme)
	p := &program{fixture: f, shard: s}

	o.inner = &client.CacheOptions{Unstructured: true}
	for _, change := range changes {
		change(&o)
	}

	by := map[client.Object]cache.ByObject{}
	for _, kind := range o.kinds {
		by[kind.object] = cache.ByObject{Label: s.Selector()}
	}

	var err error

	p.stored, err = cache.New(f.config, cache.Options{ByObject: by, DefaultUnsafeDisableDeepCopy: f.cache.DefaultUnsafeDisableDeepCopy})
	require.NoError(f, err)

	o.inner.Reader = p.stored
	watching, err := client.NewWithWatch(f.config, client.Options{Cache: o.inner})
	require.NoError(f, err)

	p.inner = interceptor.NewClient(watching, p.counts())

	live, err := metadata.NewForConfig(f.config)
	require.NoError(f, err)
	s.readLive(&countedLooks{live, &p.looks})

	for obj := range by {
		s.kindOf(p.inner, obj)
	}

	p.clients, err = s.newClients(o)
	require.NoError(f, err)

	p.client, p.cache = p.clients.client(p.inner), p.clients.cache(p.stored)
	p.reader = p.clients.reader(f.admin)

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})

	go func() {
		defer close(done)

		_ = p.stored.Start(ctx)
	}()
	f.Cleanup(func() {
		cancel()
		receive(f, done, "the cache stops")
	})
	require.True(f, p.stored.WaitForCacheSync(f.Context()))

	return p
}

// counts counts writes.
func (p *program) counts() interceptor.Funcs {
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			p.writes.Add(1)
			return c.Create(ctx, obj, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			p.writes.Add(1)
			return c.Update(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			p.writes.Add(1)
			return c.Patch(ctx, obj, patch, opts...)
		},
	}
}

type countedLooks struct {
	metadata.Interface

	looks *atomic.Int64
}

func (c *countedLooks) Resource(r schema.GroupVersionResource) metadata.Getter {
	c.looks.Add(1)
	return c.Interface.Resource(r)
}

// shows waits until the cache has this version of the object, and returns it as the program sees it.
func (p *program) shows(obj client.Object) *corev1.ConfigMap {
	p.Helper()

	cm := &corev1.ConfigMap{}
	p.eventually("the cache is up to date", func() bool {
		return p.client.Get(p.Context(), client.ObjectKeyFromObject(obj), cm) == nil && cm.ResourceVersion == obj.GetResourceVersion()
	})

	return cm
}

// showsForm waits until the cache of the object's form has this version of it.
func (p *program) showsForm(obj client.Object) {
	p.Helper()

	got, _ := obj.DeepCopyObject().(client.Object)
	p.eventually("the cache is up to date", func() bool {
		return p.client.Get(p.Context(), client.ObjectKeyFromObject(obj), got) == nil && got.GetResourceVersion() == obj.GetResourceVersion()
	})
}

// labels returns the labels that the API server has.
func (p *program) labels(obj client.Object) map[string]string {
	p.Helper()

	m := &metav1.PartialObjectMetadata{}
	gvk, err := p.inner.GroupVersionKindFor(obj)
	require.NoError(p, err)
	m.SetGroupVersionKind(gvk)
	require.NoError(p, p.admin.Get(p.Context(), client.ObjectKeyFromObject(obj), m))

	return m.Labels
}

// ours are labels with that of the shard.
func (p *program) ours(keysAndValues ...string) map[string]string {
	all := map[string]string{p.shard.shardKey: p.shard.Name()}
	for i := 0; i < len(keysAndValues); i += 2 {
		all[keysAndValues[i]] = keysAndValues[i+1]
	}

	return all
}

// marked creates a ConfigMap with all keys of the ring, and with more labels.
func (p *program) marked(name string, keysAndValues ...string) *corev1.ConfigMap {
	p.Helper()

	cm := &corev1.ConfigMap{ObjectMeta: p.meta(p.shard, name)}
	cm.Labels = p.ours(append(keysAndValues, p.shard.drainKey, "true")...)
	cm.Annotations = map[string]string{p.shard.LabelKeys().Handover: "{}"}
	require.NoError(p, p.admin.Create(p.Context(), cm))

	return cm
}

// reconciles calls the function once, in a reconcile of a controller with this mark. Without a mark, it was not added to the manager.
func (f *fixture) reconciles(m mark, fn func(context.Context)) {
	f.Helper()

	done := false

	ctx, cancel := context.WithCancel(f.Context())
	if m != (mark{}) {
		ctx = marked(ctx, m)
	}

	c, err := controller.NewUnmanaged("test", controller.Options{
		SkipNameValidation: new(true), LogConstructor: func(*reconcile.Request) logr.Logger { return logr.Discard() },
		Reconciler: reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			defer cancel()

			fn(ctx)

			done = true

			return reconcile.Result{}, nil
		}),
	})
	require.NoError(f, err)
	require.NoError(f, c.Watch(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		q.Add(reconcile.Request{})

		return nil
	})))
	require.NoError(f, c.Start(ctx))
	require.True(f, done, "it has reached its end")
}

// forms are empty objects and lists of a kind in each form.
func forms() map[string]func() (client.Object, client.ObjectList) {
	gvk := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	list := corev1.SchemeGroupVersion.WithKind("ConfigMapList")

	return map[string]func() (client.Object, client.ObjectList){
		"typed": func() (client.Object, client.ObjectList) { return &corev1.ConfigMap{}, &corev1.ConfigMapList{} },
		"unstructured": func() (client.Object, client.ObjectList) {
			obj, all := &unstructured.Unstructured{}, &unstructured.UnstructuredList{}
			obj.SetGroupVersionKind(gvk)
			all.SetGroupVersionKind(list)

			return obj, all
		},
		"metadata": func() (client.Object, client.ObjectList) {
			obj, all := &metav1.PartialObjectMetadata{}, &metav1.PartialObjectMetadataList{}
			obj.SetGroupVersionKind(gvk)
			all.SetGroupVersionKind(list)

			return obj, all
		},
	}
}
