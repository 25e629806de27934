package admission

import (
	"context"
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

// annotations is the number of annotations of a large object.
const annotations = 3500

// guard compares writes of a user to large objects with all policies of deploy/base/guard, and in a namespace without
// them.
func guard(ctx context.Context, b *run.Bench) error {
	guarded, _, err := large(ctx, b, "load-guarded")
	if err != nil {
		return err
	}

	bare, namespace, err := large(ctx, b, "load-unguarded")
	if err != nil {
		return err
	}

	if err := unguard(ctx, b, namespace); err != nil {
		return err
	}

	return run.Compare(ctx, b, run.Sides[float64]{Value: guarded, Floor: bare}, run.Figure[float64]{Row: result.Row{
		ID: guardRow, Title: "API server CPU per write of a user to an object of 200 KiB", Unit: "ms",
		FloorTitle: "where no admission policy of ours is bound", Target: result.Max(1.02),
		Notes: []string{fmt.Sprintf("A JSON merge patch of one of %d annotations of a ConfigMap.", annotations)},
	}, Of: run.Itself})
}

// large creates large objects in a new namespace, and returns what writes all of them: it measures the CPU time of the
// API server per write, in milliseconds.
func large(ctx context.Context, b *run.Bench, name string) (cost run.Trial[float64], namespace string, err error) {
	if namespace, err = b.Local.Namespace(ctx, name); err != nil {
		return nil, "", err
	}

	batch := objects.Batch{
		Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "written", Count: run.Pick(b, 40, 200),
	}
	b.RemoveAll(namespace, batch.Kind)

	if err := b.Objects.Create(ctx, batch); err != nil {
		return nil, "", err
	}

	annotate := func(ctx context.Context, all map[string]string) error {
		return b.Objects.Patch(ctx, batch, map[string]any{"metadata": map[string]any{"annotations": all}})
	}
	all := map[string]string{}

	for i := range annotations {
		all[fmt.Sprintf("example.com/%d", i)] = strings.Repeat("x", 40)
	}

	return func(ctx context.Context) (float64, error) {
		ms, err := b.Local.Usage().CPU(target.APIServer, func() error {
			return annotate(ctx, map[string]string{"example.com/turn": b.Clock.Now().String()})
		})

		return ms / float64(batch.Count), err
	}, namespace, annotate(ctx, all)
}

// unguard keeps all our policies off a namespace, until the measurement ends.
func unguard(ctx context.Context, b *run.Bench, namespace string) error {
	bindings := &admissionregistrationv1.ValidatingAdmissionPolicyBindingList{}
	if err := b.Local.Client.List(ctx, bindings,
		client.MatchingLabels{"app.kubernetes.io/part-of": "clusterring"}); err != nil {
		return fmt.Errorf("list the bindings of our policies: %w", err)
	}

	elsewhere := client.RawPatch(types.MergePatchType,
		[]byte(`{"spec":{"matchResources":{"namespaceSelector":{"matchExpressions":[`+
			`{"key":"`+corev1.LabelMetadataName+`","operator":"NotIn","values":["`+namespace+`"]}]}}}}`))
	everywhere := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"matchResources":null}}`))

	for i := range bindings.Items {
		bound := &bindings.Items[i]
		b.Cleanup(func(ctx context.Context) error { return b.Local.Client.Patch(ctx, bound, everywhere) })

		if err := b.Local.Client.Patch(ctx, bound, elsewhere); err != nil {
			return fmt.Errorf("bind policy %s elsewhere: %w", bound.Name, err)
		}
	}

	return nil
}
