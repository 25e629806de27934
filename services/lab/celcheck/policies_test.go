package celcheck_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// expression is one of a policy.
type expression struct {
	name, text string
	types      []*cel.Type
}

func (e expression) GetName() string          { return e.name }
func (e expression) GetExpression() string    { return e.text }
func (e expression) ReturnTypes() []*cel.Type { return e.types }

// The API server of the oldest version that we support must know every function that an admission policy calls:
// otherwise, it refuses the policy, and nothing can be installed.
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
	t testing.TB, compiler *plugincel.CompositedCompiler, policy admissionregistrationv1.ValidatingAdmissionPolicy,
	kind environment.Type,
) {
	t.Helper()

	for _, v := range policy.Spec.Variables {
		result := compiler.CompileAndStoreVariable(expression{name: v.Name, text: v.Expression,
			types: []*cel.Type{cel.AnyType, cel.DynType}}, optionsOf(policy), kind)
		require.Nil(t, result.Error, "%s", v.Expression)
	}
}

// compiled is a policy that is evaluated like in the API server: conditions first, and messages also for what is
// allowed.
type compiled struct{ conditions, validations, messages plugincel.ConditionEvaluator }

func compilePolicy(t testing.TB, policy admissionregistrationv1.ValidatingAdmissionPolicy) compiled {
	t.Helper()

	compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	require.NoError(t, err)

	storeVariables(t, compiler, policy, environment.StoredExpressions)

	options := optionsOf(policy)

	var conditions, validations, messages []plugincel.ExpressionAccessor

	for _, m := range policy.Spec.MatchConditions {
		conditions = append(conditions, expression{text: m.Expression, types: []*cel.Type{cel.BoolType}})
	}

	for _, v := range policy.Spec.Validations {
		validations = append(validations, expression{text: v.Expression, types: []*cel.Type{cel.BoolType}})
		messages = append(messages, expression{text: v.MessageExpression, types: []*cel.Type{cel.StringType}})
	}

	return compiled{
		conditions:  compiler.CompileCondition(conditions, options, environment.StoredExpressions),
		validations: compiler.CompileCondition(validations, options, environment.StoredExpressions),
		messages: compiler.CompileCondition(messages, plugincel.OptionalVariableDeclarations{},
			environment.StoredExpressions),
	}
}

// evaluate reports whether all conditions match, and returns the messages of the validations that then refuse the
// write, and the cost.
func (c compiled) evaluate(
	t testing.TB, attributes *admission.VersionedAttributes,
) (matches bool, refused []string, cost int64) {
	t.Helper()

	request := plugincel.CreateAdmissionRequest(attributes, metav1.GroupVersionResource(attributes.GetResource()),
		metav1.GroupVersionKind(attributes.GetKind()))
	budget := int64(celconfig.RuntimeCELCostBudget)
	input := plugincel.OptionalVariableBindings{Authorizer: nobody{}}
	run := func(e plugincel.ConditionEvaluator) []plugincel.EvaluationResult {
		results, left, err := e.ForInput(t.Context(), attributes, request, input, nil, budget)
		require.NoError(t, err)

		budget = left

		return results
	}

	isTrue := func(r plugincel.EvaluationResult) bool {
		require.NoError(t, r.Error)
		return r.EvalResult.Value() == true
	}

	if !slices.ContainsFunc(run(c.conditions), func(r plugincel.EvaluationResult) bool { return !isTrue(r) }) {
		matches = true

		validations, messages := run(c.validations), run(c.messages)
		for i, v := range validations {
			if !isTrue(v) {
				refused = append(refused, messages[i].EvalResult.Value().(string))
			}
		}
	}

	return matches, refused, int64(celconfig.RuntimeCELCostBudget) - budget
}

// nobody may do anything.
type nobody struct{}

func (nobody) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", nil
}

func rebalancerPolicy(t testing.TB) admissionregistrationv1.ValidatingAdmissionPolicy {
	t.Helper()

	all := policies(t, filepath.Join("..", "..", "..", "deploy", "base", "guard", "services.yaml"))
	i := slices.IndexFunc(all, func(p admissionregistrationv1.ValidatingAdmissionPolicy) bool {
		return p.Name == "rebalancer.sharding.timebertt.dev"
	})
	require.GreaterOrEqual(t, i, 0)

	return all[i]
}

// website returns an object as the API server stores it, with these changes.
func website(changes ...func(map[string]any)) *unstructured.Unstructured {
	u := map[string]any{
		"apiVersion": "example.com/v1", "kind": "Website",
		"metadata": map[string]any{
			"name": "a", "namespace": "n", "uid": "7d4cf3f5-5f0c-4f8b-9d0e-3d4f6f4c1d11", "resourceVersion": "4711",
			"generation":        int64(1),
			"creationTimestamp": "2026-01-01T00:00:00Z",
			"labels":            map[string]any{shardLabel: "shard-0", "app": "a"},
			"annotations":       map[string]any{"note": "x"},
			"finalizers":        []any{"example.com/keep"},
			"managedFields":     []any{map[string]any{"manager": "m", "operation": "Update"}},
		},
		"spec":   map[string]any{"theme": "light", "hosts": []any{"a", "b"}},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
	}
	for _, change := range changes {
		change(u)
	}

	return &unstructured.Unstructured{Object: u}
}

var shardLabel, drainLabel, handover = contract.ShardLabel("r"), contract.DrainLabel("r"),
	contract.HandoverAnnotation("r")

// set returns a change of one field; nil removes it.
func set(value any, path ...string) func(map[string]any) {
	return func(u map[string]any) {
		if value == nil {
			unstructured.RemoveNestedField(u, path...)
		} else if err := unstructured.SetNestedField(u, value, path...); err != nil {
			panic(err)
		}
	}
}

// update returns an update by the rebalancer.
func update(object, old *unstructured.Unstructured) *admission.VersionedAttributes {
	kind := object.GroupVersionKind()
	v := &admission.VersionedAttributes{VersionedKind: kind,
		Attributes: admission.NewAttributesRecord(object, old, kind, "n", "a",
			schema.GroupVersionResource{Group: kind.Group, Version: kind.Version, Resource: "websites"}, "", admission.Update,
			&metav1.PatchOptions{}, false,
			&user.DefaultInfo{Name: "system:serviceaccount:sharding-system:rebalancer"})}
	v.VersionedObject.Set(object)
	v.VersionedOldObject.Set(old)

	return v
}

// moves are the changes that the rebalancer makes, and those that the API server adds.
func moves() map[string]func(map[string]any) {
	return map[string]func(map[string]any){
		"moved":      set("shard-1", "metadata", "labels", shardLabel),
		"unassigned": set(nil, "metadata", "labels", shardLabel),
		"drained":    set("true", "metadata", "labels", drainLabel),
		"gathered":   set("{}", "metadata", "annotations", handover),
		"written":    set([]any{map[string]any{"manager": "rebalancer"}}, "metadata", "managedFields"),
		"versioned":  set("4712", "metadata", "resourceVersion"),
	}
}

// A move is decided by the condition alone.
func TestMovesCostOneExpression(t *testing.T) {
	policy := compilePolicy(t, rebalancerPolicy(t))
	allows := func(object, old *unstructured.Unstructured, name string) {
		matches, _, _ := policy.evaluate(t, update(object, old))
		require.False(t, matches, name)
	}

	for name, change := range moves() {
		allows(website(change), website(), name)
		allows(website(), website(change), name+", and back")

		// The first label or annotation of an object, and the last one.
		for _, field := range []string{"labels", "annotations"} {
			bare := set(nil, "metadata", field)
			allows(website(bare, change), website(bare), name+" without "+field)
			allows(website(bare), website(bare, change), name+" without "+field+", and back")
		}
	}
}

// What the condition lets pass, the validations would allow too.
func TestConditionAllowsNoMoreThanTheValidations(t *testing.T) {
	fast := rebalancerPolicy(t)
	full := *fast.DeepCopy()
	full.Spec.MatchConditions = nil
	quick, slow := compilePolicy(t, fast), compilePolicy(t, full)

	changes := moves()
	for name, value := range map[string]any{
		"spec.theme": "dark", "spec.hosts": []any{"a"}, "spec": nil, "status": nil, "status.phase": "x",
		"data": map[string]any{"k": "v"}, "kind": "Other",
		"metadata.labels.app": "b", "metadata.labels.other": "x", "metadata.labels": nil, "metadata.annotations.note": "y",
		"metadata.annotations":       nil,
		"metadata.annotations.shard": "y", "metadata.finalizers": nil,
		"metadata.ownerReferences": []any{map[string]any{"kind": "Pod"}},
		"metadata.generateName":    "g", "metadata.deletionTimestamp": "2026-01-01T00:00:00Z", "metadata.new": "x",
	} {
		changes[name] = set(value, strings.Split(name, ".")...)
	}

	for a, first := range changes {
		for b, second := range changes {
			for way, attributes := range map[string]*admission.VersionedAttributes{
				"together": update(website(first, second), website()), "back": update(website(), website(first, second)),
				"from one to the other": update(website(first), website(second)),
			} {
				_, refused, _ := slow.evaluate(t, attributes)
				matches, same, _ := quick.evaluate(t, attributes)

				require.Len(t, same, len(refused), "%s, %s, %s: %v and %v", a, b, way, refused, same)
				require.True(t, matches || len(refused) == 0, "%s, %s, %s: %v", a, b, way, refused)
			}
		}
	}
}

// numbered returns as many labels or annotations as given.
func numbered(count int) map[string]any {
	all := make(map[string]any, count)
	for i := range count {
		all[fmt.Sprintf("%05x", i)] = ""
	}

	return all
}

// What the policy costs in writes of others does not grow with the object, since the API server evaluates every
// condition of every policy.
func TestWritesOfOthersCostNothing(t *testing.T) {
	policy := compilePolicy(t, rebalancerPolicy(t))
	cost := func(changes ...func(map[string]any)) int64 {
		attributes := update(website(append(changes, set("dark", "spec", "theme"))...), website(changes...))
		attributes.Attributes = admission.NewAttributesRecord(attributes.GetObject(), attributes.GetOldObject(),
			attributes.GetKind(), "n", "a",
			attributes.GetResource(), "", admission.Update, &metav1.PatchOptions{}, false, &user.DefaultInfo{Name: "alice"})

		matches, _, cost := policy.evaluate(t, attributes)
		require.False(t, matches)

		return cost
	}

	least := cost()
	require.Less(t, least, int64(10))
	require.Equal(t, least, cost(set(numbered(3500), "metadata", "labels"),
		set(numbered(3500), "metadata", "annotations")))
}

// Each expression may cost a certain amount, however large the object is. What it takes grows with the square of what
// it loops over.
func TestLargeObjectsCostLittle(t *testing.T) {
	policy := compilePolicy(t, rebalancerPolicy(t))

	for name, c := range map[string]struct {
		labels, annotations int
		path                []string
	}{
		"labels":      {5000, 35_000, []string{"metadata", "labels", shardLabel}},
		"annotations": {0, 5000, []string{"metadata", "annotations", handover}},
	} {
		large := []func(map[string]any){set(numbered(c.labels), "metadata", "labels"),
			set(numbered(c.annotations), "metadata", "annotations")}
		matches, _, cost := policy.evaluate(t, update(website(append(large, set("{}", c.path...))...), website(large...)))

		require.False(t, matches, name)
		require.Less(t, cost, int64(celconfig.PerCallLimit/6), name)
	}
}

// managed returns managed fields of another writer with as many fields as given, and an entry of the rebalancer with
// these fields.
func managed(count int, metadata map[string]any) []any {
	data := map[string]any{}
	for i := range count {
		data[fmt.Sprintf("f:%040d", i)] = map[string]any{}
	}

	return []any{
		map[string]any{"manager": "kubectl", "operation": "Update", "apiVersion": "example.com/v1",
			"fieldsV1": map[string]any{"f:spec": data}},
		map[string]any{"manager": "rebalancer-r", "operation": "Apply", "apiVersion": "example.com/v1",
			"fieldsV1": map[string]any{"f:metadata": metadata}},
	}
}

// An object may be large in every way if admission changes it in the same write.
func TestLargeObjectsMoveThatAdmissionChanges(t *testing.T) {
	policy := compilePolicy(t, rebalancerPolicy(t))
	fields := map[string]any{
		"f:labels":      map[string]any{"f:" + shardLabel: map[string]any{}},
		"f:annotations": map[string]any{"f:" + handover: map[string]any{}},
	}

	for name, large := range map[string][]func(map[string]any){
		"small":          {},
		"managed fields": {set(managed(4500, fields), "metadata", "managedFields")},
		"labels":         {set(numbered(3000), "metadata", "labels")},
		"annotations":    {set(numbered(3000), "metadata", "annotations")},
		"map":            {set(numbered(35_000), "spec", "map")},
		"text":           {set(strings.Repeat("x", 900_000), "spec", "text")},
	} {
		change := append(append([]func(map[string]any){}, large...), set("shard-1", "metadata", "labels", shardLabel),
			set("{}", "metadata", "annotations", handover))
		if name != "managed fields" {
			change = append(change, set(managed(1, fields), "metadata", "managedFields"))
		}

		mutated := append(append([]func(map[string]any){}, change...), set("v2", "spec", "defaulted"),
			set("rebalancer", "metadata", "annotations", "stamp"))

		old := website(append(large, set(managed(1, map[string]any{}), "metadata", "managedFields"))...)
		matches, refused, cost := policy.evaluate(t, update(website(mutated...), old))
		require.True(t, matches, name)
		require.Empty(t, refused, name)
		require.Less(t, cost, int64(celconfig.RuntimeCELCostBudget/2), name)
	}
}
