package shard

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// forOptions are the options of an author who filters main objects by generation, and does not filter controlled
// objects.
func forOptions(obj client.Object) builder.ForOption {
	if _, controlled := obj.(*corev1.Secret); controlled {
		return builder.WithPredicates()
	}

	return builder.WithPredicates(predicate.GenerationChangedPredicate{})
}

func TestDrainWaitsForTheSecondController(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	first, second := newBlocker(), newBlocker()
	cm := f.configMap(s, "a")

	var ended *atomic.Int64
	f.start(s, func(mgr ctrl.Manager) {
		ended = f.controls(mgr, s, &corev1.ConfigMap{}, first.reconcile)
		f.controls(mgr, s, &corev1.ConfigMap{}, second.reconcile)
	})
	receive(f, first.entered, "the first controller starts")
	receive(f, second.entered, "the second controller starts")

	f.label(cm, s.drainKey, "true")
	close(first.proceed)
	f.eventually("the first controller has left, and the drain was seen",
		func() bool { return ended.Load() >= 1 && s.guard.draining() })
	f.refresh(cm)
	require.True(t, s.draining(cm), "the second controller is still inside")

	close(second.proceed)
	f.released(cm)
	require.Empty(t, first.entered, "nobody starts on a draining object")
	require.Empty(t, second.entered)
}

func TestDrainWaitsForControlledObjects(t *testing.T) {
	for _, tc := range []struct {
		name  string
		empty client.Object
		main  func(f *fixture, s *Shard) client.Object
	}{
		{"namespaced", &corev1.ConfigMap{},
			func(f *fixture, s *Shard) client.Object { return f.configMap(s, "a") }},
		{"cluster-scoped", &rbacv1.ClusterRole{}, func(f *fixture, s *Shard) client.Object {
			role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: f.namespace,
				Labels: map[string]string{s.shardKey: s.Name()}}}
			require.NoError(f, f.admin.Create(f.Context(), role))

			return role
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t)
			s := f.shard("shard-0")
			children := newBlocker()
			owner := tc.main(f, s)
			child := f.secretOf(s, owner, "child")

			var ended *atomic.Int64
			f.start(s, func(mgr ctrl.Manager) {
				ended = f.controls(mgr, s, tc.empty, nothing)
				f.controls(mgr, s, &corev1.Secret{}, children.reconcile)
			}, tc.empty, &corev1.Secret{})
			receive(f, children.entered, "the controlled object's controller starts")
			f.eventually("the main object is reconciled", func() bool { return ended.Load() >= 1 })

			f.label(owner, s.drainKey, "true")
			f.eventually("the drain was seen", s.guard.draining)
			f.refresh(owner)
			require.True(t, s.draining(owner), "the controlled object is being worked on")

			f.label(child, "any", "change")
			close(children.proceed)
			f.released(owner)
			require.Empty(t, children.entered, "a controlled object rests while its owner is given up")

			f.label(owner, s.shardKey, s.Name())
			require.Equal(t, "child", receive(f, children.entered, "the owner is back"))
		})
	}
}

// A controlled object in deletion is worked on without its owner only if the owner no longer exists. An owner that
// belongs to another shard is not in the cache either.
func TestControlledObjectInDeletionWaitsForItsOwner(t *testing.T) {
	for _, tc := range []struct {
		name  string
		frees func(f *fixture, owner *corev1.ConfigMap)
	}{
		{"its owner is deleted", func(f *fixture, owner *corev1.ConfigMap) {
			require.NoError(f, f.admin.Delete(f.Context(), owner))
		}},
		{"its owner's name is another object's", func(f *fixture, owner *corev1.ConfigMap) {
			require.NoError(f, f.admin.Delete(f.Context(), owner))
			f.configMap(nil, owner.Name)
		}},
		{"its owner comes to this shard", func(f *fixture, owner *corev1.ConfigMap) {
			f.label(owner, f.shard("shard-0").shardKey, "shard-0")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t)
			s := f.shard("shard-0")
			children := newNames()
			owner := f.configMap(f.shard("shard-1"), "a")
			child := f.secretOf(s, owner, "child")
			child.Finalizers = []string{"example.org/test"}
			require.NoError(t, f.admin.Update(t.Context(), child))
			f.Cleanup(func() {
				patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
				require.NoError(f, client.IgnoreNotFound(f.admin.Patch(context.WithoutCancel(t.Context()), child, patch)))
			})
			require.NoError(t, f.admin.Delete(t.Context(), child))

			var ended *atomic.Int64
			f.start(s, func(mgr ctrl.Manager) {
				f.controls(mgr, s, &corev1.ConfigMap{}, nothing)
				ended = f.controls(mgr, s, &corev1.Secret{}, children.reconcile)
			})
			f.eventually("the controlled object was looked at", func() bool { return ended.Load() >= 1 })
			require.Empty(t, children, "its owner is another shard's")

			tc.frees(f, owner)
			require.Equal(t, "child", receive(f, children, "nobody else will finish it"))
		})
	}
}

// view is a cache whose content the test sets.
type cacheView struct {
	client.Client
	object *corev1.ConfigMap
}

func (f *fixture) cacheView() *cacheView {
	f.Helper()

	v := &cacheView{}
	v.Client = interceptor.NewClient(f.adminWithWatch(), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object,
			_ ...client.GetOption) error {
			if v.object == nil {
				return c.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: "no-such-object"}, obj)
			}
			v.object.DeepCopyInto(obj.(*corev1.ConfigMap))

			return nil
		},
	})

	return v
}

func TestNoReconcileFromAStaleCache(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	s.term.unlimited()

	var (
		calls   int
		failure error
	)

	cache := f.cacheView()
	r := s.Reconciler(cache, &corev1.ConfigMap{},
		reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			calls++
			return reconcile.Result{}, failure
		}))
	look := func(version *corev1.ConfigMap) int {
		cache.object = version.DeepCopy()
		before := calls
		_, err := r.Reconcile(t.Context(), request(live(f)))
		require.ErrorIs(t, err, failure)

		return calls - before
	}

	require.Equal(t, 0, look(nil), "it has never been there")

	cm := f.configMap(s, "a")
	assigned := cm.DeepCopy()
	require.Equal(t, 1, look(assigned))
	f.label(cm, s.drainKey, "")
	f.label(cm, s.drainKey, "true")
	draining := cm.DeepCopy()
	require.Equal(t, 0, look(draining))
	f.refresh(cm)
	require.Empty(t, cm.Labels, "acknowledged")

	require.Equal(t, 0, look(draining), "stale")
	require.Equal(t, 0, look(assigned), "very stale")

	cache.object = nil
	require.Equal(t, 0, look(nil), "not deleted, only moved")
	require.Equal(t, 0, look(draining), "another informer may be behind")
	require.Equal(t, 0, look(cm), "seen without label")

	f.label(cm, s.shardKey, "shard-1")
	require.Equal(t, 0, look(cm), "another shard's")
	f.label(cm, s.shardKey, s.Name())
	require.Equal(t, 1, look(cm), "it is back")

	failure = errors.New("broken")
	require.Equal(t, 1, look(nil), "now it is deleted")

	failure = nil
	require.Equal(t, 1, look(nil), "the first call failed")
	require.Equal(t, 0, look(nil), "it was reported")
}

// live is the object that the requests of a cacheView return.
func live(f *fixture) client.Object {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "a"}}
}

func TestAcknowledgementThatFails(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	s.term.unlimited()

	broken := errors.New("broken")

	var failure error

	c := interceptor.NewClient(f.adminWithWatch(), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch,
			opts ...client.PatchOption) error {
			if failure != nil {
				return failure
			}

			return c.Patch(ctx, obj, patch, opts...)
		},
	})

	cm := f.configMap(s, "a")
	f.label(cm, s.drainKey, "true")
	r := s.Reconciler(c, &corev1.ConfigMap{}, reconcile.Func(nothing))

	failure = broken
	_, err := r.Reconcile(t.Context(), request(cm))
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "acknowledge the drain of ConfigMap "+f.namespace+"/a")

	failure = nil
	_, err = r.Reconcile(t.Context(), request(cm))
	require.NoError(t, err)
	f.refresh(cm)
	require.Empty(t, cm.Labels)
}

func TestAcknowledgementOfAnObjectThatChanges(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	s.term.unlimited()

	cache := f.cacheView()
	r := s.Reconciler(cache, &corev1.ConfigMap{}, reconcile.Func(nothing))

	cm := f.configMap(s, "a")
	f.label(cm, s.drainKey, "true")
	cache.object = cm.DeepCopy()
	f.label(cm, s.drainKey, "")
	result, err := r.Reconcile(t.Context(), request(cm))
	require.NoError(t, err, "a conflict is normal")
	require.Equal(t, recheck, result.RequeueAfter)
	f.refresh(cm)
	require.True(t, s.Owns(cm), "the drain was withdrawn before the acknowledgement")

	require.NoError(t, f.admin.Delete(t.Context(), cm))
	_, err = r.Reconcile(t.Context(), request(cm))
	require.NoError(t, err, "deleted meanwhile")
	require.Empty(t, s.guard.objects)
}

// Two shards hand objects over and back under constant change; only the test changes the labels. What a process holds
// for an object ends before another process begins, however the object leaves.
func TestHandOver(t *testing.T) {
	f := newFixture(t)
	shards := []*Shard{f.shard("shard-0"), f.shard("shard-1")}
	all := newConnections()

	var processes []*process

	for _, s := range shards {
		processes = append(processes, f.start(s, func(mgr ctrl.Manager) {
			f.connects(mgr, &connector{connections: all, shard: s, name: "first"})
			f.connects(mgr, &connector{connections: all, shard: s, name: "second"})
		}))
	}

	const objects, rounds = 10, 6

	var configMaps []*corev1.ConfigMap
	for i := range objects {
		configMaps = append(configMaps, f.configMap(shards[i%2], fmt.Sprint("object-", i)))
	}

	has := func(s *Shard, cm *corev1.ConfigMap) {
		f.eventually(s.Name()+" works on "+cm.Name, func() bool { return all.count(s, cm.Name+" ") == 2 })
	}

	for round := range rounds {
		for i, cm := range configMaps {
			from, to := shards[(i+round)%2], shards[(i+round+1)%2]
			has(from, cm)

			if round%2 == 0 {
				f.label(cm, from.drainKey, to.Name())
				continue
			}

			f.label(cm, from.drainKey, "true")
			f.released(cm)
			f.label(cm, to.shardKey, to.Name())
		}
	}

	for i, cm := range configMaps {
		has(shards[i%2], cm)
	}

	f.label(configMaps[0], shards[0].shardKey, "")
	f.eventually("a label that somebody drops ends it", func() bool { return all.count(shards[0], "") == objects-2 })

	require.NoError(t, processes[0].stop())
	require.Zero(t, all.count(shards[0], ""), "before the Lease is released")
	require.Empty(t, holder(f.lease(shards[0])))

	exits := exiting(shards[1])
	f.overwrite(shards[1], func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("shardlease-controller") })
	processes[1].wait()
	f.eventually("all end with the Lease", func() bool { return all.count(shards[1], "") == 0 })
	require.Empty(t, exits, "in time")
	require.Empty(t, all.overlaps)
}

func request(obj client.Object) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKeyFromObject(obj)}
}

// If the drain names the next shard, the shard writes this name itself: no assigner must be asked.
func TestDrainNamesTheNextShard(t *testing.T) {
	for _, tc := range []struct{ drain, next string }{
		{"true", ""}, {"shard-1", "shard-1"}, {"shard-0", ""}, // its own name does not count as another shard
	} {
		t.Run(tc.drain, func(t *testing.T) {
			f := newFixture(t)
			s := f.shard("shard-0")
			s.term.unlimited()
			cm := f.configMap(s, "a")
			f.label(cm, s.drainKey, tc.drain)

			worker := s.Reconciler(f.admin, &corev1.ConfigMap{}, reconcile.Func(nothing))
			_, err := worker.Reconcile(t.Context(), request(cm))
			require.NoError(t, err)
			f.refresh(cm)
			require.Equal(t, tc.next, cm.Labels[s.shardKey])
			require.NotContains(t, cm.Labels, s.drainKey)
			require.False(t, s.Owns(cm))
		})
	}
}

// The time-out of a reconcile does not break off the acknowledgement that follows it.
func TestAcknowledgementAfterTheContextOfAReconcileHasEnded(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	s.term.unlimited()
	cm := f.configMap(s, "a")

	ctx, cancel := context.WithCancel(t.Context())

	var worker reconcile.Reconciler

	worker = s.Reconciler(f.admin, &corev1.ConfigMap{},
		reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			f.label(cm, s.drainKey, "true")
			_, err := worker.Reconcile(t.Context(), request(cm)) // another worker sees the drain
			cancel()

			return reconcile.Result{}, err
		}))
	_, err := worker.Reconcile(ctx, request(cm))
	require.NoError(t, err)
	f.refresh(cm)
	require.Empty(t, cm.Labels)
}
