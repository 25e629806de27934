package shard

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clusterring/clusterring/pkg/internal/testenv"
)

func items(t *testing.T, list client.ObjectList) map[string]client.Object {
	t.Helper()

	all := map[string]client.Object{}
	require.NoError(t, ringKeys{}.each(list, false, func(obj client.Object) { all[obj.GetName()] = obj }))

	return all
}

func TestNobodySeesTheRing(t *testing.T) {
	for _, unsafe := range []bool{false, true} {
		t.Run(fmt.Sprintf("without deep copies: %t", unsafe), func(t *testing.T) {
			f := newFixture(t)
			f.cache.DefaultUnsafeDisableDeepCopy = &unsafe
			p := f.program(f.shard("shard-0"))
			p.marked("only")
			p.shows(p.marked("more", "a", "b"))

			readers := map[string]client.Reader{"client": p.client, "API": p.reader, "cache": p.cache, "DisableFor": p.clients.client(f.admin)}
			for name, form := range forms() {
				for which, reader := range readers {
					obj, list := form()
					p.eventually("the cache is filled", func() bool {
						return reader.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: "more"}, obj) == nil
					})
					require.Equal(t, map[string]string{"a": "b"}, obj.GetLabels(), "%s, %s", name, which)
					require.Nil(t, obj.GetAnnotations())

					require.NoError(t, reader.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: "only"}, obj))
					require.Nil(t, obj.GetLabels())

					if u, ok := obj.(*unstructured.Unstructured); ok {
						require.NotContains(t, u.Object["metadata"], "labels")
						require.NotContains(t, u.Object["metadata"], "annotations")
					}

					require.NoError(t, reader.List(t.Context(), list, client.InNamespace(p.namespace), client.MatchingLabels(p.ours())))
					all := items(t, list)
					require.Len(t, all, 2)
					require.Equal(t, map[string]string{"a": "b"}, all["more"].GetLabels(), "%s, %s", name, which)
					require.Nil(t, all["only"].GetLabels())
					require.Nil(t, all["only"].GetAnnotations())

					require.NoError(t, p.stored.List(t.Context(), list, client.InNamespace(p.namespace)))
					require.Contains(t, items(t, list)["only"].GetLabels(), p.shard.shardKey, "the cache keeps what it has")
				}
			}
		})
	}
}

func TestProgramsThatWantToSeeTheRing(t *testing.T) {
	f := newFixture(t)
	p := f.program(f.shard("shard-0"), func(o *clientOptions) { o.showLabels = true })
	cm := p.marked("a", "b", "c")
	require.Equal(t, cm.Labels, p.shows(cm).Labels)

	cm.Labels = nil
	require.NoError(t, p.client.Update(t.Context(), cm))
	require.Empty(t, p.labels(cm), "they are the program's own")
	require.NoError(t, p.client.Get(t.Context(), client.ObjectKey{Name: p.namespace}, &corev1.Namespace{}), "other kinds")
}

func TestEventsDoNotShowTheRing(t *testing.T) {
	for name, form := range forms() {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			p := f.program(f.shard("shard-0"))
			cm := p.marked("a", "a", "b")

			queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
			t.Cleanup(queue.ShutDown)

			seen := make(chan map[string]string, 100)
			told := func(obj client.Object) { seen <- obj.GetLabels() }
			obj, _ := form()
			kind := source.Kind(p.cache, obj, handler.Funcs{
				CreateFunc: func(_ context.Context, e event.CreateEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
					told(e.Object)
				},
				UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
					told(e.ObjectOld)
					told(e.ObjectNew)
				},
				DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
					told(e.Object)
				},
			}, predicate.LabelChangedPredicate{})
			require.NoError(t, kind.Start(t.Context(), queue))
			require.NoError(t, kind.WaitForSync(t.Context()))
			require.Equal(t, map[string]string{"a": "b"}, receive(f, seen, "it is added"))

			f.label(cm, p.shard.drainKey, "")
			f.label(cm, p.shard.drainKey, "shard-1")
			f.label(cm, "a", "c")
			require.Equal(t, map[string]string{"a": "b"}, receive(f, seen, "it changes"))
			require.Equal(t, map[string]string{"a": "c"}, receive(f, seen, "it changes"), "what the ring changes is no change")
			f.label(cm, p.shard.shardKey, "")
			require.Equal(t, map[string]string{"a": "c"}, receive(f, seen, "it goes"))
		})
	}
}

// Handlers can be added in three ways, and can miss a deletion.
func TestEveryHandlerIsWrapped(t *testing.T) {
	f := newFixture(t)
	p := f.program(f.shard("shard-0"))
	p.shows(p.marked("a", "a", "b"))

	gvk := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	informer, err := p.cache.GetInformerForKind(t.Context(), gvk)
	require.NoError(t, err)

	seen := make(chan map[string]string, 100)
	h := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { seen <- obj.(client.Object).GetLabels() },
		DeleteFunc: func(obj any) { seen <- obj.(toolscache.DeletedFinalStateUnknown).Obj.(client.Object).GetLabels() },
	}

	for range 3 {
		_, err = informer.AddEventHandler(h)
		require.NoError(t, err)
		_, err = informer.AddEventHandlerWithResyncPeriod(h, 0)
		require.NoError(t, err)
		_, err = informer.AddEventHandlerWithOptions(h, toolscache.HandlerOptions{})
		require.NoError(t, err)
	}

	for range 9 {
		require.Equal(t, map[string]string{"a": "b"}, receive(f, seen, "it is added"))
	}

	cm := p.marked("missed", "a", "b")
	(&ringInformer{keys: p.clients.keys}).hiding(h).OnDelete(toolscache.DeletedFinalStateUnknown{Key: "missed", Obj: cm})
	require.Equal(t, map[string]string{"a": "b"}, receive(f, seen, "it is missed"))
	require.Contains(t, cm.Labels, p.shard.shardKey, "it is the cache's")

	other, err := p.cache.GetInformer(t.Context(), &corev1.Namespace{})
	require.NoError(t, err)
	require.IsNotType(t, &ringInformer{}, other, "nobody declared it")
}

func TestIndexesDoNotShowTheRing(t *testing.T) {
	f := newFixture(t)
	p := f.program(f.shard("shard-0"))
	keys := func(obj client.Object) []string { return slices.Collect(maps.Keys(obj.GetLabels())) }

	require.NoError(t, p.cache.IndexField(t.Context(), &corev1.ConfigMap{}, "keys", keys))
	require.NoError(t, p.clients.indexer(p.stored).IndexField(t.Context(), &corev1.ConfigMap{}, "count", func(obj client.Object) []string {
		return []string{strconv.Itoa(len(obj.GetLabels()))}
	}))

	informer, err := p.cache.GetInformer(t.Context(), &corev1.ConfigMap{})
	require.NoError(t, err)
	require.NoError(t, informer.AddIndexers(toolscache.Indexers{"raw": func(obj any) ([]string, error) {
		require.NotContains(t, obj.(client.Object).GetLabels(), p.shard.shardKey)

		return nil, nil
	}}))
	p.shows(p.marked("a", "a", "b"))

	for field, values := range map[string]map[string]int{"keys": {"a": 1, p.shard.shardKey: 0}, "count": {"1": 1, "3": 0}} {
		for value, want := range values {
			var list corev1.ConfigMapList
			require.NoError(t, p.client.List(t.Context(), &list, client.InNamespace(p.namespace), client.MatchingFields{field: value}))
			require.Len(t, list.Items, want, "%s=%s", field, value)
		}
	}
}

func TestListsOfPointers(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	k := ringKeys(s.LabelKeys())
	stored := &corev1.ConfigMap{ObjectMeta: f.meta(s, "a")}
	list := &pointers{Items: []*corev1.ConfigMap{stored}}
	require.NoError(t, k.each(list, false, func(client.Object) {}))
	require.Nil(t, list.Items[0].Labels)
	require.NotNil(t, stored.Labels, "it can be the cache's")
}

// pointers is a list like some that people write by hand.
type pointers struct {
	corev1.ConfigMapList

	Items []*corev1.ConfigMap
}

// BenchmarkReads compares reads from a cache with 1,000 objects, with and without the ring's keys hidden.
func BenchmarkReads(b *testing.B) {
	const objects = 1000

	config, namespace := testenv.Config(b), testenv.Namespace(b)
	s, err := New(Options{Ring: namespace, Name: "shard-0", Namespace: namespace})
	require.NoError(b, err)

	admin := testenv.Client(b)
	for i := range objects {
		require.NoError(b, admin.Create(b.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: strconv.Itoa(i),
			Labels: map[string]string{s.shardKey: s.Name(), "app.kubernetes.io/name": "a", "app.kubernetes.io/instance": "b"},
		}, Data: map[string]string{"a": "b"}}))
	}

	for _, unsafe := range []bool{false, true} {
		stored, err := cache.New(config, cache.Options{DefaultUnsafeDisableDeepCopy: &unsafe, DefaultLabelSelector: s.Selector()})
		require.NoError(b, err)

		ctx, cancel := context.WithCancel(b.Context())

		var running sync.WaitGroup
		running.Go(func() { _ = stored.Start(ctx) })
		require.True(b, stored.WaitForCacheSync(ctx))

		all, err := s.newClients(clientOptions{scheme: scheme.Scheme, kinds: declared{{Kind: "ConfigMap"}: Main(&corev1.ConfigMap{})}, shared: unsafe})
		require.NoError(b, err)

		for form, empty := range forms() {
			for name, r := range map[string]client.Reader{"shown": stored, "hidden": all.cache(stored)} {
				obj, list := empty()
				key := client.ObjectKey{Namespace: namespace, Name: "1"}
				require.NoError(b, r.List(ctx, list))

				which := fmt.Sprintf("%s,unsafe=%t/%s", form, unsafe, name)
				b.Run("list/"+which, func(b *testing.B) {
					for b.Loop() {
						require.NoError(b, r.List(ctx, list))
					}
				})
				b.Run("get/"+which, func(b *testing.B) {
					for b.Loop() {
						require.NoError(b, r.Get(ctx, key, obj))
					}
				})
			}
		}

		cancel()
		running.Wait()
	}
}
