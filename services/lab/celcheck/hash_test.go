package celcheck

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/clusterring/clusterring/services/internal/key"
)

// longest is the longest key that an API server admits for a custom resource.
var longest = key.Key{
	Group:     strings.Repeat("custom-resource-", 16)[:253],
	Kind:      strings.Repeat("Kind", 16)[:63],
	Namespace: strings.Repeat("team-", 13)[:63],
	Name:      strings.Repeat("very-long-name-", 17)[:253],
}

// oldest is the version that the API server of Kubernetes 1.33 keeps new expressions compatible with. It is the first
// version with all libraries that the expression needs.
var oldest = version.MajorMinor(1, 32)

// evaluator computes hashes with the expression of a key.
type evaluator struct{ program cel.Program }

// newEvaluator compiles the expression like the API server of the given version, for an expression that it has not
// stored before (New) or has (Stored).
func newEvaluator(t testing.TB, ver *version.Version, kind environment.Type) evaluator {
	t.Helper()

	env := environmentOf(t, ver, kind, cel.Variable("group", cel.StringType), cel.Variable("kind", cel.StringType),
		cel.Variable("ns", cel.StringType), cel.Variable("name", cel.StringType)) // CEL reserves the word namespace

	return evaluator{program: compile(t, env, expressionOf("group", "kind", "ns", "name"))}
}

func environmentOf(t testing.TB, ver *version.Version, kind environment.Type, variables ...cel.EnvOption) *cel.Env {
	t.Helper()

	envs, err := environment.MustBaseEnvSet(ver).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0), EnvOptions: variables,
	})
	require.NoError(t, err)
	env, err := envs.Env(kind)
	require.NoError(t, err)

	return env
}

func compile(t testing.TB, env *cel.Env, expression string) cel.Program {
	t.Helper()

	ast, issues := env.Compile(expression)
	require.NoError(t, issues.Err())
	require.True(t, ast.OutputType().IsExactType(cel.IntType), "the expression has the type %s", ast.OutputType())
	program, err := env.Program(ast, cel.InterruptCheckFrequency(celconfig.CheckFrequency))
	require.NoError(t, err)

	return program
}

// hash returns the hash of k and the cost of computing it.
func (e evaluator) hash(k key.Key) (h int64, cost uint64, err error) {
	value, details, err := e.program.Eval(map[string]any{
		"group": k.Group, "kind": k.Kind, "ns": k.Namespace, "name": k.Name,
	})
	if err != nil {
		return 0, 0, fmt.Errorf("evaluate the hash of %q: %w", k, err)
	}

	return value.Value().(int64), *details.ActualCost(), nil
}

// telling are interesting keys: real ones, extreme ones, and ones that no API server admits.
var telling = []key.Key{
	{},
	{Kind: "Namespace", Name: "default"},
	{Kind: "ConfigMap", Namespace: "default", Name: "kube-root-ca.crt"},
	{Group: "apps", Kind: "Deployment", Namespace: "kube-system", Name: "coredns"},
	{Group: "apps", Kind: "ReplicaSet", Namespace: "kube-system", Name: "coredns-6f6b679f8f"},
	{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "system:controller:job-controller"},
	{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "System_Admin@example.com (old)"},
	{Group: "apiregistration.k8s.io", Kind: "APIService", Name: "v1beta1.metrics.k8s.io"},
	{Group: "webhosting.timebertt.dev", Kind: "Website", Namespace: "project-1", Name: "website-0001"},
	{Kind: "Node", Name: "ip-10-0-0-1.eu-central-1.compute.internal"},
	{Group: "example.com", Kind: "Großes", Namespace: "ns", Name: "名前-🦊"},
	{Name: "e\u0301 is not \u00e9"},
	{Name: "\x00\n\t'\"\\{}[]%"},
	{Name: "a/b/c"},
	longest,
	{Name: strings.Repeat("_", 637)},  // the last position has its own multiplier
	{Name: strings.Repeat("_", 638)},  // the first position that shares one
	{Name: strings.Repeat("_", 2000)}, // several rounds of multipliers, the highest value of the alphabet
}

func TestCELAgreesOnKeys(t *testing.T) {
	random, keys := rand.New(rand.NewPCG(1, 2)), slices.Clone(telling)

	for range 600 {
		keys = append(keys, key.Key{
			Group:     randomPart(random, 253, "abcdefghijklmnopqrstuvwxyz0123456789-."),
			Kind:      randomPart(random, 63, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"),
			Namespace: randomPart(random, 63, "abcdefghijklmnopqrstuvwxyz0123456789-"),
			Name:      randomPart(random, 253, "abcdefghijklmnopqrstuvwxyz0123456789-.:_ABCXYZ@+ äß名🦊"),
		})
	}

	for name, e := range map[string]evaluator{
		"stored":             newEvaluator(t, environment.DefaultCompatibilityVersion(), environment.StoredExpressions),
		"new":                newEvaluator(t, environment.DefaultCompatibilityVersion(), environment.NewExpressions),
		"new in the oldest":  newEvaluator(t, oldest, environment.NewExpressions),
		"new in v1.37":       newEvaluator(t, version.MajorMinor(1, 37), environment.NewExpressions),
		"stored in the last": newEvaluator(t, version.MajorMinor(1, 37), environment.StoredExpressions),
	} {
		t.Run(name, func(t *testing.T) {
			for _, k := range keys {
				got, _, err := e.hash(k)
				require.NoError(t, err)
				require.Equal(t, int64(k.Hash()), got, "CEL's hash of %q is not Go's", k)
			}
		})
	}
}

func randomPart(random *rand.Rand, most int, alphabet string) string {
	if random.IntN(8) > 0 {
		most = most/8 + 1
	}

	characters := []rune(alphabet)

	part := make([]rune, random.IntN(most+1))
	for i := range part {
		part[i] = characters[random.IntN(len(characters))]
	}

	return string(part)
}

func TestCostIsWithinTheLimitOfTheAPIServer(t *testing.T) {
	e := newEvaluator(t, environment.DefaultCompatibilityVersion(), environment.StoredExpressions)
	for name, k := range map[string]key.Key{
		"typical": {Group: "apps", Kind: "Deployment", Namespace: "team-production", Name: "checkout-service-7d9f"},
		"longest": longest,
	} {
		_, cost, err := e.hash(k)
		require.NoError(t, err)
		t.Logf("%s key, %d characters: cost %d, %.2f %% of the limit of %d per expression, %.2f %% of the budget of match "+
			"conditions",
			name, len(k.String()), cost, 100*float64(cost)/celconfig.PerCallLimit, celconfig.PerCallLimit,
			100*float64(cost)/celconfig.RuntimeCELCostBudgetMatchConditions)
		require.Less(t, cost, uint64(celconfig.PerCallLimit/10))
	}
}

// CEL gives an object the same key as Go, by every rule, whether or not the object has what the rule asks for.
func TestCELAgreesOnRules(t *testing.T) {
	env := environmentOf(t, environment.DefaultCompatibilityVersion(), environment.StoredExpressions,
		cel.Variable("object", cel.DynType))

	kinds := map[schema.GroupKind]bool{
		{Group: "apps", Kind: "Deployment"}: true, {Kind: "Secret"}: true, {Kind: "Namespace"}: false,
		{Group: "example.com", Kind: "Cluster"}: false,
	}

	for _, rule := range []key.Rule{{}, {Namespace: true}, {Label: "example.com/tenant"}, {Label: "app"}} {
		for gk, namespaced := range kinds {
			program := compile(t, env, expressionBy(rule, gk, namespaced))

			for _, labels := range []map[string]any{nil, {}, {"app": "web"}, {"example.com/tenant": "acme"},
				{"example.com/tenant": "", "app": "A_b.1"}} {
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
