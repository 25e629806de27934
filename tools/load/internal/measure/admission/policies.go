package admission

import (
	"context"
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

// annotations is the number of annotations of a large object.
const annotations = 3500

// guard compares writes of a user to large objects with all policies of deploy/base/guard, and in a namespace without
// them.
func guard(ctx context.Context, b *run.Bench) error {
	large := map[string]string{}
	for i := range annotations {
		large[fmt.Sprintf("example.com/%d", i)] = strings.Repeat("x", 40)
	}

	var users [2]*writer

	for i, name := range []string{"load-guarded", "load-unguarded"} {
		namespace, err := b.Local.Namespace(ctx, name)
		if err != nil {
			return err
		}

		if users[i], err = newWriter(ctx, b, namespace, run.Pick(b, 40, 200)); err != nil {
			return err
		}

		if err := users[i].annotate(ctx, large); err != nil {
			return err
		}
	}

	if err := unguard(ctx, b, users[1].batch.Namespace); err != nil {
		return err
	}

	sides := run.Sides[float64]{Value: users[0].cost, Floor: users[1].cost}

	return run.Compare(ctx, b, sides, run.Figure[float64]{Row: result.Row{
		ID: guardRow, Title: "API server CPU per write of a user to an object of 200 KiB", Unit: "ms",
		FloorTitle: "where no admission policy of ours is bound", Target: result.Max(1.02),
		Notes: []string{fmt.Sprintf("A JSON merge patch of one of %d annotations of a ConfigMap.", annotations)},
	}, Of: run.Itself})
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

// fence compares writes of a shard to its own objects in a ring with a fence, and in one without.
func fence(ctx context.Context, b *run.Bench) error {
	fenced, err := newShard(ctx, b, target.FencedRing, true)
	if err != nil {
		return err
	}

	bare, err := newShard(ctx, b, "load-unfenced", false)
	if err != nil {
		return err
	}

	sides := run.Sides[float64]{Value: fenced.cost, Floor: bare.cost}

	return run.Compare(ctx, b, sides, run.Figure[float64]{Row: result.Row{
		ID: fenceRow, Title: "API server CPU per write of a shard to an object that a fence protects", Unit: "ms",
		FloorTitle: "without a fence",
		Notes: []string{"A JSON merge patch of an annotation of a ConfigMap by the shard on its label, with a token that " +
			"is bound to the Pod of the shard."},
	}, Of: run.Itself})
}

// newShard creates a ring with one shard and its objects, and waits until its fence, if it has one, refuses another
// Pod.
func newShard(ctx context.Context, b *run.Bench, name string, fenced bool) (*writer, error) {
	namespace, err := b.Local.Namespace(ctx, name)
	if err != nil {
		return nil, err
	}

	ring := shards.Ring{Name: name, Namespace: namespace, Main: objects.ConfigMaps.GroupResource()}
	if fenced {
		ring.Fence = &v1alpha1.Fence{Mode: v1alpha1.FenceEnforce, ServiceAccounts: []v1alpha1.ServiceAccountReference{
			{Namespace: namespace, Name: target.ShardAccount},
		}}
	}

	fleet, err := b.Fleet(ctx, ring, 1)
	if err != nil {
		return nil, err
	}

	w, err := newWriter(ctx, b, namespace, run.Pick(b, 300, 2000))
	if err != nil {
		return nil, err
	}

	if err := fleet.AwaitConverged(ctx, ""); err != nil {
		return nil, err
	}

	if fenced {
		if err := w.become(ctx, "stranger"); err != nil {
			return nil, err
		}

		err := objects.Until(ctx, "the fence refuses a write of another Pod", func(ctx context.Context) (bool, error) {
			err := w.annotate(ctx, map[string]string{"example.com/by": "stranger"})
			if err != nil && strings.Contains(err.Error(), "fence of ring "+name) {
				return true, nil
			}

			return false, err
		})
		if err != nil {
			return nil, err
		}
	}

	err = w.become(ctx, fleet.Held()[0])

	return w, err
}

// writer writes objects in a namespace.
type writer struct {
	bench   *run.Bench
	objects *objects.Client
	batch   objects.Batch
}

// newWriter creates objects in a namespace, and returns a writer with all rights.
func newWriter(ctx context.Context, b *run.Bench, namespace string, count int) (*writer, error) {
	w := &writer{bench: b, objects: b.Objects, batch: objects.Batch{
		Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "written", Count: count,
	}}
	b.Cleanup(func(ctx context.Context) error { return b.Objects.Delete(ctx, w.batch) })

	return w, b.Objects.Create(ctx, w.batch)
}

// become gives the writer the token of a Pod.
func (w *writer) become(ctx context.Context, pod string) error {
	config, err := w.bench.Local.ShardConfig(ctx, w.batch.Namespace, pod)
	if err != nil {
		return err
	}

	c, err := objects.New(config)
	if err != nil {
		return err
	}
	w.bench.Cleanup(func(context.Context) error {
		c.Close()
		return nil
	})
	w.objects = c

	return nil
}

// annotate writes annotations of all objects.
func (w *writer) annotate(ctx context.Context, all map[string]string) error {
	return w.objects.Patch(ctx, w.batch, map[string]any{"metadata": map[string]any{"annotations": all}})
}

// cost writes all objects, and returns the CPU time of the API server per write, in milliseconds.
func (w *writer) cost(ctx context.Context) (float64, error) {
	ms, err := w.bench.Local.Usage().CPU(target.APIServer, func() error {
		return w.annotate(ctx, map[string]string{"example.com/turn": w.bench.Clock.Now().String()})
	})

	return ms / float64(w.batch.Count), err
}
