package shard

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

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
				p := f.program(f.shard("shard-0"))
				keys := p.shard.LabelKeys()
				escape := func(key string) string {
					if patchType == types.JSONPatchType {
						return strings.ReplaceAll(key, "/", "~1")
					}

					return key
				}

				for name, form := range forms() {
					stored := p.marked(name, "a", "a", "b", "b")
					data := strings.NewReplacer("DRAIN", escape(keys.Drain), "HANDOVER", escape(keys.Handover),
						"NAME", name, "NS", f.namespace, "UID", string(stored.UID)).Replace(patch)

					want := maps.Clone(left)

					obj, _ := form()
					obj.SetNamespace(f.namespace)
					obj.SetName(name)
					require.NoError(t, p.client.Patch(t.Context(), obj, client.RawPatch(patchType, []byte(data))), name)
					require.Equal(t, want, nonNil(obj.GetLabels()), name)

					maps.Copy(want, p.ours(keys.Drain, "true"))

					f.refresh(stored)
					require.Equal(t, want, stored.Labels, name)
					require.Equal(t, map[string]string{keys.Handover: "{}"}, stored.Annotations, name)
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
	p := f.program(f.shard("shard-0"))

	for name, from := range map[string]func(client.Object) client.Patch{
		"merge":     client.MergeFrom,
		"strategic": func(obj client.Object) client.Patch { return client.StrategicMergeFrom(obj) },
		"locked": func(obj client.Object) client.Patch {
			return client.MergeFromWithOptions(obj, client.MergeFromWithOptimisticLock{})
		},
	} {
		stored := p.marked(name, "a", "b")
		cm := p.shows(stored)
		before := cm.DeepCopy()
		cm.Labels, cm.Data = nil, map[string]string{"a": "b"}

		data, err := from(before).Data(cm)
		require.NoError(t, err)
		require.Contains(t, string(data), `"labels":null`)
		require.NoError(t, p.client.Patch(t.Context(), cm, from(before)))
		require.Nil(t, cm.Labels)
		require.Equal(t, p.ours(p.shard.drainKey, "true"), p.labels(stored))

		looks := p.looks.Load()
		before = cm.DeepCopy()
		cm.Labels = map[string]string{"c": "d"}
		require.NoError(t, p.client.Patch(t.Context(), cm, from(before)))
		require.Equal(t, p.ours(p.shard.drainKey, "true", "c", "d"), p.labels(stored))
		require.Equal(t, looks, p.looks.Load(), "nothing is read for other patches")
	}
}

// A drain that arrives between the read and the write.
func TestPatchesThatReplaceAllAreConditional(t *testing.T) {
	f := newFixture(t)
	p := f.program(f.shard("shard-0"))
	cm := f.configMap(p.shard, "a")

	var all [][]byte

	for _, patch := range []string{
		`[{"op":"add","path":"/metadata/labels","value":{}}]`,
		`[{"op":"replace","path":"/metadata","value":{"name":"a","namespace":"` + f.namespace + `","uid":"` + string(cm.UID) + `"}}]`,
	} {
		b, err := p.clients.body(types.JSONPatchType, []byte(patch), func() (metav1.Object, error) { return cm.DeepCopy(), nil })
		require.NoError(t, err)
		require.NoError(t, b.keep())

		kept, err := b.encoded()
		require.NoError(t, err)

		all = append(all, kept)
	}

	f.label(cm.DeepCopy(), p.shard.drainKey, "true")

	for _, kept := range all {
		require.True(t, apierrors.IsConflict(f.admin.Patch(t.Context(), cm.DeepCopy(), client.RawPatch(types.JSONPatchType, kept))), string(kept))
	}
}

func TestApplyLeavesTheShardAlone(t *testing.T) {
	f := newFixture(t)
	p := f.program(f.shard("shard-0"))
	keys := p.shard.LabelKeys()
	other := map[string]string{"a": "b", keys.Drain: "no", keys.Shard: "shard-7"}
	owner := []client.ApplyOption{client.FieldOwner("test"), client.ForceOwnership}

	for name, apply := range map[string]func(cm *corev1.ConfigMap) (labels, annotations map[string]string){
		"typed": func(cm *corev1.ConfigMap) (_, _ map[string]string) {
			config := corev1ac.ConfigMap(cm.Name, cm.Namespace).WithLabels(other).WithAnnotations(map[string]string{keys.Handover: "no"})
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
				"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"labels": other, "annotations": map[string]any{keys.Handover: "no"}},
			})
			require.NoError(t, err)
			require.NoError(t, p.client.Patch(t.Context(), cm, client.RawPatch(types.ApplyPatchType, data), client.FieldOwner("test"), client.ForceOwnership))

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

// What a program sees of its objects is enough for the preconditions.
func TestCheckedPatchesOfHiddenObjects(t *testing.T) {
	f := newFixture(t)
	p := f.program(f.shard("shard-0"), func(o *clientOptions) { o.checkWrites = true })
	p.shard.term.unlimited()

	owner := p.shows(f.configMap(p.shard, "owner"))

	secret := &corev1.Secret{ObjectMeta: f.meta(nil, "a")}
	secret.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
	require.NoError(t, p.client.Create(t.Context(), secret))
	f.label(secret.DeepCopy(), p.shard.shardKey, "shard-1")
	f.eventually("the cache has lost it", func() bool {
		return apierrors.IsNotFound(p.inner.Get(t.Context(), client.ObjectKeyFromObject(secret), &corev1.Secret{}))
	})

	touch := client.RawPatch(types.MergePatchType, []byte(`{"data":{"a":"Yg=="}}`))
	require.True(t, apierrors.IsConflict(p.client.Patch(t.Context(), secret, touch)), "it was this shard's when it was created")

	wipe := client.RawPatch(types.JSONPatchType, []byte(`[{"op":"add","path":"/metadata/labels","value":{}}]`))
	require.NoError(t, p.client.Patch(t.Context(), f.configMap(p.shard, "b"), wipe), "one precondition is enough")
}
