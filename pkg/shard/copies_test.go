package shard

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// copier is an operator that copies the labels of its objects to wherever labels can be.
type copier struct {
	client client.Client

	mu       sync.Mutex
	refused  []error
	finished map[string]int
}

// Reconcile implements reconcile.Reconciler.
func (c *copier) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	cm := &corev1.ConfigMap{}
	if err := c.client.Get(ctx, req.NamespacedName, cm); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: req.Namespace, Name: req.Name}}
	deploy := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: req.Namespace, Name: req.Name}}
	_, setErr := controllerutil.CreateOrUpdate(ctx, c.client, set, func() error {
		template := deployment(req.Namespace, req.Name, cm.Labels).Spec.Template
		set.Labels = cm.Labels
		set.Spec.Selector = &metav1.LabelSelector{MatchLabels: cm.Labels}
		set.Spec.Template.Labels, set.Spec.Template.Spec.Containers = template.Labels, containers(set.Spec.Template, template)
		set.Spec.VolumeClaimTemplates = claims(set.Spec.VolumeClaimTemplates, cm.Labels)

		return controllerutil.SetControllerReference(cm, set, c.client.Scheme())
	})
	_, deployErr := controllerutil.CreateOrUpdate(ctx, c.client, deploy, func() error {
		template := deployment(req.Namespace, req.Name, cm.Labels).Spec.Template
		deploy.Labels = cm.Labels
		deploy.Spec.Selector = &metav1.LabelSelector{MatchLabels: cm.Labels}
		deploy.Spec.Template.Labels, deploy.Spec.Template.Spec.Containers = template.Labels, containers(deploy.Spec.Template, template)

		return controllerutil.SetControllerReference(cm, deploy, c.client.Scheme())
	})

	c.mu.Lock()
	defer c.mu.Unlock()

	for _, err := range []error{setErr, deployErr} {
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			return reconcile.Result{}, err // the cache is behind, as happens to all
		}

		if err != nil {
			c.refused = append(c.refused, err)
			return reconcile.Result{}, err
		}
	}

	c.finished[req.Name]++

	return reconcile.Result{}, nil
}

// containers are those that the API server has completed.
func containers(have, want corev1.PodTemplateSpec) []corev1.Container {
	if len(have.Spec.Containers) > 0 {
		return have.Spec.Containers
	}

	return want.Spec.Containers
}

func claims(have []corev1.PersistentVolumeClaim, labels map[string]string) []corev1.PersistentVolumeClaim {
	if len(have) == 0 {
		have = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")}},
		}}}
	}

	have[0].Labels = labels

	return have
}

// works reports whether the operator has finished with all objects.
func (c *copier) works(t *testing.T, names []string) bool {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Empty(t, c.refused)

	for _, name := range names {
		if c.finished[name] == 0 {
			return false
		}
	}

	return true
}

// An operator that copies labels everywhere restarts nothing when its objects get a ring, and when they move.
func TestCopiesOfLabelsDoNotContainTheShard(t *testing.T) {
	f := newFixture(t)
	before := &copier{client: f.admin, finished: map[string]int{}}

	var names []string

	for i := range 8 {
		name := fmt.Sprintf("app-%d", i)
		names = append(names, name)
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: name, Labels: map[string]string{"app": name}}}
		require.NoError(t, f.admin.Create(t.Context(), cm))

		_, err := before.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cm)})
		require.NoError(t, err)
	}

	kinds, err := Kinds{Main(&corev1.ConfigMap{}), Controlled(&appsv1.StatefulSet{}), Controlled(&appsv1.Deployment{})}.in(scheme.Scheme)
	require.NoError(t, err)

	begin := func(name string) (*Shard, *copier) {
		s, c := f.shard(name), &copier{finished: map[string]int{}}
		f.start(s, func(mgr ctrl.Manager) {
			all, err := s.newClients(clientOptions{
				scheme: mgr.GetScheme(), inner: &client.CacheOptions{}, kinds: kinds,
			})
			require.NoError(t, err)

			for _, kind := range kinds {
				s.kindOf(mgr.GetClient(), kind.object)
			}

			c.client = all.client(mgr.GetClient())
			f.controls(mgr, s, &corev1.ConfigMap{}, func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
				return c.Reconcile(marked(ctx, mark{controller: "test"}), req)
			})
		}, &corev1.ConfigMap{}, &appsv1.StatefulSet{}, &appsv1.Deployment{})

		return s, c
	}
	move := func(name string, s *Shard, to string) {
		for _, obj := range []client.Object{&appsv1.StatefulSet{}, &appsv1.Deployment{}, &corev1.ConfigMap{}} {
			obj.SetNamespace(f.namespace)
			obj.SetName(name)
			f.label(obj, s.shardKey, to)
		}
	}

	first, operator := begin("shard-0")

	for _, name := range names {
		move(name, first, first.Name())
	}

	f.eventually("it works with the ring", func() bool { return operator.works(t, names) })

	// One half gets a new shard, after it was drained.
	second, another := begin("shard-1")
	f.held(second)

	for _, name := range names[:4] {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: name}}
		f.label(cm, first.drainKey, "true")
		f.released(first, cm)
		move(name, first, second.Name())
	}

	f.eventually("the other shard works", func() bool { return another.works(t, names[:4]) && operator.works(t, names) })

	for _, name := range names {
		set, deploy := &appsv1.StatefulSet{}, &appsv1.Deployment{}
		for _, obj := range []client.Object{set, deploy} {
			require.NoError(t, f.admin.Get(t.Context(), client.ObjectKey{Namespace: f.namespace, Name: name}, obj))
			require.EqualValues(t, 1, obj.GetGeneration(), "nothing but labels has changed")
			require.Contains(t, obj.GetLabels(), first.shardKey)
		}

		want := map[string]string{"app": name}
		require.Equal(t, want, set.Spec.Template.Labels)
		require.Equal(t, want, set.Spec.Selector.MatchLabels)
		require.Equal(t, want, set.Spec.VolumeClaimTemplates[0].Labels)
		require.Equal(t, want, deploy.Spec.Template.Labels)
	}
}
