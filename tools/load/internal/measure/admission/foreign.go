package admission

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

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
		Name: "load-foreign", Main: objects.Deployments, Controlled: []schema.GroupResource{objects.ConfigMaps.GroupResource()},
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
		Owner: &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "owner", UID: "0b5f4b1e-8a1b-4f83-9a55-4a2f6f2f1f0e", Controller: new(true)},
	}

	return fleet.Ring.Namespace, target.Until(ctx, "the API server calls the webhook for controlled objects", func(ctx context.Context) (bool, error) {
		if _, err := b.Objects.DryRun(ctx, owned); err != nil {
			return false, err
		}

		now, err := calls(ctx, b)

		return now > before, err
	})
}

// calls returns how often the webhook of the ring has been called.
func calls(ctx context.Context, b *run.Bench) (float64, error) {
	return b.System.Metric(ctx, target.Assigner, "clusterring_assigner_admission_requests_total", `ring="load-foreign"`)
}

// foreignWrites creates and changes ConfigMaps without an owner, and returns the calls of the webhook per write.
func foreignWrites(ctx context.Context, b *run.Bench, namespace string) (float64, error) {
	const writesEach = 2

	batch := objects.Batch{Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "foreign", Count: run.Pick(b, 100, 1000)}

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
