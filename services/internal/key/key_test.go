package key_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
)

var deployment = schema.GroupKind{Group: "apps", Kind: "Deployment"}

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

func ExampleRule_Of() {
	rule := key.RuleOf(&v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant})
	k, found := rule.Of(deployment, named("team-a", "web", tenant, "acme"))
	fmt.Println(k, k.Hash(), found)
	// Output: example.com//tenant/acme 1428501070 true
}
