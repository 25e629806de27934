package celcheck

import (
	"testing"

	"github.com/google/cel-go/checker"
	"github.com/stretchr/testify/require"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"

	"github.com/clusterring/clusterring/services/internal/key"
)

// staticLimit is the maximum estimated cost of a rule of a CustomResourceDefinition (StaticEstimatedCostLimit of
// k8s.io/apiextensions-apiserver, which is not worth a dependency). Admission policies have no such limit.
const staticLimit = 10_000_000

func TestCostIsWithinTheLimitOfTheAPIServer(t *testing.T) {
	e := newEvaluator(t, environment.DefaultCompatibilityVersion(), environment.StoredExpressions)
	for name, k := range map[string]key.Key{
		"typical": {Group: "apps", Kind: "Deployment", Namespace: "team-production", Name: "checkout-service-7d9f"},
		"longest": longest,
	} {
		_, cost, err := e.hash(k)
		require.NoError(t, err)
		t.Logf("%s key, %d characters: cost %d, %.2f %% of the limit of %d per expression, %.2f %% of the budget of match conditions",
			name, len(k.String()), cost, 100*float64(cost)/celconfig.PerCallLimit, celconfig.PerCallLimit,
			100*float64(cost)/celconfig.RuntimeCELCostBudgetMatchConditions)
		require.Less(t, cost, uint64(celconfig.PerCallLimit/10))
	}
}

func TestEstimatedCostIsWithinTheLimitOfTheAPIServer(t *testing.T) {
	env := environmentOf(t, environment.DefaultCompatibilityVersion(), environment.StoredExpressions, partVariables...)
	ast, issues := env.Compile(partsExpression)
	require.NoError(t, issues.Err())

	estimate, err := env.EstimateCost(ast, &library.CostEstimator{SizeEstimator: sizes{
		"group": len(longest.Group), "kind": len(longest.Kind), "ns": len(longest.Namespace), "name": len(longest.Name),
	}})
	require.NoError(t, err)
	t.Logf("estimated cost of a key with parts of at most 253, 63, 63 and 253 characters: %d to %d, %.2f %% of the limit of %d",
		estimate.Min, estimate.Max, 100*float64(estimate.Max)/staticLimit, staticLimit)
	require.Less(t, estimate.Max, uint64(staticLimit))
}

// sizes are the maximum lengths of variables, as declared by a schema.
type sizes map[string]int

func (s sizes) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	if path := element.Path(); len(path) == 1 {
		if most, ok := s[path[0]]; ok {
			return &checker.SizeEstimate{Max: uint64(most)}
		}
	}

	return nil
}

func (s sizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

func BenchmarkCEL(b *testing.B) {
	e := newEvaluator(b, environment.DefaultCompatibilityVersion(), environment.StoredExpressions)
	for name, k := range map[string]key.Key{
		"typical": {Group: "apps", Kind: "Deployment", Namespace: "team-production", Name: "checkout-service-7d9f"},
		"longest": longest,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, _, err := e.hash(k); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
