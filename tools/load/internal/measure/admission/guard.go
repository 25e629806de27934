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
)

// guard compares writes of a user to large objects with all policies of deploy/base/guard, and in a namespace without them.
func guard(ctx context.Context, b *run.Bench) error {
	guarded, err := newUser(ctx, b, "load-guarded")
	if err != nil {
		return err
	}

	bare, err := newUser(ctx, b, "load-unguarded")
	if err != nil {
		return err
	}

	if err := unguard(ctx, b, bare.batch.Namespace); err != nil {
		return err
	}

	values, floors, err := run.Rounds(ctx, b, guarded.cost, bare.cost)
	if err != nil {
		return err
	}

	b.Report(result.Row{
		ID: guardRow, Title: "API server CPU per write of a user to an object of 200 KiB", Unit: "ms", Values: values,
		FloorTitle: "where no admission policy of ours is bound", Floor: floors, Target: result.Max(1.02),
		Notes: []string{fmt.Sprintf("A JSON merge patch of one of %d annotations of a ConfigMap.", annotations)},
	})

	return nil
}

// annotations is the number of annotations of a large object.
const annotations = 3500

// newUser creates large objects in a namespace of its own.
func newUser(ctx context.Context, b *run.Bench, name string) (*writer, error) {
	namespace, err := b.System.Namespace(ctx, name)
	if err != nil {
		return nil, err
	}

	w := &writer{bench: b, objects: b.Objects, batch: objects.Batch{
		Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "large", Count: run.Pick(b, 40, 200),
	}}
	if err := b.Objects.Create(ctx, w.batch); err != nil {
		return nil, err
	}

	b.Cleanup(func(ctx context.Context) error { return b.Objects.Delete(ctx, w.batch) })

	all := make(map[string]string, annotations)
	for i := range annotations {
		all[fmt.Sprintf("example.com/%d", i)] = strings.Repeat("x", 40)
	}

	return w, b.Objects.Patch(ctx, w.batch, map[string]any{"metadata": map[string]any{"annotations": all}})
}

// unguard keeps all our policies off a namespace, until the measurement ends.
func unguard(ctx context.Context, b *run.Bench, namespace string) error {
	bindings := &admissionregistrationv1.ValidatingAdmissionPolicyBindingList{}
	if err := b.System.Client.List(ctx, bindings, client.MatchingLabels{"app.kubernetes.io/part-of": "clusterring"}); err != nil {
		return fmt.Errorf("list the bindings of our policies: %w", err)
	}

	elsewhere := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"matchResources":{"namespaceSelector":{"matchExpressions":[`+
		`{"key":"`+corev1.LabelMetadataName+`","operator":"NotIn","values":["`+namespace+`"]}]}}}}`))
	everywhere := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"matchResources":null}}`))

	for i := range bindings.Items {
		bound := &bindings.Items[i]
		b.Cleanup(func(ctx context.Context) error { return b.System.Client.Patch(ctx, bound, everywhere) })

		if err := b.System.Client.Patch(ctx, bound, elsewhere); err != nil {
			return fmt.Errorf("bind policy %s elsewhere: %w", bound.Name, err)
		}
	}

	return nil
}
