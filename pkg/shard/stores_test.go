package shard

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The inner reconciler may read any cache of the process. Nothing is done while they disagree.
func TestNothingIsDoneWhileCachesDisagree(t *testing.T) {
	s, live, _ := unplugged(t)
	typed, worked := toolscache.NewStore(toolscache.MetaNamespaceKeyFunc), 0
	handle := s.Handler(resourceOf("ConfigMap", typed, live), func(context.Context, types.NamespacedName) error {
		worked++
		return nil
	})
	metadata := toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
	s.stores.add(&store{Store: metadata, form: form{gvk: corev1.SchemeGroupVersion.WithKind("ConfigMap")}},
		schema.GroupResource{})

	keys, name := s.LabelKeys(), types.NamespacedName{Namespace: "n", Name: "a"}

	at := func(version string, marks ...string) *metav1.ObjectMeta {
		o := &metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, ResourceVersion: version,
			Labels: map[string]string{"other": version}}
		for _, key := range marks {
			o.Labels[key] = s.Name()
		}

		return o
	}
	mine := at("5", keys.Shard)
	handed := at("7", keys.Shard)
	handed.Annotations = map[string]string{keys.Handover: `{"pods":"6"}`}

	for _, tc := range []struct {
		what       string
		one, other *metav1.ObjectMeta
		runs       bool
	}{
		{"the same", mine, mine, true},
		{"a newer version", mine, at("6", keys.Shard), true},
		{"to be released", mine, at("6", keys.Shard, keys.Drain), false},
		{"gone", mine, nil, false},
		{"another's", mine, at("6"), false},
		{"handed over", mine, handed, false},
	} {
		t.Run(tc.what, func(t *testing.T) {
			for range 2 { // with the older one in either store
				for items, o := range map[toolscache.Store]*metav1.ObjectMeta{typed: tc.one, metadata: tc.other} {
					var all []any
					if o != nil {
						all = append(all, &metav1.PartialObjectMetadata{ObjectMeta: *o})
					}

					require.NoError(t, items.Replace(all, "10"))
				}

				worked = 0
				after, err := handle(t.Context(), name)
				require.NoError(t, err)
				require.Equal(t, tc.runs, worked == 1)
				require.Equal(t, tc.runs, after != soon, "%v", after)

				found, _, err := s.stores.read(t.Context(), corev1.SchemeGroupVersion.WithKind("ConfigMap"), name)
				require.NoError(t, err)
				require.Equal(t, "5", found.GetResourceVersion(), "of what is there, the older one counts")

				tc.one, tc.other = tc.other, tc.one
			}
		})
	}
}

// Stores are found by kind and namespace. Those that have stopped are not.
func TestStoresAreFoundByNamespace(t *testing.T) {
	s, _, _ := unplugged(t)
	gk, typed, metadata := schema.GroupKind{Kind: "Secret"}, reflect.TypeFor[*corev1.Secret](),
		reflect.TypeFor[*metav1.PartialObjectMetadata]()
	names := map[*store]string{}
	add := func(name, namespace string, of reflect.Type, rest bool) {
		c := &store{form: form{corev1.SchemeGroupVersion.WithKind("Secret"), of}, namespace: namespace, rest: rest}
		names[c] = name
		s.stores.add(c, schema.GroupResource{})
	}
	showing := func(namespace string) string {
		var found []string
		for _, c := range s.stores.showing(gk, namespace) {
			found = append(found, names[c])
		}

		return strings.Join(found, " ")
	}

	add("typed-a", "a", typed, false)
	add("typed-b", "b", typed, false)
	add("typed-others", "", typed, true)
	add("metadata-all", "", metadata, false)
	add("metadata-a", "a", metadata, false) // as two handlers of a program without controller-runtime can have it
	require.Equal(t, "typed-a metadata-a metadata-all", showing("a"))
	require.Equal(t, "typed-b metadata-all", showing("b"))
	require.Equal(t, "typed-others metadata-all", showing("c"))
	require.Equal(t, "typed-others metadata-all", showing(""), "objects without a namespace")
	require.Len(t, s.stores.everywhere(gk), 5)
}

// A cache that has not been filled shows nothing: reading it waits, and so do objects whose handover names it.
func TestCachesThatAreNotFilledSayNothing(t *testing.T) {
	s, _, _ := unplugged(t)
	informer := toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, &corev1.Secret{}, 0, nil)
	s.stores.add(&store{
		Store: informer.GetStore(), form: form{gvk: corev1.SchemeGroupVersion.WithKind("Secret")}, informer: informer,
	}, corev1.Resource("secrets"))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	name := types.NamespacedName{Namespace: "n", Name: "a"}
	_, _, err := s.stores.read(ctx, corev1.SchemeGroupVersion.WithKind("Secret"), name)
	require.ErrorContains(t, err, "wait for the cache of Secret: context canceled")

	missing, after := s.awaits("n", "a", "20", time.Unix(0, 0))
	require.Equal(t, "secrets, which are not listed yet", missing)
	require.Equal(t, soon, after)
}

// What was confirmed from the caches of a kind need not be in a further one.
func TestAnotherCacheIsConfirmedAnew(t *testing.T) {
	s, _, _ := unplugged(t)
	of := form{gvk: corev1.SchemeGroupVersion.WithKind("Secret")}
	stock, other := s.inventoryOf(of, &kind{}),
		s.inventoryOf(form{gvk: corev1.SchemeGroupVersion.WithKind("Pod")}, &kind{})
	informer := toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, &corev1.Secret{}, 0, nil)
	name := types.NamespacedName{Namespace: "n", Name: "a"}

	for _, i := range []*inventory{stock, other} {
		i.listing = &listing{objects: map[types.NamespacedName]string{name: "5"}}
	}

	s.drains.watch(of.gvk.GroupKind(), informer)
	require.NotNil(t, stock.listing, "nothing was confirmed yet")
	stock.listing.note(name, mine("5"))
	other.listing.note(name, mine("5"))
	s.drains.watch(of.gvk.GroupKind(), informer)
	require.Nil(t, stock.listing)
	require.NotNil(t, other.listing)
}

// An object whose cache stays behind is looked at less and less. One request tells that the API server has reached the
// version; nothing is asked after that. An object that comes later does not look less often for that.
func TestWaitingBacksOff(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	w := f.wire()
	err := s.connect(f.config)
	require.NoError(t, err)
	s.stores.mapped(f.admin.RESTMapper())

	secrets := &lagging{Store: toolscache.NewStore(toolscache.MetaNamespaceKeyFunc), version: "1"}
	s.stores.add(&store{
		Store: secrets, form: form{gvk: corev1.SchemeGroupVersion.WithKind("Secret")}, namespace: f.namespace,
		endpoint: s.stores.endpoint(corev1.SchemeGroupVersion.WithKind("Secret")),
	}, corev1.Resource("secrets"))
	reached := f.secretOf(s, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}}, "a")
	start := time.Unix(0, 0)

	look := func(name string, now time.Time) time.Duration {
		_, after := s.awaits(f.namespace, name, reached.ResourceVersion, now)

		return after
	}

	looks := []time.Duration{}
	for now := start; now.Before(start.Add(time.Minute)); now = now.Add(looks[len(looks)-1]) {
		looks = append(looks, look("a", now))
	}

	require.Equal(t, soon, looks[0])
	require.Equal(t, seldom, looks[len(looks)-1])
	require.Less(t, len(looks), 40)
	require.Equal(t, 1, w.count("get metadata secrets"))
	require.Equal(t, soon, look("b", start.Add(time.Hour)))

	secrets.version = reached.ResourceVersion
	require.Zero(t, look("a", start.Add(time.Hour)))
	require.Zero(t, look("b", start.Add(time.Hour)))
}

// If a manager caches several namespaces, each has an informer. Those of other namespaces do not see the version of
// what follows the object, and one that was removed never will.
func TestWaitsForTheCacheOfTheNamespace(t *testing.T) {
	f, quiet := newFixture(t), newFixture(t).namespace
	s := f.shard("shard-0")
	s.stores.mapped(f.admin.RESTMapper())

	options := cache.Options{DefaultNamespaces: map[string]cache.Config{f.namespace: {}, quiet: {}}}
	require.NoError(t, s.stores.follow(&options, nil))

	c := f.runCache(options)
	_, err := c.GetInformer(t.Context(), &corev1.Secret{})
	require.NoError(t, err)

	missing := func(version string) string {
		missing, _ := s.awaits(f.namespace, "owner", version, time.Unix(0, 0))

		return missing
	}

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "follower"}}
	require.NoError(t, f.admin.Create(t.Context(), secret))
	f.eventually("it is cached",
		func() bool { return c.Get(t.Context(), client.ObjectKeyFromObject(secret), &corev1.Secret{}) == nil })
	require.NoError(t, f.admin.Delete(t.Context(), secret))
	f.eventually("it is not",
		func() bool { return c.Get(t.Context(), client.ObjectKeyFromObject(secret), &corev1.Secret{}) != nil })
	require.Empty(t, missing(secret.ResourceVersion), "no cache contains an object")

	other := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: quiet, Name: "follower"}}
	require.NoError(t, f.admin.Create(t.Context(), other))
	f.eventually("it is cached",
		func() bool { return c.Get(t.Context(), client.ObjectKeyFromObject(other), &corev1.Secret{}) == nil })
	require.NotEmpty(t, missing(other.ResourceVersion), "only the cache of the other namespace is there")

	require.NoError(t, c.RemoveInformer(t.Context(), &corev1.Secret{}))
	f.eventually("an informer that is stopped is not waited for",
		func() bool { return missing(other.ResourceVersion) == "" })
}

// A kind between two others needs no reconciler and no informer of the program. The metadata of its objects is cached
// when an object needs it.
func TestKindsBetweenAreCachedWhenNeeded(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	w := f.wire()
	top := f.configMap(s, "top")
	between := f.secretOf(s, top, "between")

	for _, name := range []string{"first", "second"} {
		leaf := &corev1.ServiceAccount{ObjectMeta: f.meta(s, name)}
		leaf.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(between,
			corev1.SchemeGroupVersion.WithKind("Secret"))}
		require.NoError(t, f.admin.Create(t.Context(), leaf))
	}

	worked := newNames()

	f.start(s, func(mgr ctrl.Manager) {
		f.controls(mgr, s, &corev1.ConfigMap{}, nothing)
		f.controls(mgr, s, &corev1.ServiceAccount{}, worked.reconcile)
	}, &corev1.ConfigMap{}, &corev1.Secret{}, &corev1.ServiceAccount{})

	receive(f, worked, "an object is worked on")
	receive(f, worked, "another one is worked on")
	require.Positive(t, w.count("watch metadata secrets"))
	require.Zero(t, w.count("watch object secrets")+w.count("get * between"))
}
