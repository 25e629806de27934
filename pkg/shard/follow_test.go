package shard

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// runCache runs a cache until the test ends.
func (f *fixture) runCache(o cache.Options) cache.Cache {
	f.Helper()

	c, err := cache.New(f.config, o)
	require.NoError(f, err)
	f.launch(c.Start)

	return c
}

// handed creates a ConfigMap of the shard that follows a Secret, according to its handover.
func (f *fixture) handed(s *Shard, name string, secret *corev1.Secret) *corev1.ConfigMap {
	f.Helper()

	handover := contract.Handover{corev1.Resource("secrets"): secret.ResourceVersion}
	cm := &corev1.ConfigMap{ObjectMeta: f.meta(s, name)}
	cm.Annotations = map[string]string{s.LabelKeys().Handover: handover.String()}
	require.NoError(f, f.admin.Create(f.Context(), cm))

	return cm
}

// Looks at objects, and the release of an object, send no request to read the object, and need no further informer, in
// whatever form the controller watches it, and however the program's client reads.
func TestLooksSendNoRequests(t *testing.T) {
	for _, what := range append(forms, "not cached by the client") {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t)
			s := f.shard("shard-0")
			w := f.wire()
			f.client.EnableReadYourWritesConsistency = new(true)
			obj, _ := emptyOf(what, "ConfigMap")

			if what == "not cached by the client" {
				obj = &corev1.ConfigMap{}
				f.client.DisableFor = []client.Object{obj}
			}

			worked := newNames()
			cm := f.configMap(s, "a")
			f.start(s, func(mgr ctrl.Manager) { f.controls(mgr, s, obj, worked.reconcile) }, &corev1.ConfigMap{})
			receive(f, worked, "the object is worked on")

			f.label(cm, s.drainKey, "true")
			f.released(cm)

			require.Positive(t, w.count("patch metadata a"))
			require.Zero(t, w.count("get * a"))
			require.Len(t, s.stores.everywhere(schema.GroupKind{Kind: "ConfigMap"}), 1, "one informer")
		})
	}
}

// A transform of the program cannot remove what the shard needs.
func TestTransformsKeepWhatTheShardNeeds(t *testing.T) {
	strip := func(in any) (any, error) {
		if obj, ok := in.(client.Object); ok {
			obj.SetLabels(nil)
			obj.SetAnnotations(nil)
			obj.SetOwnerReferences(nil)
		}

		return in, nil
	}

	f := newFixture(t)
	s := f.shard("shard-0")
	held := f.holdable("secrets")
	f.cache.DefaultTransform = strip

	worked := newNames()
	s.options.ShowLabels = true
	p := f.start(s, func(mgr ctrl.Manager) {
		f.controls(mgr, s, &corev1.ConfigMap{}, worked.reconcile)
		f.controls(mgr, s, &corev1.Secret{}, worked.reconcile)
	})

	other := f.configMap(nil, "other")
	first := f.configMap(s, "first")
	require.Equal(t, "first", receive(f, worked, "an object of the shard is worked on"))

	orphan := f.secretOf(s, other, "child-of-another")

	held.hold()

	secret := f.secretOf(s, first, "child")
	owner := f.handed(s, "handed", secret)
	f.eventually("the object is looked at", func() bool { return waitingOf(t, f.ring) == 1 })
	require.Empty(t, worked, "its cache is behind")
	held.release()

	seen := []string{receive(f, worked, "one"), receive(f, worked, "another")}
	require.ElementsMatch(t, []string{secret.Name, owner.Name}, seen, "%s follows an object of another shard", orphan.Name)

	cached := &corev1.ConfigMap{}
	require.NoError(t, p.mgr.GetClient().Get(t.Context(), client.ObjectKeyFromObject(owner), cached))
	require.Len(t, cached.Labels, 1)

	f.label(owner, s.drainKey, "true")
	f.released(owner)
}

// The informers of a cache get the shard's selector when they list and watch, whatever the form and the version of the
// kind.
func TestInformersSeeOnlyTheShard(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	named := make(chan struct{})
	w := f.wire()
	s.stores.selector = late{labels.Nothing(), func() labels.Selector {
		<-named
		return s.Selector()
	}}

	o := cache.Options{
		// without them, a hand-over could wait for ever
		DefaultEnableWatchBookmarks: new(false),
		// they would replace the shard's
		DefaultLabelSelector: labels.Everything(), DefaultFieldSelector: fields.Everything(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.ConfigMap{}: {Label: labels.Everything(), EnableWatchBookmarks: new(false)},
			&corev1.Secret{}: {
				Label: labels.Everything(), EnableWatchBookmarks: new(false),
				Namespaces: map[string]cache.Config{f.namespace: {EnableWatchBookmarks: new(false)}},
			},
		},
	}
	require.NoError(t, s.stores.follow(&o, nil))

	c := f.runCache(o)
	close(named) // only now

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	mine, other := f.configMap(s, "mine"), f.configMap(nil, "other")
	secret := f.secretOf(s, mine, "secret")
	f.secretOf(nil, mine, "another")

	for _, what := range forms {
		obj, _ := emptyOf(what, "ConfigMap")
		require.NoError(t, c.Get(ctx, client.ObjectKeyFromObject(mine), obj), what)
		require.True(t, apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(other), obj)), what)
	}

	require.NoError(t, c.Get(ctx, client.ObjectKeyFromObject(secret), &corev1.Secret{}))

	f.label(other, s.shardKey, s.Name())
	f.label(mine, s.shardKey, "another")

	for _, what := range forms {
		obj, _ := emptyOf(what, "ConfigMap")
		f.eventually("the watch sees the change: "+what, func() bool {
			return c.Get(ctx, client.ObjectKeyFromObject(other), obj) == nil &&
				c.Get(ctx, client.ObjectKeyFromObject(mine), obj) != nil
		})
	}

	require.Positive(t, w.count("watch metadata configmaps")*w.count("watch object configmaps")*
		w.count("watch object secrets"))
	require.Zero(t, w.count("blind-watch *"))

	secrets := &corev1.SecretList{}
	require.NoError(t, c.List(ctx, secrets))
	require.Len(t, secrets.Items, 1)
}

func TestCacheOptionsThatAShardCannotDoWith(t *testing.T) {
	f := newFixture(t)
	some, field := labels.SelectorFromSet(labels.Set{"a": "b"}), fields.OneTermEqualSelector("metadata.name", "a")
	remove := "remove the label and field selectors of ConfigMap: the shard could not release"

	for what, tc := range map[string]struct {
		options manager.Options
		want    string
	}{
		"nothing": {manager.Options{}, ""},
		"another cache": {manager.Options{NewCache: func(*rest.Config, cache.Options) (cache.Cache, error) {
			return nil, nil
		}}, "remove NewCache: the shard makes the cache of sharded kinds"},
		"a default label": {manager.Options{Cache: cache.Options{DefaultLabelSelector: some}}, remove},
		"a default field": {manager.Options{Cache: cache.Options{DefaultFieldSelector: field}}, remove},
		"a label":         {manager.Options{Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {Label: some}}}}, remove},
		"a field":         {manager.Options{Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {Field: field}}}}, remove},
		"of another kind": {manager.Options{Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: {Label: some, Field: field}}}}, ""},
		"a default that does not hold": {manager.Options{Cache: cache.Options{DefaultLabelSelector: some,
			ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {Label: labels.Everything()}}}}, ""},
		"of a namespace":             {manager.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{"a": {}, "b": {LabelSelector: some}}}}, remove},
		"of the namespace of a kind": {manager.Options{Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{"a": {FieldSelector: field}}}}}}, remove},
		"namespaces":                 {manager.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{"a": {}, "": {}}}}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := NewManager(f.config, tc.options, f.named("shard-0"))
			if tc.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.want)
			}
		})
	}
}
