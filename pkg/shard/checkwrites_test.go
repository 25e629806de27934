package shard

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// writes are all kinds of writes.
func writes(c client.Client, pod *corev1.Pod) map[string]func(context.Context) error {
	patch := client.RawPatch(types.MergePatchType, []byte(`{}`))
	sub := c.SubResource("status")
	config := func() *corev1ac.PodApplyConfiguration { return corev1ac.Pod(pod.Name, pod.Namespace) }
	owner := client.FieldOwner("test")

	return map[string]func(context.Context) error{
		"create": func(ctx context.Context) error { return c.Create(ctx, pod) },
		"update": func(ctx context.Context) error { return c.Update(ctx, pod) },
		"patch":  func(ctx context.Context) error { return c.Patch(ctx, pod, patch) },
		"apply":  func(ctx context.Context) error { return c.Apply(ctx, config(), owner) },
		"delete": func(ctx context.Context) error { return c.Delete(ctx, pod) },
		"delete all": func(ctx context.Context) error {
			return c.DeleteAllOf(ctx, pod,
				client.InNamespace(pod.Namespace))
		},
		"status update":      func(ctx context.Context) error { return c.Status().Update(ctx, pod) },
		"status patch":       func(ctx context.Context) error { return c.Status().Patch(ctx, pod, patch) },
		"status apply":       func(ctx context.Context) error { return c.Status().Apply(ctx, config(), owner) },
		"subresource create": func(ctx context.Context) error { return c.SubResource("eviction").Create(ctx, pod, pod) },
		"subresource update": func(ctx context.Context) error { return sub.Update(ctx, pod) },
		"subresource patch": func(ctx context.Context) error {
			return sub.Patch(ctx, pod, patch, client.WithSubResourceBody(pod))
		},
		"subresource apply": func(ctx context.Context) error {
			o := &client.SubResourceApplyOptions{SubResourceBody: config()}
			return sub.Apply(ctx, config(), o)
		},
	}
}

func TestClientWritesOnlyDuringTheTerm(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	clk := &lateClock{}
	s.term.clock = clk
	pod := &corev1.Pod{ObjectMeta: f.meta(s, "a")}
	all := func(want error) {
		t.Helper()

		for name, write := range writes(s.CheckWrites(f.admin), pod) {
			require.ErrorIs(t, write(t.Context()), want, name)
		}
	}

	all(ErrNotHeld)
	s.term.taken(clk.Now(), testHoldOff/2)
	t.Cleanup(func() { s.term.close() })
	all(ErrNotHeld)

	clk.ahead.Store(int64(testHoldOff / 2))

	cm := &corev1.ConfigMap{ObjectMeta: f.meta(s, "a")}
	c := s.CheckWrites(f.admin)
	require.NoError(t, c.Create(t.Context(), cm))
	require.NoError(t, c.Update(t.Context(), cm))
	require.NoError(t, c.Delete(t.Context(), cm))

	for name, write := range writes(c, pod) {
		require.NotErrorIs(t, write(t.Context()), ErrNotHeld, name)
	}

	// Frozen until the renew deadline, and no timer has fired yet.
	clk.ahead.Store(int64(s.options.RenewDeadline))
	all(ErrLost)
	require.NoError(t, c.List(t.Context(), &corev1.PodList{}), "reads are free")
}

// patches are all kinds of patches that do not specify a version.
func patches(f *fixture, c client.Client) map[string]func(*corev1.ConfigMap) error {
	raw := func(patchType types.PatchType, patch string, opts ...client.PatchOption) func(*corev1.ConfigMap) error {
		return func(cm *corev1.ConfigMap) error {
			return c.Patch(f.Context(), cm, client.RawPatch(patchType, []byte(patch)), opts...)
		}
	}
	owner := client.FieldOwner("test")
	annotation := map[string]string{"touched": "true"}

	return map[string]func(*corev1.ConfigMap) error{
		"merge":     raw(types.MergePatchType, `{"data":{"a":"b"}}`),
		"strategic": raw(types.StrategicMergePatchType, `{"metadata":{"annotations":{"a":"b"}}}`),
		"JSON":      raw(types.JSONPatchType, `[{"op":"add","path":"/data","value":{"a":"b"}}]`),
		"apply YAML": raw(types.ApplyYAMLPatchType, "apiVersion: v1\nkind: ConfigMap\ndata: {a: b}",
			client.ForceOwnership, client.FieldOwner("yaml")),
		"difference": func(cm *corev1.ConfigMap) error {
			before := cm.DeepCopy()
			cm.Data = map[string]string{"c": "d"}

			return c.Patch(f.Context(), cm, client.MergeFrom(before))
		},
		"apply configuration": func(cm *corev1.ConfigMap) error {
			config := corev1ac.ConfigMap(cm.Name, cm.Namespace).WithAnnotations(annotation).WithData(map[string]string{"e": "f"})
			if err := c.Apply(f.Context(), config, owner); err != nil {
				require.Nil(f, config.ResourceVersion, "it can be used again")

				return err
			}
			require.NotNil(f, config.UID, "it receives the answer")
			require.Equal(f, annotation, config.Annotations)

			return nil
		},
	}
}

func TestPatchesOfAnObjectThatHasMovedConflict(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	s.term.unlimited()

	cache := f.cacheView()
	s.Reconciler(cache, &corev1.ConfigMap{}, reconcile.Func(nothing))

	for name, patch := range patches(f, s.CheckWrites(f.admin)) {
		t.Run(name, func(t *testing.T) {
			for _, form := range []string{"as it was read", "by its name"} {
				cm := f.configMap(s, "")
				old := cm.DeepCopy()
				old.Labels = nil // not every program reads them
				f.label(cm, "unrelated", "change")
				cache.object = cm.DeepCopy()
				given := func() *corev1.ConfigMap {
					if form == "by its name" {
						return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: cm.Namespace, Name: cm.Name}}
					}

					return cache.object.DeepCopy()
				}

				if name != "apply configuration" { // which has no version
					err := patch(old)
					require.True(t, apierrors.IsConflict(err), "a cache that has advanced does not make it look new: %v", err)
				}

				require.NoError(t, patch(given()), form)
				f.refresh(cm)
				cache.object = cm.DeepCopy()
				f.label(cm, s.shardKey, "shard-1")

				err := patch(given())
				require.True(t, apierrors.IsConflict(err), "%s: %v", form, err)

				data := cm.Data
				f.refresh(cm)
				require.Equal(t, "shard-1", cm.Labels[s.shardKey])
				require.Equal(t, data, cm.Data)
			}
		})
	}
}

func TestPatchesThatAreLeftAlone(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	s.term.unlimited()

	touch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"touched":"true"}}}`))
	c := s.CheckWrites(f.admin)

	t.Run("of other objects", func(t *testing.T) {
		cm := f.configMap(nil, "")
		old := cm.DeepCopy()
		f.label(cm, "unrelated", "change")
		require.NoError(t, c.Patch(t.Context(), old.DeepCopy(), touch))

		cache := f.cacheView()
		cache.object = old
		s.Reconciler(cache, &corev1.ConfigMap{}, reconcile.Func(nothing))
		require.NoError(t, c.Patch(t.Context(), old.DeepCopy(), touch))
	})
	t.Run("that create", func(t *testing.T) {
		s := f.shard("shard-0")
		s.term.unlimited()
		c := s.CheckWrites(f.admin)
		cache := f.cacheView()
		s.Reconciler(cache, &corev1.ConfigMap{}, reconcile.Func(nothing))

		config := corev1ac.ConfigMap("new", f.namespace).WithData(map[string]string{"a": "b"})
		require.NoError(t, c.Apply(t.Context(), config, client.FieldOwner("test")))
	})
	t.Run("that are none", func(t *testing.T) {
		cm := f.configMap(s, "")
		for _, patchType := range []types.PatchType{types.MergePatchType, types.JSONPatchType, types.ApplyYAMLPatchType} {
			err := c.Patch(t.Context(), cm, client.RawPatch(patchType, []byte(`"`)))
			require.ErrorContains(t, err, "prepare the patch of "+f.namespace)
		}
	})
}

// copier is an operator that copies the labels of its objects to wherever labels can be.
type copier struct {
	client   client.Client
	finished names
	refused  chan error
}

func (c *copier) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	cm := &corev1.ConfigMap{}
	if err := c.client.Get(ctx, req.NamespacedName, cm); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	deploy := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: req.Namespace, Name: req.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, c.client, deploy, func() error {
		if deploy.UID == "" { // the API server completes it
			deploy.Spec = deployment(req.Namespace, req.Name, cm.Labels).Spec
		}

		deploy.Labels, deploy.Spec.Selector.MatchLabels, deploy.Spec.Template.Labels = cm.Labels, cm.Labels, cm.Labels

		return controllerutil.SetControllerReference(cm, deploy, c.client.Scheme())
	})

	switch {
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
		return reconcile.Result{}, err // the cache is behind, as happens to all
	case err != nil:
		c.refused <- err
		return reconcile.Result{}, err
	}

	return c.finished.reconcile(ctx, req)
}

// works waits until the operator has finished with all objects.
func (c *copier) works(f *fixture, names []string) {
	f.Helper()

	for seen := sets.New[string](); !seen.HasAll(names...); {
		seen.Insert(receive(f, c.finished, "it works"))
	}

	require.Empty(f, c.refused)
}

// An operator that copies labels everywhere restarts nothing when its objects get a ring, and when they move.
func TestCopiesOfLabelsDoNotContainTheShard(t *testing.T) {
	f := newFixture(t)
	before := &copier{client: f.admin, finished: newNames()}

	var names []string

	for i := range 8 {
		name := fmt.Sprintf("app-%d", i)
		names = append(names, name)
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: name,
			Labels: map[string]string{"app": name}}}
		require.NoError(t, f.admin.Create(t.Context(), cm))

		_, err := before.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cm)})
		require.NoError(t, err)
	}

	begin := func(name string) *copier {
		o := f.named(name)
		o.Kinds = Kinds{Main(&corev1.ConfigMap{}), Controlled(&appsv1.Deployment{})}
		mgr := f.manager(o)
		c := &copier{client: mgr.GetClient(), finished: newNames(), refused: make(chan error, 100)}
		require.NoError(t, ctrl.NewControllerManagedBy(mgr).Named("test").For(&corev1.ConfigMap{}).Complete(c))
		f.launch(mgr.Start)
		receive(f, mgr.Elected(), "it works")

		return c
	}
	move := func(name, to string) {
		for _, obj := range []client.Object{&appsv1.Deployment{}, &corev1.ConfigMap{}} {
			obj.SetNamespace(f.namespace)
			obj.SetName(name)
			f.label(obj, f.keys.Shard, to)
		}
	}

	operator := begin("shard-0")

	for _, name := range names {
		move(name, "shard-0")
	}

	operator.works(f, names)

	// One half gets a new shard, after it was drained.
	another := begin("shard-1")

	for _, name := range names[:4] {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: name}}
		f.label(cm, f.keys.Drain, "true")
		f.released(cm)
		move(name, "shard-1")
	}

	another.works(f, names[:4])

	for _, name := range names {
		deploy := &appsv1.Deployment{}
		require.NoError(t, f.admin.Get(t.Context(), client.ObjectKey{Namespace: f.namespace, Name: name}, deploy))
		require.EqualValues(t, 1, deploy.Generation, "nothing but labels has changed")
		require.Contains(t, deploy.Labels, f.keys.Shard)

		want := map[string]string{"app": name}
		require.Equal(t, want, deploy.Spec.Template.Labels)
		require.Equal(t, want, deploy.Spec.Selector.MatchLabels)
	}
}
