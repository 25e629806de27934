package celcheck

import (
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/clusterring/clusterring/services/internal/key"
)

// CEL gives an object the same key as Go, by every rule, whether or not the object has what the rule asks for.
func TestCELAgreesOnRules(t *testing.T) {
	env := environmentOf(t, environment.DefaultCompatibilityVersion(), environment.StoredExpressions, cel.Variable("object", cel.DynType))

	kinds := map[schema.GroupKind]bool{
		{Group: "apps", Kind: "Deployment"}: true, {Kind: "Secret"}: true, {Kind: "Namespace"}: false, {Group: "example.com", Kind: "Cluster"}: false,
	}

	for _, rule := range []key.Rule{{}, {Namespace: true}, {Label: "example.com/tenant"}, {Label: "app"}} {
		for gk, namespaced := range kinds {
			program := compile(t, env, rule.CELExpression(gk, namespaced, "object"))

			for _, labels := range []map[string]any{nil, {}, {"app": "web"}, {"example.com/tenant": "acme"}, {"example.com/tenant": "", "app": "A_b.1"}} {
				meta, obj := map[string]any{"name": "one"}, &metav1.ObjectMeta{Name: "one"}
				if namespaced {
					meta["namespace"], obj.Namespace = "team-a", "team-a"
				}

				if labels != nil {
					meta["labels"] = labels
				}

				for label, value := range labels {
					metav1.SetMetaDataLabel(obj, label, value.(string)) //nolint:forcetypeassert // all are strings
				}

				value, _, err := program.Eval(map[string]any{"object": map[string]any{"metadata": meta}})
				require.NoError(t, err)

				k, _ := rule.Of(gk, obj)
				require.Equal(t, int64(k.Hash()), value.Value(), "%s by %s with %v", gk, rule, labels)
			}
		}
	}
}
