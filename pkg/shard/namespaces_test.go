package shard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

func TestNamespacesThatAManagerWatches(t *testing.T) {
	kinds, err := Kinds{Main(&corev1.ConfigMap{}), Controlled(&corev1.Secret{})}.in(scheme.Scheme)
	require.NoError(t, err)

	in := func(names ...string) map[string]cache.Config {
		all := map[string]cache.Config{}
		for _, name := range names {
			all[name] = cache.Config{}
		}

		return all
	}

	for name, tc := range map[string]struct {
		cache cache.Options
		want  []string
	}{
		"all":                        {},
		"some":                       {cache.Options{DefaultNamespaces: in("b", "a")}, []string{"a", "b"}},
		"all, some in another way":   {cache.Options{DefaultNamespaces: in("a", metav1.NamespaceAll)}, nil},
		"of another kind":            {cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {Namespaces: in("a")}}}, nil},
		"of one kind":                {cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: {Namespaces: in("a")}}}, nil},
		"of one kind all":            {cache.Options{DefaultNamespaces: in("a"), ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: {Namespaces: in()}}}, nil},
		"of one kind more":           {cache.Options{DefaultNamespaces: in("a"), ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: {Namespaces: in("b")}}}, []string{"a", "b"}},
		"of a kind, by other labels": {cache.Options{DefaultNamespaces: in("a"), ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: {}}}, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, watchedNamespaces(manager.Options{Scheme: scheme.Scheme, Cache: tc.cache}, kinds))
		})
	}
}

// Whoever has read that the shard does not watch a namespace relies on the hold-off of a process that does.
func TestProcessThatWatchesMoreThanItsPredecessorHoldsOff(t *testing.T) {
	for name, tc := range map[string]struct {
		before, now []string
		settled     bool
	}{
		"the same":        {[]string{"a", "b"}, []string{"a", "b"}, true},
		"all, as before":  {nil, nil, true},
		"fewer than all":  {nil, []string{"a"}, true},
		"others":          {[]string{"a"}, []string{"b"}, false},
		"all, unlike one": {[]string{"a"}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			first, second := f.shard("shard-0"), f.shard("shard-0")
			first.namespaces, second.namespaces = tc.before, tc.now
			require.NoError(t, f.lock(first, f.config).Create(t.Context(), record("shard-0", 1)))
			f.overwrite(first, func(lease *coordinationv1.Lease) {
				lease.Spec.AcquireTime = &metav1.MicroTime{Time: lease.Spec.RenewTime.Add(-time.Hour)}
			})

			l := f.lock(second, f.config)
			_, _, err := l.Get(t.Context())
			require.NoError(t, err)
			require.Equal(t, tc.settled, l.settled)
			require.NoError(t, l.Update(t.Context(), record("shard-0", 2)))

			lease := f.lease(second)
			require.Equal(t, watchedBy(lease) != "", len(tc.now) > 0)
		})
	}
}
