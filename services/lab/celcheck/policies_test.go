package celcheck_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/yaml"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// expression is one of a policy.
type expression struct {
	name, text string
	types      []*cel.Type
}

func (e expression) GetName() string          { return e.name }
func (e expression) GetExpression() string    { return e.text }
func (e expression) ReturnTypes() []*cel.Type { return e.types }

// The API server of the oldest version that we support must know every function that an admission policy calls: otherwise, it refuses the policy,
// and nothing can be installed.
func TestPoliciesOfDeployAreForKubernetes130(t *testing.T) {
	found := 0

	err := filepath.WalkDir(filepath.Join("..", "..", "..", "deploy"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}

		for _, policy := range policies(t, path) {
			found++

			t.Run(policy.Name, func(t *testing.T) { compiles(t, policy) })
		}

		return nil
	})
	require.NoError(t, err)
	require.Greater(t, found, 10, "the policies are in deploy/")
}

// policies returns the admission policies in a file.
func policies(t testing.TB, path string) (all []admissionregistrationv1.ValidatingAdmissionPolicy) {
	t.Helper()

	file, err := os.Open(path)
	require.NoError(t, err)

	defer func() { require.NoError(t, file.Close()) }()

	for decoder := yaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		var policy admissionregistrationv1.ValidatingAdmissionPolicy

		err := decoder.Decode(&policy)
		if errors.Is(err, io.EOF) {
			return all
		}

		// Other objects, and patches, have other fields.
		if err == nil && policy.Kind == "ValidatingAdmissionPolicy" && policy.Spec.Validations != nil {
			all = append(all, policy)
		}
	}
}

// compiles verifies that the version knows all that the policy says.
func compiles(t *testing.T, policy admissionregistrationv1.ValidatingAdmissionPolicy) {
	t.Helper()

	compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(version.MajorMinor(1, 30)))
	require.NoError(t, err)

	options := optionsOf(policy)
	check := func(e expression) {
		t.Helper()

		result := compiler.CompileCELExpression(e, options, environment.NewExpressions)
		require.Nil(t, result.Error, "%s", e.text)
	}

	for _, c := range policy.Spec.MatchConditions {
		check(expression{text: c.Expression, types: []*cel.Type{cel.BoolType}})
	}

	storeVariables(t, compiler, policy, environment.NewExpressions)

	for _, v := range policy.Spec.Validations {
		check(expression{text: v.Expression, types: []*cel.Type{cel.BoolType}})

		if v.MessageExpression != "" {
			check(expression{text: v.MessageExpression, types: []*cel.Type{cel.StringType}})
		}
	}
}

// optionsOf returns what the expressions of a policy may use.
func optionsOf(policy admissionregistrationv1.ValidatingAdmissionPolicy) plugincel.OptionalVariableDeclarations {
	return plugincel.OptionalVariableDeclarations{HasParams: policy.Spec.ParamKind != nil, HasAuthorizer: true}
}

// storeVariables compiles the variables of a policy, for the expressions that are compiled from then on.
func storeVariables(
	t testing.TB, compiler *plugincel.CompositedCompiler, policy admissionregistrationv1.ValidatingAdmissionPolicy, kind environment.Type,
) {
	t.Helper()

	for _, v := range policy.Spec.Variables {
		result := compiler.CompileAndStoreVariable(expression{name: v.Name, text: v.Expression, types: []*cel.Type{cel.AnyType, cel.DynType}}, optionsOf(policy), kind)
		require.Nil(t, result.Error, "%s", v.Expression)
	}
}
