package shard

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
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
			p := f.program()
			p.marked("only")
			shows(p, p.marked("more", "a", "b"))

			readers := map[string]client.Reader{"client": p.client, "API": p.reader, "cache": p.cache,
				"DisableFor": p.clients.client(f.admin)}
			for _, name := range forms {
				for which, reader := range readers {
					obj, list := emptyOf(name, "ConfigMap")
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

					require.NoError(t, reader.List(t.Context(), list, client.InNamespace(p.namespace),
						client.MatchingLabels(p.ours())))
					all := items(t, list)
					require.Len(t, all, 2)
					require.Equal(t, map[string]string{"a": "b"}, all["more"].GetLabels(), "%s, %s", name, which)
					require.Nil(t, all["only"].GetLabels())
					require.Nil(t, all["only"].GetAnnotations())

					require.NoError(t, p.cache.(*ringCache).Cache.List(t.Context(), list, client.InNamespace(p.namespace)))
					require.Contains(t, items(t, list)["only"].GetLabels(), p.shard.shardKey, "the cache keeps what it has")
				}
			}
		})
	}
}

func TestProgramsThatWantToSeeTheRing(t *testing.T) {
	f := newFixture(t)
	p := f.program(func(o *Options) { o.ShowLabels = true })
	cm := p.marked("a", "b", "c")
	require.Equal(t, cm.Labels, shows(p, cm).Labels)

	cm.Labels = nil
	require.NoError(t, p.client.Update(t.Context(), cm))
	require.Empty(t, p.labels(cm), "they are the program's own")
	require.NoError(t, p.client.Get(t.Context(), client.ObjectKey{Name: p.namespace}, &corev1.Namespace{}), "other kinds")
}

func TestEventsDoNotShowTheRing(t *testing.T) {
	for _, form := range forms {
		t.Run(form, func(t *testing.T) {
			f := newFixture(t)
			p := f.program()
			cm := p.marked("a", "a", "b")

			queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
			t.Cleanup(queue.ShutDown)

			seen := make(chan map[string]string, 100)
			told := func(obj client.Object) { seen <- obj.GetLabels() }
			obj, _ := emptyOf(form, "ConfigMap")
			kind := source.Kind(p.cache, obj, handler.Funcs{
				CreateFunc: func(_ context.Context, e event.CreateEvent,
					_ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
					told(e.Object)
				},
				UpdateFunc: func(_ context.Context, e event.UpdateEvent,
					_ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
					told(e.ObjectOld)
					told(e.ObjectNew)
				},
				DeleteFunc: func(_ context.Context, e event.DeleteEvent,
					_ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
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

func TestIndexesDoNotShowTheRing(t *testing.T) {
	f := newFixture(t)
	p := f.program()
	keys := func(obj client.Object) []string { return slices.Collect(maps.Keys(obj.GetLabels())) }

	require.NoError(t, p.cache.IndexField(t.Context(), &corev1.ConfigMap{}, "keys", keys))
	require.NoError(t, p.cache.IndexField(t.Context(), &corev1.ConfigMap{}, "count", func(obj client.Object) []string {
		return []string{strconv.Itoa(len(obj.GetLabels()))}
	}))

	informer, err := p.cache.GetInformer(t.Context(), &corev1.ConfigMap{})
	require.NoError(t, err)
	require.NoError(t, informer.AddIndexers(toolscache.Indexers{"raw": func(obj any) ([]string, error) {
		require.NotContains(t, obj.(client.Object).GetLabels(), p.shard.shardKey)

		return nil, nil
	}}))
	shows(p, p.marked("a", "a", "b"))

	for field, values := range map[string]map[string]int{"keys": {"a": 1, p.shard.shardKey: 0},
		"count": {"1": 1, "3": 0}} {
		for value, want := range values {
			var list corev1.ConfigMapList
			require.NoError(t, p.client.List(t.Context(), &list, client.InNamespace(p.namespace),
				client.MatchingFields{field: value}))
			require.Len(t, list.Items, want, "%s=%s", field, value)
		}
	}
}

// DRAIN and HANDOVER in these patches are keys of the ring, with the slashes of JSON paths.
var wipes = map[types.PatchType]map[string]map[string]string{ // what is left of the labels a and b
	types.MergePatchType: {
		`{"metadata":{"labels":null,"annotations":null}}`:                                {},
		`{"metadata":{"labels":{"a":null}}}`:                                             {"b": "b"},
		`{"metadata":{"labels":{"a":"c","DRAIN":null},"annotations":{"HANDOVER":null}}}`: {"a": "c", "b": "b"},
		`{"metadata":{"labels":{"DRAIN":"shard-1"},"annotations":{"HANDOVER":""}}}`:      {"a": "a", "b": "b"},
	},
	types.StrategicMergePatchType: {
		`{"metadata":{"labels":null,"annotations":null}}`:                                                                   {},
		`{"metadata":{"labels":{"$patch":"replace","b":"c"},"annotations":{"$patch":"replace"}}}`:                           {"b": "c"},
		`{"metadata":{"labels":{"$patch":"delete"},"annotations":{"$patch":"delete"}}}`:                                     {},
		`{"metadata":{"$patch":"replace","name":"NAME","namespace":"NS","uid":"UID","labels":{"a":"c"}}}`:                   {"a": "c"},
		`{"$patch":"replace","apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"NAME","namespace":"NS","uid":"UID"}}`: {},
	},
	types.JSONPatchType: {
		`[{"op":"remove","path":"/metadata/labels"},{"op":"remove","path":"/metadata/annotations"}]`:                                          {},
		`[{"op":"add","path":"/metadata/labels","value":{"c":"d"}}]`:                                                                          {"c": "d"},
		`[{"op":"replace","path":"/metadata/labels","value":{}},{"op":"add","path":"/metadata/labels/e","value":"f"}]`:                        {"e": "f"},
		`[{"op":"add","path":"/metadata/annotations","value":{}}]`:                                                                            {"a": "a", "b": "b"},
		`[{"op":"remove","path":"/metadata/labels/DRAIN"},{"op":"add","path":"/metadata/annotations/HANDOVER","value":""}]`:                   {"a": "a", "b": "b"},
		`[{"op":"replace","path":"/metadata","value":{"name":"NAME","namespace":"NS","uid":"UID","labels":{"a":"c"}}}]`:                       {"a": "c"},
		`[{"op":"replace","path":"","value":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"NAME","namespace":"NS","uid":"UID"}}}]`: {},
		`[{"op":"test","path":"/metadata/labels/a","value":"a"},{"op":"remove","path":"/metadata/labels/a"}]`:                                 {"b": "b"},
	},
}

func TestPatchesKeepTheShard(t *testing.T) {
	for patchType, patches := range wipes {
		for patch, left := range patches {
			t.Run(string(patchType)+patch, func(t *testing.T) {
				f := newFixture(t)
				p := f.program()
				keys := p.shard.LabelKeys()
				escape := func(key string) string {
					if patchType == types.JSONPatchType {
						return strings.ReplaceAll(key, "/", "~1")
					}

					return key
				}

				for _, name := range forms {
					stored := p.marked(name, "a", "a", "b", "b")
					data := strings.NewReplacer("DRAIN", escape(keys.Drain), "HANDOVER", escape(keys.Handover),
						"NAME", name, "NS", f.namespace, "UID", string(stored.UID)).Replace(patch)

					want := maps.Clone(left)

					obj, _ := emptyOf(name, "ConfigMap")
					obj.SetNamespace(f.namespace)
					obj.SetName(name)
					require.NoError(t, p.client.Patch(t.Context(), obj, client.RawPatch(patchType, []byte(data))), name)
					require.Equal(t, want, nonNil(obj.GetLabels()), name)

					maps.Copy(want, p.ours(keys.Drain, "true"))

					f.refresh(stored)
					require.Equal(t, want, stored.Labels, name)
					require.Equal(t, map[string]string{keys.Handover: "{}", keys.Held: "other"}, stored.Annotations, name)
				}
			})
		}
	}
}

func nonNil(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}

	return m
}

// A difference contains null for labels when the last one is removed.
func TestDifferencesKeepTheShard(t *testing.T) {
	f := newFixture(t)
	p := f.program()
	stored := p.marked("a", "a", "b")
	cm := shows(p, stored)
	write := func(labels map[string]string) {
		from := client.StrategicMergeFrom(cm.DeepCopy(), client.MergeFromWithOptimisticLock{})
		cm.Labels = labels
		require.NoError(t, p.client.Patch(t.Context(), cm, from))
		require.Equal(t, labels, cm.Labels)
	}

	write(nil)
	require.Equal(t, p.ours(p.shard.drainKey, "true"), p.labels(stored))

	looks := p.looks()

	write(map[string]string{"c": "d"})
	require.Equal(t, p.ours(p.shard.drainKey, "true", "c", "d"), p.labels(stored))
	require.Equal(t, looks, p.looks(), "nothing is read for other patches")
}

// A drain that arrives between the read and the write.
func TestPatchesThatReplaceAllAreConditional(t *testing.T) {
	f := newFixture(t)
	p := f.program()
	cm := f.configMap(p.shard, "a")

	var all [][]byte

	for _, patch := range []string{
		`[{"op":"add","path":"/metadata/labels","value":{}}]`,
		`[{"op":"replace","path":"/metadata","value":{"name":"a","namespace":"` + f.namespace + `","uid":"` + string(cm.UID) + `"}}]`,
	} {
		b, err := p.clients.body(types.JSONPatchType, []byte(patch),
			func() (metav1.Object, error) { return cm.DeepCopy(), nil })
		require.NoError(t, err)
		require.NoError(t, b.keep())

		kept, err := b.encoded()
		require.NoError(t, err)

		all = append(all, kept)
	}

	f.label(cm.DeepCopy(), p.shard.drainKey, "true")

	for _, kept := range all {
		require.True(t, apierrors.IsConflict(f.admin.Patch(t.Context(), cm.DeepCopy(),
			client.RawPatch(types.JSONPatchType, kept))), string(kept))
	}
}

func TestApplyLeavesTheShardAlone(t *testing.T) {
	f := newFixture(t)
	p := f.program()
	keys := p.shard.LabelKeys()
	other := map[string]string{"a": "b", keys.Drain: "no", keys.Shard: "shard-7"}
	owner := []client.ApplyOption{client.FieldOwner("test"), client.ForceOwnership}

	for name, apply := range map[string]func(cm *corev1.ConfigMap) (labels, annotations map[string]string){
		"typed": func(cm *corev1.ConfigMap) (_, _ map[string]string) {
			config := corev1ac.ConfigMap(cm.Name,
				cm.Namespace).WithLabels(other).WithAnnotations(map[string]string{keys.Handover: "no"})
			require.NoError(t, p.client.Apply(t.Context(), config, owner...))

			return config.Labels, config.Annotations
		},
		"unstructured": func(cm *corev1.ConfigMap) (_, _ map[string]string) {
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
			u.SetNamespace(cm.Namespace)
			u.SetName(cm.Name)
			u.SetLabels(other)
			u.SetAnnotations(map[string]string{keys.Handover: "no"})
			require.NoError(t, p.client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), owner...))

			return u.GetLabels(), u.GetAnnotations()
		},
		"patch": func(cm *corev1.ConfigMap) (_, _ map[string]string) {
			data, err := json.Marshal(map[string]any{
				"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"labels": other,
					"annotations": map[string]any{keys.Handover: "no"}},
			})
			require.NoError(t, err)
			require.NoError(t, p.client.Patch(t.Context(), cm, client.RawPatch(types.ApplyPatchType, data),
				client.FieldOwner("test"), client.ForceOwnership))

			return cm.Labels, cm.Annotations
		},
	} {
		stored := p.marked(name)
		labels, annotations := apply(stored.DeepCopy())
		require.Equal(t, map[string]string{"a": "b"}, labels, name)
		require.Empty(t, annotations)
		f.refresh(stored)
		require.Equal(t, p.ours("a", "b", keys.Drain, "true"), stored.Labels, name)
		require.Equal(t, "{}", stored.Annotations[keys.Handover])

		for _, entry := range stored.ManagedFields {
			if entry.Manager == "test" {
				require.NotContains(t, entry.FieldsV1.GetRawString(), p.ring, "it owns none of the keys")
			}
		}
	}
}
