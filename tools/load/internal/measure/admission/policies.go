package admission

import (
	"context"
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

// guard compares writes of a user to large objects with all policies of deploy/base/guard, and in a namespace without
// them.
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
	namespace, err := b.Local.Namespace(ctx, name)
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

// perFenced is the CPU time of the API server that a fence may add to a write, in milliseconds.
const perFenced = 0.1

// fence compares writes of a shard to its own objects in a ring with a fence, and in one without.
func fence(ctx context.Context, b *run.Bench) error {
	const unfenced = "load-unfenced"

	writers := map[string]*writer{}

	for _, name := range []string{target.FencedRing, unfenced} {
		w, err := newWriter(ctx, b, name, name == target.FencedRing)
		if err != nil {
			return err
		}

		writers[name] = w
	}

	values, floors, err := run.Rounds(ctx, b, writers[target.FencedRing].cost, writers[unfenced].cost)
	if err != nil {
		return err
	}

	added := make([]float64, len(values))
	for i := range values {
		added[i] = values[i] - floors[i]
	}

	b.Report(result.Row{
		ID: fenceRow, Title: "API server CPU that a fence adds to a write of a shard", Unit: "ms", Values: added,
		FloorTitle: "a write without a fence", Floor: floors, Judge: result.JudgeValue, Target: result.Max(perFenced),
		Notes: []string{"A JSON merge patch of an annotation of a ConfigMap by the shard on its label, with a token that " +
			"is bound to the Pod of the shard."},
	})

	return nil
}

// writer is a shard that writes its objects.
type writer struct {
	bench   *run.Bench
	objects *objects.Client
	batch   objects.Batch
}

// newWriter creates a ring with one shard and its objects, and waits until its fence, if it has one, refuses another
// Pod.
func newWriter(ctx context.Context, b *run.Bench, name string, fenced bool) (*writer, error) {
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

	w := &writer{bench: b, batch: objects.Batch{
		Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "fenced", Count: run.Pick(b, 300, 2000),
	}}
	if w.objects, err = clientOf(ctx, b, namespace, fleet.Held()[0]); err != nil {
		return nil, err
	}

	if err := b.Objects.Create(ctx, w.batch); err != nil {
		return nil, err
	}

	b.Cleanup(func(ctx context.Context) error { return b.Objects.Delete(ctx, w.batch) })

	if err := fleet.AwaitConverged(ctx, ""); err != nil || !fenced {
		return w, err
	}

	stranger, err := clientOf(ctx, b, namespace, "stranger")
	if err != nil {
		return nil, err
	}

	one := w.batch
	one.Count = 1

	err = target.Until(ctx, "the fence refuses a write of another Pod", func(ctx context.Context) (bool, error) {
		err := stranger.Patch(ctx, one, map[string]any{"data": map[string]string{"by": "stranger"}})
		if err != nil && strings.Contains(err.Error(), "fence of ring "+name) {
			return true, nil
		}

		return false, err
	})

	return w, err
}

// clientOf returns a client with the token of a Pod.
func clientOf(ctx context.Context, b *run.Bench, namespace, pod string) (*objects.Client, error) {
	const connections = 2

	config, err := b.Local.ShardConfig(ctx, namespace, pod)
	if err != nil {
		return nil, err
	}

	c, err := objects.New(config, connections)
	if err != nil {
		return nil, err
	}

	b.Cleanup(func(context.Context) error {
		c.Close()
		return nil
	})

	return c, nil
}

// cost writes all objects, and returns the CPU time of the API server per write, in milliseconds.
func (w *writer) cost(ctx context.Context) (float64, error) {
	turn := map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{"example.com/turn": w.bench.Clock.Now().String()}},
	}
	ms, err := w.bench.Local.Usage().CPU(target.APIServer, func() error { return w.objects.Patch(ctx, w.batch, turn) })

	return ms / float64(w.batch.Count), err
}

// foreign counts calls for objects of a controlled resource that no object of the ring controls.
func foreign() run.Part {
	return run.Compare([]run.Figure[float64]{{Row: result.Row{
		ID: foreignRow, Title: "webhook calls for unrelated objects of a controlled resource", Unit: "calls/write",
		FloorTitle: "no call", Judge: result.JudgeValue, Target: result.Max(0), PriorArt: priorArt[foreignRow],
	}, Of: run.Itself}}, func(ctx context.Context, b *run.Bench) (write, none run.Trial[float64], err error) {
		namespace, err := foreignRing(ctx, b)

		return func(ctx context.Context) (float64, error) { return foreignWrites(ctx, b, namespace) },
			func(context.Context) (float64, error) { return 0, nil }, err
	})
}

// foreignRing creates a ring, and returns its namespace once its webhook is in place.
func foreignRing(ctx context.Context, b *run.Bench) (namespace string, err error) {
	fleet, err := b.Fleet(ctx, shards.Ring{
		Name: "load-foreign", Main: objects.Deployments,
		Controlled: []schema.GroupResource{objects.ConfigMaps.GroupResource()},
	}, 1)
	if err != nil {
		return "", err
	}

	before, err := calls(ctx, b)
	if err != nil {
		return "", err
	}
	// A call for an object with an owner shows that the webhook is in place.
	owned := objects.Batch{
		Kind: objects.ConfigMaps, Namespace: fleet.Ring.Namespace, Prefix: "owned",
		Owner: &metav1.OwnerReference{
			APIVersion: "apps/v1", Kind: "Deployment", Name: "owner", UID: "0b5f4b1e-8a1b-4f83-9a55-4a2f6f2f1f0e",
			Controller: new(true),
		},
	}

	return fleet.Ring.Namespace, target.Until(ctx, "the API server calls the webhook for controlled objects",
		func(ctx context.Context) (bool, error) {
			if _, err := b.Objects.DryRun(ctx, owned); err != nil {
				return false, err
			}

			now, err := calls(ctx, b)

			return now > before, err
		})
}

// calls returns how often the webhook of the ring has been called.
func calls(ctx context.Context, b *run.Bench) (float64, error) {
	return b.Local.Metric(ctx, target.Assigner, "clusterring_assigner_admission_requests_total", `ring="load-foreign"`)
}

// foreignWrites creates and changes ConfigMaps without an owner, and returns the calls of the webhook per write.
func foreignWrites(ctx context.Context, b *run.Bench, namespace string) (float64, error) {
	const writesEach = 2

	batch := objects.Batch{
		Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "foreign", Count: run.Pick(b, 100, 1000),
	}

	before, err := calls(ctx, b)
	if err != nil {
		return 0, err
	}

	if err := b.Objects.Create(ctx, batch); err != nil {
		return 0, err
	}

	if err := b.Objects.Patch(ctx, batch, map[string]any{"data": map[string]string{"changed": "once"}}); err != nil {
		return 0, err
	}

	after, err := calls(ctx, b)
	if err != nil {
		return 0, err
	}

	return (after - before) / float64(writesEach*batch.Count), b.Objects.Delete(ctx, batch)
}
