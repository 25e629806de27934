package shard

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/internal/testenv"
)

// lagging is a cache that has reached a version.
type lagging struct {
	cache.Store
	version string
}

func (l *lagging) LastStoreSyncResourceVersion() string { return l.version }

// awaits looks at a ConfigMap that follows Secrets up to a version, or none. It returns what the shard waits for, and
// when to look again.
func (s *Shard) awaits(namespace, name, secrets string, now time.Time) (missing string, after time.Duration) {
	obj := &metav1.ObjectMeta{Namespace: namespace, Name: name}
	if secrets != "" {
		obj.Annotations = map[string]string{s.LabelKeys().Handover: `{"secrets":"` + secrets + `"}`}
	}

	key := objectKey{schema.GroupKind{Kind: "ConfigMap"}, types.NamespacedName{Namespace: namespace, Name: name}}
	missing, after, _ = s.handover.awaits(context.Background(), key, obj, now)

	return missing, after
}

// waitingOf returns the number of waiting objects of a ring according to the metrics.
func waitingOf(t *testing.T, ring string) int {
	t.Helper()

	return int(series(t, ring)["waiting_objects{}"])
}

// unplugged returns a shard that works without a Lease, a client that sends nothing, and the shard's clock.
func unplugged(t *testing.T) (*Shard, metadata.Interface, *clocktesting.FakeClock) {
	t.Helper()

	s, err := New(Options{Ring: "ring", Name: "shard-0", Namespace: "default"})
	require.NoError(t, err)

	clk := clocktesting.NewFakeClock(time.Unix(0, 0))
	s.term.clock = clk
	s.term.unlimited()

	live, err := metadata.NewForConfig(&rest.Config{Host: "http://127.0.0.1:0"})
	require.NoError(t, err)

	return s, live, clk
}

// A shard begins with an object when its caches show all objects that follow it, according to its handover.
func TestWaitsForWhatFollowsAnObject(t *testing.T) {
	s, live, _ := unplugged(t)

	owners := cache.NewStore(cache.MetaNamespaceKeyFunc)
	followers := &lagging{Store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	name := types.NamespacedName{Namespace: "n", Name: "owner"}
	done := 0

	owner := s.Handler(resourceOf("ConfigMap", owners, live), func(context.Context, types.NamespacedName) error {
		done++
		return nil
	})
	s.Handler(resourceOf("Secret", followers, live), nil)

	for _, tc := range []struct {
		what, handover, reached string
		begins                  bool
		refused                 string
	}{
		{"nothing follows it", "", "1", true, ""},
		{"the cache is behind", `{"secrets":"20"}`, "19", false, ""},
		{"the cache is there", `{"secrets":"20"}`, "20", true, ""},
		{"the cache is further", `{"secrets":"20"}`, "100", true, ""},
		{"a resource that nobody has declared", `{"pods":"20","secrets":"20"}`, "20", false,
			"of resource pods, which is not declared"},
		{"nobody can read it", `{`, "1", true, ""},
	} {
		t.Run(tc.what, func(t *testing.T) {
			require.NoError(t, owners.Replace([]any{&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Namespace: name.Namespace, Name: name.Name, ResourceVersion: "5",
				Labels:      map[string]string{contract.ShardLabel("ring"): "shard-0"},
				Annotations: map[string]string{contract.HandoverAnnotation("ring"): tc.handover},
			}}}, "5"))

			followers.version, done = tc.reached, 0

			after, err := owner(t.Context(), name)
			if tc.refused != "" {
				require.ErrorContains(t, err, tc.refused)
				require.ErrorContains(t, err, "Shard.Handler")
				require.Zero(t, done)

				return
			}

			require.NoError(t, err)

			if tc.begins {
				require.Equal(t, 1, done)
				require.Zero(t, after)
				require.Zero(t, waitingOf(t, "ring"))
			} else {
				require.Zero(t, done)
				require.Equal(t, soon, after)
				require.Equal(t, 1, waitingOf(t, "ring"))
			}
		})
	}
}

// A worker on an object is inside everything that the object follows, up to the main object. It begins only if the
// shard owns all of it.
func TestEntersAllThatAnObjectFollows(t *testing.T) {
	s, live, _ := unplugged(t)

	kinds := []string{"ConfigMap", "Secret", "ServiceAccount"} // each controls the next one
	stores := map[string]cache.Store{}

	var (
		leaf   func(context.Context, types.NamespacedName) (time.Duration, error)
		inside []string
	)

	for _, kind := range kinds {
		stores[kind] = cache.NewStore(cache.MetaNamespaceKeyFunc)
		leaf = s.Handler(resourceOf(kind, stores[kind], live), func(context.Context, types.NamespacedName) error {
			for _, kind := range kinds {
				if o := s.guard.objects[objectKey{schema.GroupKind{Kind: kind},
					types.NamespacedName{Namespace: "n", Name: kind}}]; o != nil && o.inside == 1 {
					inside = append(inside, kind)
				}
			}

			return nil
		})
	}

	drained := contract.DrainLabel("ring")

	for _, tc := range []struct {
		what   string
		change func(all map[string]*metav1.PartialObjectMetadata)
		begins bool
	}{
		{"all are its own", func(map[string]*metav1.PartialObjectMetadata) {}, true},
		{"the owner is another's", func(all map[string]*metav1.PartialObjectMetadata) { delete(all, "ConfigMap") }, false},
		{"the one between is another's", func(all map[string]*metav1.PartialObjectMetadata) { delete(all, "Secret") }, false},
		{"the owner is to be given up",
			func(all map[string]*metav1.PartialObjectMetadata) { all["ConfigMap"].Labels[drained] = "true" }, false},
		{"nobody controls the one between",
			func(all map[string]*metav1.PartialObjectMetadata) { all["Secret"].OwnerReferences = nil }, true},
		{"the one between is a main object, which follows no controller",
			func(all map[string]*metav1.PartialObjectMetadata) { delete(all, "ConfigMap") }, true},
		{"the owner waits for what follows it", func(all map[string]*metav1.PartialObjectMetadata) {
			all["ConfigMap"].Annotations = map[string]string{contract.HandoverAnnotation("ring"): `{"secrets":"10"}`}
		}, false},
	} {
		t.Run(tc.what, func(t *testing.T) {
			all := map[string]*metav1.PartialObjectMetadata{}

			for i, kind := range kinds {
				o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
					Namespace: "n", Name: kind, ResourceVersion: "5",
					Labels: map[string]string{contract.ShardLabel("ring"): "shard-0"},
				}}
				if i > 0 {
					o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: kinds[i-1], Name: kinds[i-1],
						Controller: new(true)}}
				}

				all[kind] = o
			}
			tc.change(all)

			for _, kind := range kinds {
				var has []any
				if o, ok := all[kind]; ok {
					has = append(has, o)
				}
				require.NoError(t, stores[kind].Replace(has, "5"))
			}

			inside = nil
			s.kind(schema.GroupKind{Kind: "Secret"}, "n").main = strings.Contains(tc.what, "main object")
			after, err := leaf(t.Context(), types.NamespacedName{Namespace: "n", Name: "ServiceAccount"})
			require.Equal(t, tc.begins, inside != nil, "%v %v", after, err)

			if tc.what == "all are its own" {
				require.Equal(t, kinds, inside)
			}
		})
	}
}

// unsure is a mapper that knows nothing but an error.
type unsure struct {
	meta.RESTMapper
	err error
}

func (u unsure) RESTMapping(schema.GroupKind, ...string) (*meta.RESTMapping, error) {
	return nil, u.err
}

// A cache whose resource cannot be found out now may be the one that a handover names.
func TestWaitsWhileResourcesAreUnknown(t *testing.T) {
	s, _, _ := unplugged(t)
	s.stores.add(&store{Store: &lagging{version: "1"}, form: form{gvk: corev1.SchemeGroupVersion.WithKind("Secret")}},
		schema.GroupResource{})

	awaits := func(secrets string) string {
		missing, _ := s.awaits("n", "owner", secrets, time.Unix(0, 0))

		return missing
	}

	s.stores.mapped(unsure{err: errors.New("timeout")})
	require.Contains(t, awaits("20"), "the resource of Secret, which is not known: look up the resource: timeout")
	require.Empty(t, awaits(""), "nothing is handed over")

	s.stores.mapped(unsure{err: &meta.NoKindMatchError{}})
	require.Empty(t, awaits("20"), "what is not served is not cached")
}

// An object that was restored from another cluster has the handover of that cluster, whose versions this one may reach
// in years. A request shows that, and a handover of this cluster is still waited for.
func TestHandoverOfAnotherClusterIsNotWaitedFor(t *testing.T) {
	ns := testenv.Namespace(t)

	s, err := New(Options{Ring: "ring", Name: "shard-0", Namespace: ns})
	require.NoError(t, err)

	live, err := metadata.NewForConfig(testenv.Config(t))
	require.NoError(t, err)

	follower := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "follower"}}
	require.NoError(t, testenv.Client(t).Create(t.Context(), follower))

	secrets := &lagging{Store: cache.NewStore(cache.MetaNamespaceKeyFunc), version: "1"}
	s.Handler(resourceOf("Secret", secrets, live), nil)

	now := time.Unix(0, 0)
	waits := func(name, version string) bool {
		missing, _ := s.awaits(ns, name, version, now)

		return missing != ""
	}

	answer := func() answer { return s.handover.answers[schema.GroupKind{Kind: "Secret"}] }

	const far = "999999999999"

	require.True(t, waits("restored", far))
	require.True(t, waits("here", follower.ResourceVersion))
	require.Zero(t, answer(), "nobody asks at once")

	now = now.Add(recheck)
	require.False(t, waits("restored", far))
	require.NoError(t, answer().err)
	require.True(t, waits("here", follower.ResourceVersion), "the cache is really behind")

	now = now.Add(time.Second)

	for range 2 {
		require.True(t, waits("later", far), "what was known before the object was seen says nothing about it")
	}

	require.True(t, waits("here", far), "nor about another handover")
	require.False(t, waits("restored", far), "it is settled")

	now = now.Add(recheck)
	require.False(t, waits("later", far))

	known := answer()
	require.False(t, waits("here", far), "one answer serves all that waited")
	require.Equal(t, known, answer())
}

// A shard does not work on an object as if it had waited for what follows it: a hand-over that names a resource which
// nobody has declared is an error. When the hand-over no longer names it, the shard works on the object.
func TestHandoverOfAResourceThatIsNotDeclared(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	keys := s.LabelKeys()
	cm := f.configMap(s, "a")
	handed := func(obj client.Object, value any) {
		f.merge(obj, map[string]any{"annotations": map[string]any{keys.Handover: value}})
	}
	handed(cm, `{"services":"1"}`)
	handed(f.configMap(s, "b"), `{"secrets":"1"}`)

	worked := newNames()
	f.start(s, func(mgr ctrl.Manager) {
		require.NoError(t, ctrl.NewControllerManagedBy(mgr).Named("test").For(&corev1.ConfigMap{}).
			Complete(reconcile.Func(worked.reconcile)))
	})
	require.Equal(t, "b", receive(f, worked, "a kind that is declared, and not cached, is not waited for"))
	f.eventually("it is counted", func() bool {
		count := 0
		s.progress.each(s.progress.reconciles, func(value float64, labels ...string) {
			if labels[0] == "test" && labels[1] == "undeclared" {
				count += int(value)
			}
		})

		return count > 1 // it is tried again
	})
	require.Empty(t, worked)

	handed(cm, nil)
	require.Equal(t, "a", receive(f, worked, "it is found again"))
}
