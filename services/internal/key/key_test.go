package key_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
)

var deployment = schema.GroupKind{Group: "apps", Kind: "Deployment"}

func TestKeyOfControlledObjectIsThatOfItsOwner(t *testing.T) {
	owner := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	want := key.Key{Group: "apps", Kind: "Deployment", Namespace: "default", Name: "web"}
	require.Equal(t, want, key.OfObject(deployment, owner))
	require.Equal(t, want, key.OfOwner(deployment, "default", "web"))
}

func TestKeyOfClusterScopedObjectHasNoNamespace(t *testing.T) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	k := key.OfObject(schema.GroupKind{Kind: "Namespace"}, namespace)
	require.Equal(t, "/Namespace//default", k.String())
}

func ExampleKey_Hash() {
	k := key.OfOwner(schema.GroupKind{Kind: "ConfigMap"}, "default", "a")
	fmt.Println(k, k.Hash())
	// Output: /ConfigMap/default/a 720116427
}

func FuzzStringIsInjective(f *testing.F) {
	f.Add("apps", "Deployment", "default", "web", "apps", "Deployment", "default", "web")
	f.Add("", "Namespace", "", "default", "", "Namespace", "default", "")
	f.Add("a", "b", "c", "d", "a", "b", "c-d", "")
	f.Fuzz(func(t *testing.T, g1, k1, ns1, n1, g2, k2, ns2, n2 string) {
		a, b := key.Key{Group: g1, Kind: k1, Namespace: ns1, Name: n1}, key.Key{Group: g2, Kind: k2, Namespace: ns2, Name: n2}
		for _, k := range []key.Key{a, b} {
			if strings.Count(k.String(), "/") != 3 {
				t.Skip("no part of a valid key contains a slash")
			}
		}

		if (a == b) != (a.String() == b.String()) {
			t.Errorf("keys %#v and %#v are written %q and %q", a, b, a, b)
		}

		if a == b && a.Hash() != b.Hash() {
			t.Errorf("%q has the hashes %d and %d", a, a.Hash(), b.Hash())
		}
	})
}

func FuzzHash(f *testing.F) {
	f.Add("apps", "Deployment", "default", "web")
	f.Add("", "", "", "")
	f.Add("\xff", "ß", "名前", strings.Repeat("x/", 1000))
	f.Fuzz(func(t *testing.T, group, kind, namespace, name string) {
		k := key.Key{Group: group, Kind: kind, Namespace: namespace, Name: name}

		h := k.Hash()
		if h >= key.Prime {
			t.Errorf("hash %d of %q is not below %d", h, k, key.Prime)
		}
		// The hash depends on the written form, wherever the parts end.
		if whole := reassemble(k.String()).Hash(); whole != h {
			t.Errorf("%q has the hash %d, its written form %d", k, h, whole)
		}
	})
}

// reassemble returns a key whose written form is s, which has at least three slashes: the rest is the name.
func reassemble(s string) key.Key {
	parts := strings.SplitN(s, "/", 4)
	return key.Key{Group: parts[0], Kind: parts[1], Namespace: parts[2], Name: parts[3]}
}

const tenant = "example.com/tenant"

var (
	byName      = key.RuleOf(nil)
	byNamespace = key.RuleOf(&v1alpha1.ObjectKey{Type: v1alpha1.KeyNamespace})
	byTenant    = key.RuleOf(&v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant})
	byApp       = key.RuleOf(&v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: "app"})

	secret    = schema.GroupKind{Kind: "Secret"}
	namespace = schema.GroupKind{Kind: "Namespace"}
	cluster   = schema.GroupKind{Group: "example.com", Kind: "Cluster"}
)

func named(namespace, name string, labels ...string) metav1.Object {
	m := &metav1.ObjectMeta{Namespace: namespace, Name: name}
	for i := 0; i < len(labels); i += 2 {
		metav1.SetMetaDataLabel(m, labels[i], labels[i+1])
	}

	return m
}

func TestRules(t *testing.T) {
	require.Equal(t, byName, key.RuleOf(&v1alpha1.ObjectKey{Type: v1alpha1.KeyName}))

	for _, tc := range []struct {
		what  string
		rule  key.Rule
		gk    schema.GroupKind
		obj   metav1.Object
		want  string
		found bool
	}{
		{"the name, as ever", byName, deployment, named("team-a", "web", tenant, "acme"), "apps/Deployment/team-a/web", true},
		{"a namespace", byNamespace, deployment, named("team-a", "web"), "/Namespace//team-a", true},
		{"another kind in it", byNamespace, secret, named("team-a", "token"), "/Namespace//team-a", true},
		{"a Namespace", byNamespace, namespace, named("", "team-a"), "/Namespace//team-a", true},
		{"a Namespace by its name", byName, namespace, named("", "team-a"), "/Namespace//team-a", true},
		{"no namespace", byNamespace, cluster, named("", "c1"), "example.com/Cluster//c1", false},
		{"a label", byTenant, deployment, named("team-a", "web", tenant, "acme"), "example.com//tenant/acme", true},
		{"another kind with it, elsewhere", byTenant, secret, named("team-b", "token", tenant, "acme"),
			"example.com//tenant/acme", true},
		{"a cluster-scoped kind with it", byTenant, cluster, named("", "c1", tenant, "acme"), "example.com//tenant/acme",
			true},
		{"a label without a prefix", byApp, secret, named("team-b", "token", "app", "Web_1.x"), "//app/Web_1.x", true},
		{"no label", byTenant, secret, named("team-b", "token", "tenant", "acme"), "/Secret/team-b/token", false},
		{"an empty label", byTenant, secret, named("team-b", "token", tenant, ""), "/Secret/team-b/token", false},
	} {
		t.Run(tc.what, func(t *testing.T) {
			k, found := tc.rule.Of(tc.gk, tc.obj)
			require.Equal(t, tc.want, k.String())
			require.Equal(t, tc.found, found)

			label, value, ok := k.Label()
			require.Equal(t, tc.rule.Label != "" && found, ok)

			if ok {
				require.Equal(t, tc.rule.Label, label)
				require.Equal(t, tc.obj.GetLabels()[label], value)
			}
		})
	}
}

// A key by a label has no kind, and every object has one, so the two never have the same written form.
func TestKeysByLabelsAreNoNames(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	part := func() string { return []string{"a", "b", "a.b", "tenant", "Namespace", "example.com"}[random.IntN(6)] }
	seen := map[string]string{}

	note := func(k key.Key, what string) {
		if was, known := seen[k.String()]; known {
			require.Equal(t, was, what, "%s is the key of both", k)
		}

		seen[k.String()] = what
	}

	for range 5000 {
		group, kind, ns, name := part(), part(), part(), part()
		note(key.Key{Group: group, Kind: kind, Namespace: ns, Name: name}, "object "+group+" "+kind+" "+ns+" "+name)

		label := part()
		if random.IntN(2) == 0 {
			label = part() + "/" + label
		}

		note(key.OfLabel(label, name), "label "+label+" "+name)
	}
}

func ExampleRule_Of() {
	rule := key.RuleOf(&v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant})
	k, found := rule.Of(deployment, named("team-a", "web", tenant, "acme"))
	fmt.Println(k, k.Hash(), found)
	// Output: example.com//tenant/acme 1428501070 true
}

// With SHA-256 instead of the hash, the fullest of 3 shards has 1.020 times the mean of 8,200 objects, averaged over
// many such series: 1.01 comes from the table, the rest from chance. The hash must be as good for names that count up.
func TestSequentialNamesSpreadEvenly(t *testing.T) {
	const objects, shards, series = 8200, 3, 40

	total, worst := 0.0, 0.0

	for s := range series {
		r := hashring.New([]string{fmt.Sprintf("shard-%d-0", s), fmt.Sprintf("shard-%d-1", s), fmt.Sprintf("shard-%d-2", s)})
		owned := map[string]int{}
		fullest := 0

		for i := range objects {
			k := key.Key{Kind: "ConfigMap", Namespace: fmt.Sprintf("ns-%d", s), Name: fmt.Sprintf("object-%d", i)}
			owner, ok := r.Owner(k.Hash())
			require.True(t, ok)
			owned[owner]++
			fullest = max(fullest, owned[owner])
		}

		ratio := float64(fullest) * shards / objects
		total, worst = total+ratio, max(worst, ratio)
	}
	t.Logf("%d sequential names over %d shards, %d times: max/mean %.4f on average, %.4f at worst",
		objects, shards, series, total/series, worst)
	require.Less(t, total/series, 1.025)
	require.Less(t, worst, 1.07)
}

// Objects are distributed over 1,024 equal parts of the hash space; chi-squared per degree of freedom is 1.00 ± 0.045
// by chance.
func TestHashSpacePartsAreUsedEvenly(t *testing.T) {
	const objects, parts = 65536, 1024

	for shape, name := range map[string]func(i int) key.Key{
		"counting": func(i int) key.Key { return key.Key{Kind: "ConfigMap", Namespace: "default", Name: fmt.Sprint(i)} },
		"padded": func(i int) key.Key {
			return key.Key{Group: "apps", Kind: "Deployment", Name: fmt.Sprintf("web-%08d", i)}
		},
		"hexadecimal": func(i int) key.Key {
			return key.Key{Kind: "Pod", Namespace: "default",
				Name: fmt.Sprintf("job-%x", i)}
		},
		"namespaces": func(i int) key.Key {
			return key.Key{Kind: "Secret", Namespace: fmt.Sprintf("team-%d", i), Name: "token"}
		},
		"grid": func(i int) key.Key {
			return key.Key{Kind: "Secret", Namespace: fmt.Sprintf("team-%d", i%256), Name: fmt.Sprintf("app-%d-token", i/256)}
		},
		"repeated": func(i int) key.Key {
			n := fmt.Sprint(i)
			return key.Key{Group: n + ".example.com", Kind: "K" + n, Namespace: n, Name: n}
		},
		"binary": func(i int) key.Key { return key.Key{Kind: "Node", Name: fmt.Sprintf("%032b", i)} },
	} {
		t.Run(shape, func(t *testing.T) {
			var counts [parts]int
			for i := range objects {
				counts[uint64(name(i).Hash())*parts/key.Prime]++
			}

			const mean = float64(objects) / parts

			chi := 0.0
			for _, c := range counts {
				chi += math.Pow(float64(c)-mean, 2) / mean
			}
			t.Logf("chi-squared/df %.3f", chi/(parts-1))
			require.Less(t, chi/(parts-1), 1.2)
		})
	}
}
