package shard

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// program is what a program that runs as a shard has: clients and caches that hide the ring. Its main kind is
// ConfigMap; Secrets and others are controlled.
type program struct {
	*fixture
	*wire

	shard   *Shard
	clients *clients
	client  client.Client
	reader  client.Reader
	cache   cache.Cache
}

// program runs the caches of a manager as the shard until the test ends.
func (f *fixture) program(changes ...func(*Options)) *program {
	f.Helper()

	o := f.named("shard-0")
	o.Kinds = append(o.Kinds, Controlled(&corev1.Secret{}), Controlled(&corev1.Pod{}), Controlled(&appsv1.Deployment{}),
		Controlled(&appsv1.StatefulSet{}))

	for _, change := range changes {
		change(&o)
	}

	f.client.Unstructured = len(f.client.DisableFor) == 0
	p := &program{fixture: f, wire: f.wire()}
	m := f.manager(o)
	p.shard, p.clients, p.client, p.reader, p.cache = m.shard, m.clients, m.GetClient(), m.GetAPIReader(), m.GetCache()
	close(m.begun)
	f.launch(m.cache.Start)

	return p
}

// looks returns how many live reads of metadata there were, and writes counts writes.
func (p *program) looks() int { return p.count("get metadata *") - p.count("get metadata configmaps") }

func (p *program) writes() int { return p.count("put *") + p.count("post *") + p.count("patch *") }

// shows waits until the cache has this version of the object, and returns it as the program sees it.
func shows[O client.Object](p *program, obj O) O {
	p.Helper()

	got, _ := obj.DeepCopyObject().(O)
	p.eventually("the cache is up to date", func() bool {
		return p.client.Get(p.Context(), client.ObjectKeyFromObject(obj), got) == nil &&
			got.GetResourceVersion() == obj.GetResourceVersion()
	})

	return got
}

// labels returns the labels that the API server has.
func (p *program) labels(obj client.Object) map[string]string {
	p.Helper()

	m := &metav1.PartialObjectMetadata{}
	gvk, err := p.admin.GroupVersionKindFor(obj)
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
	cm.Annotations = map[string]string{p.shard.LabelKeys().Handover: "{}", p.shard.LabelKeys().Held: "other"}
	require.NoError(p, p.admin.Create(p.Context(), cm))

	return cm
}

// reconciles calls the function once, in a reconcile of a controller with this mark. Without a mark, it was not added
// to the manager.
func (f *fixture) reconciles(m mark, fn func(context.Context)) {
	f.Helper()

	done := false

	ctx, cancel := context.WithCancel(f.Context())
	if m != (mark{}) {
		ctx = marked(ctx, m)
	}

	c := f.unmanaged("test", reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
		defer cancel()

		fn(ctx)

		done = true

		return reconcile.Result{}, nil
	}))
	require.NoError(f, c.Watch(oneRequest(reconcile.Request{})))
	require.NoError(f, c.Start(ctx))
	require.True(f, done, "it has reached its end")
}

func TestUpdatesKeepTheShard(t *testing.T) {
	for _, form := range forms[:2] { // not of metadata alone
		t.Run(form, func(t *testing.T) {
			f := newFixture(t)
			p := f.program()
			cm := p.marked("a", "a", "b")
			want := p.labels(cm)
			shows(p, cm)

			obj, _ := emptyOf(form, "ConfigMap")
			obj.SetNamespace(p.namespace)
			obj.SetName("a")
			obj.SetResourceVersion(cm.ResourceVersion)
			shows(p, obj)

			for _, value := range []string{"b", "c"} {
				before, writes := p.writes(), 0
				if value == "c" {
					writes = 1
				}

				for range 3 {
					require.NoError(t, retried(func() error {
						_, err := controllerutil.CreateOrUpdate(t.Context(), p.client, obj, func() error {
							obj.SetLabels(map[string]string{"a": value})
							return nil
						})

						return err
					}))
					require.Equal(t, map[string]string{"a": value}, obj.GetLabels())
					cm.ResourceVersion = obj.GetResourceVersion()
					shows(p, cm)
					shows(p, obj)
				}

				want["a"] = value
				require.Equal(t, want, p.labels(cm))
				require.Equal(t, writes, p.writes()-before, "nothing is written at rest")
			}

			require.Zero(t, p.looks(), "and nothing is read")

			// One update after the other, faster than the cache.
			obj.SetLabels(nil)
			require.NoError(t, p.client.Update(t.Context(), obj))
			obj.SetLabels(p.ours("d", "e", p.shard.shardKey, "shard-7")) // its own value is ignored
			require.NoError(t, p.client.Update(t.Context(), obj))
			require.Equal(t, map[string]string{"d": "e"}, obj.GetLabels())
			delete(want, "a")
			want["d"] = "e"
			require.Equal(t, want, p.labels(cm))
			f.refresh(cm)
			require.Contains(t, cm.Annotations, p.shard.LabelKeys().Handover)
			require.Zero(t, p.looks(), "the answers are remembered")
		})
	}
}

func retried(write func() error) (err error) {
	for range 100 {
		if err = write(); !apierrors.IsConflict(err) {
			return err
		}
	}

	return err
}

func TestUpdatesOfOldVersionsChangeNothing(t *testing.T) {
	f := newFixture(t)
	p := f.program()
	cm := f.configMap(p.shard, "a")
	old := shows(p, cm)
	require.NoError(t, p.client.Update(t.Context(), old), "its answer is as old as what follows")

	f.label(cm, p.shard.drainKey, "true")

	old.Data = map[string]string{"a": "b"}
	require.True(t, apierrors.IsConflict(p.client.Update(t.Context(), old)))
	require.Equal(t, p.ours(p.shard.drainKey, "true"), p.labels(cm), "the drain is still there")
	shows(p, cm)

	unknown := f.configMap(p.shard, "b")
	changed := unknown.DeepCopy()
	f.label(changed, p.shard.drainKey, "true")
	shows(p, changed)

	writes := p.writes()

	require.True(t, apierrors.IsConflict(p.client.Update(t.Context(), unknown)), "nobody remembers this version")
	require.Equal(t, writes, p.writes(), "so nothing is sent")

	f.label(cm, p.shard.drainKey, "", p.shard.shardKey, "shard-1")

	unconditional := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace,
		Name: "a", Labels: p.ours("c", "d")}}
	require.NoError(t, p.client.Update(t.Context(), unconditional))
	require.Equal(t, map[string]string{p.shard.shardKey: "shard-1", "c": "d"}, p.labels(cm), "it stays where it is")

	unconditional.ResourceVersion, unconditional.Name = "", "missing"
	require.True(t, apierrors.IsNotFound(p.client.Update(t.Context(), unconditional)))

	live := &corev1.ConfigMap{}
	require.NoError(t, p.reader.Get(t.Context(), client.ObjectKeyFromObject(cm), live))

	looks := p.looks()

	require.NoError(t, p.client.Update(t.Context(), live))
	require.Equal(t, looks, p.looks(), "a live read is remembered")
	f.label(cm, "changed", "again")

	var all corev1.ConfigMapList
	require.NoError(t, p.reader.List(t.Context(), &all, client.InNamespace(p.namespace), client.HasLabels{"c"}))
	require.NoError(t, p.client.Update(t.Context(), &all.Items[0]))
	require.Equal(t, looks, p.looks(), "so is a list")
	require.Equal(t, "shard-1", p.labels(cm)[p.shard.shardKey])
}

// The status of built-in kinds takes labels along.
func TestStatusUpdatesKeepTheShard(t *testing.T) {
	f := newFixture(t)
	p := f.program()
	pod := &corev1.Pod{ObjectMeta: f.meta(p.shard, "a"),
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}}
	require.NoError(t, f.admin.Create(t.Context(), pod))

	got := &corev1.Pod{}
	f.eventually("the cache is filled",
		func() bool { return p.client.Get(t.Context(), client.ObjectKeyFromObject(pod), got) == nil })

	for name, write := range map[string]func() error{
		"status":      func() error { return p.client.Status().Update(t.Context(), got) },
		"subresource": func() error { return p.client.SubResource("status").Update(t.Context(), got) },
		"body": func() error {
			body := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: got.ResourceVersion, UID: got.UID,
				Labels: got.Labels}}
			defer func() { got.ResourceVersion = body.ResourceVersion }()

			return p.client.SubResource("status").Update(t.Context(), got, client.WithSubResourceBody(body))
		},
	} {
		got.Labels = map[string]string{"by": name}
		require.NoError(t, write(), name)
		require.Equal(t, map[string]string{"by": name}, got.Labels)
		require.Equal(t, p.ours("by", name), p.labels(pod))
	}

	read := &corev1.Pod{}
	require.NoError(t, p.client.SubResource("status").Get(t.Context(), pod, read))
	require.NotContains(t, read.Labels, p.shard.shardKey)

	looks := p.looks()

	require.NoError(t, p.client.Status().Patch(t.Context(), got,
		client.RawPatch(types.MergePatchType, []byte(`{"status":{"reason":"a"}}`))))
	require.NotContains(t, got.Labels, p.shard.shardKey)
	require.NoError(t, p.client.Update(t.Context(), got))
	require.Equal(t, looks, p.looks(), "answers of the status are remembered")
}

func deployment(namespace, name string, labels map[string]string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
			},
		},
	}
}

func TestCreatedObjectsFollowTheirController(t *testing.T) {
	f := newFixture(t)
	p := f.program(func(o *Options) { o.Kinds = append(o.Kinds, Main(&rbacv1.ClusterRole{})) })
	own, other := shows(p, f.configMap(p.shard, "own")), f.configMap(nil, "other")
	f.label(other, p.shard.shardKey, "shard-1")

	role := &rbacv1.ClusterRole{ObjectMeta: f.meta(p.shard, f.namespace)}
	role.Namespace = ""
	require.NoError(t, f.admin.Create(t.Context(), role))
	t.Cleanup(func() { _ = f.admin.Delete(context.WithoutCancel(t.Context()), role) })
	f.eventually("the cache is filled",
		func() bool { return p.client.Get(t.Context(), client.ObjectKeyFromObject(role), role) == nil })

	made := own.DeepCopy()
	made.UID = "another"
	child := func(owner client.Object, obj client.Object) client.Object {
		obj.SetNamespace(f.namespace)
		obj.SetGenerateName("child-")
		obj.SetLabels(map[string]string{"a": "b", p.shard.shardKey: "shard-7"})

		if owner != nil {
			require.NoError(t, controllerutil.SetControllerReference(owner, obj, p.client.Scheme()))
		}

		return obj
	}
	loose := func(obj client.Object) client.Object {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))

		return child(obj, u)
	}

	for name, test := range map[string]struct {
		obj   client.Object
		shard string
	}{
		"own":                      {child(own, &corev1.Secret{}), p.shard.Name()},
		"own, unstructured":        {loose(own), p.shard.Name()},
		"of a cluster-scoped kind": {child(role, &corev1.Secret{}), p.shard.Name()},
		"another shard's":          {child(other, &corev1.Secret{}), ""},
		"made anew":                {child(made, &corev1.Secret{}), ""},
		"nobody's":                 {child(nil, &corev1.Secret{}), ""},
		"main":                     {child(own, &corev1.ConfigMap{}), ""},
	} {
		require.NoError(t, p.client.Create(t.Context(), test.obj), name)
		require.Equal(t, map[string]string{"a": "b"}, test.obj.GetLabels(), name)

		labels := p.labels(test.obj)
		require.Equal(t, test.shard, labels[p.shard.shardKey], name)
		require.NoError(t, p.client.Update(t.Context(), test.obj), name)
		require.Equal(t, labels, p.labels(test.obj), name)
	}

	require.Zero(t, p.looks(), "all is known from answers")

	config := corev1ac.Secret("applied", f.namespace).WithLabels(p.ours("a", "b"))
	require.NoError(t, p.client.Apply(t.Context(), config, client.FieldOwner("test")))
	require.Equal(t, map[string]string{"a": "b"},
		p.labels(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "applied"}}))

	seeing := f.program(func(o *Options) { o.ShowLabels = true })
	shows(seeing, own)

	visible := &corev1.Secret{ObjectMeta: f.meta(nil, "visible")}
	require.NoError(t, controllerutil.SetControllerReference(own, visible, p.client.Scheme()))
	require.NoError(t, seeing.client.Create(t.Context(), visible))
	require.Equal(t, p.ours(), visible.Labels)
}

func TestAnObjectOfAnotherShardIsNotMissing(t *testing.T) {
	f := newFixture(t)
	p := f.program()
	clk := &lateClock{}
	p.shard.term.clock = clk
	input, main := f.secretOf(nil, f.configMap(nil, "main"), "input"),
		client.ObjectKey{Namespace: f.namespace, Name: "main"}
	f.secretOf(f.shard("shard-1"), f.configMap(nil, "owner"), "others")

	get := func(ctx context.Context, name string) error {
		return p.client.Get(ctx, client.ObjectKey{Namespace: f.namespace, Name: name}, &corev1.Secret{})
	}
	require.True(t, apierrors.IsNotFound(get(t.Context(), "input")), "not a reconcile")

	f.reconciles(mark{controller: "test"}, func(ctx context.Context) {
		err := get(ctx, "input")
		require.ErrorIs(t, err, ErrOtherShard)
		require.ErrorContains(t, err, `read Secret `+f.namespace+`/input, which has the shard ""`)
		require.ErrorContains(t, get(ctx, "others"), `the shard "shard-1"`)
		require.True(t, apierrors.IsNotFound(p.client.Get(ctx, main, &corev1.ConfigMap{})), "a main object")
		require.NoError(t, p.reader.Get(ctx, client.ObjectKeyFromObject(input), &corev1.Secret{}))

		looks := p.looks()

		for range 3 {
			require.True(t, apierrors.IsNotFound(get(ctx, "missing")))
		}

		require.Equal(t, looks+1, p.looks(), "one look is enough")
		require.NoError(t, f.admin.Create(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "missing"}}))
		clk.ahead.Add(int64(absentFor))
		require.ErrorIs(t, get(ctx, "missing"), ErrOtherShard)
	})
}

func TestReconcilesThatBypassTheShard(t *testing.T) {
	f := newFixture(t)
	f.client.DisableFor = []client.Object{&corev1.Pod{}}
	p := f.program()
	cm := f.configMap(p.shard, "a")
	shows(p, cm)

	f.reconciles(mark{}, func(ctx context.Context) {
		key := client.ObjectKeyFromObject(cm)
		for _, r := range []client.Reader{p.client, p.reader, p.cache} {
			require.ErrorIs(t, r.Get(ctx, key, &corev1.ConfigMap{}), ErrNotAdded)
			require.ErrorIs(t, r.List(ctx, &corev1.ConfigMapList{}), ErrNotAdded)
			require.ErrorContains(t, r.List(ctx, &corev1.ConfigMapList{}), "works on ConfigMap")
			require.NoError(t, r.Get(ctx, client.ObjectKey{Name: f.namespace}, &corev1.Namespace{}))
		}

		for name, write := range writes(p.client, &corev1.Pod{ObjectMeta: f.meta(p.shard, "a")}) {
			require.ErrorIs(t, write(ctx), ErrNotAdded, name)
		}

		require.ErrorIs(t, p.client.SubResource("status").Get(ctx, &corev1.Pod{}, &corev1.Pod{}), ErrNotAdded)
	})
	f.reconciles(mark{controller: "leader", oneReplica: true}, func(ctx context.Context) {
		require.ErrorIs(t, p.client.Get(ctx, client.ObjectKeyFromObject(cm), &corev1.ConfigMap{}), ErrPartialCache)
		require.ErrorContains(t, p.client.List(ctx, &corev1.ConfigMapList{}), `controller "leader" reads ConfigMap`)
		require.ErrorIs(t, p.cache.List(ctx, &corev1.PodList{}), ErrPartialCache)
		require.NoError(t, p.client.List(ctx, &corev1.PodList{}), "a live read")
		require.NoError(t, p.reader.List(ctx, &corev1.ConfigMapList{}))
		require.NoError(t, p.client.Update(ctx, cm))

		loose := &unstructured.Unstructured{}
		loose.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
		require.NoError(t, p.client.Get(ctx, client.ObjectKeyFromObject(cm), loose), "another live read")
	})
}
