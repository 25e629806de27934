package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

// written is what a write of an object costs: calls of the webhook, and CPU time of the rebalancer in milliseconds.
type written struct{ calls, rebalancer float64 }

// foreign measures writes of objects of a controlled resource that no object of the ring controls.
func foreign(ctx context.Context, b *run.Bench) error {
	fleet, err := b.Fleet(ctx, shards.Ring{
		Name: "load-foreign", Main: schema.GroupResource{Group: "apps", Resource: "deployments"},
		Controlled: []schema.GroupResource{objects.ConfigMaps.GroupResource()},
	}, 1)
	if err != nil {
		return err
	}

	if err := errors.Join(controlled(ctx, b, fleet.Ring.Namespace), fleet.AwaitConverged(ctx, "")); err != nil {
		return err
	}

	batch := objects.Batch{
		Kind: objects.ConfigMaps, Namespace: fleet.Ring.Namespace, Prefix: "foreign", Count: run.Pick(b, 300, 2000),
	}

	return run.Compare(ctx, b, run.Sides[written]{
		Value: func(ctx context.Context) (written, error) { return writes(ctx, b, batch) },
		Floor: func(context.Context) (written, error) { return written{}, nil },
	},
		run.Figure[written]{Row: result.Row{
			ID: foreignRow, Title: "webhook calls for unrelated objects of a controlled resource", Unit: "calls/write",
			FloorTitle: "no call", Judge: result.JudgeValue, Target: result.Max(0), PriorArt: "1 per write",
		}, Of: func(w written) float64 { return w.calls }},
		run.Figure[written]{Row: result.Row{
			ID: coveredRow, Title: "rebalancer CPU per write of a ConfigMap in a namespace that the ring covers, no object of " +
				"which controls the ConfigMap", Unit: "ms", Target: result.Max(0.03),
			Notes: []string{"The ring shards Deployments, and the ConfigMaps that Deployments control."},
		}, Of: func(w written) float64 { return w.rebalancer }})
}

// controlled waits until the API server calls the ring's webhook for an object with an owner.
func controlled(ctx context.Context, b *run.Bench, namespace string) error {
	before, err := calls(ctx, b)
	if err != nil {
		return err
	}

	owned := objects.Batch{
		Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "owned",
		Owner: &metav1.OwnerReference{
			APIVersion: "apps/v1", Kind: "Deployment", Name: "owner", UID: "0b5f4b1e-8a1b-4f83-9a55-4a2f6f2f1f0e",
			Controller: new(true),
		},
	}

	return objects.Until(ctx, "the API server calls the webhook for controlled objects",
		func(ctx context.Context) (bool, error) {
			if _, err := b.Objects.Post(ctx, owned.Ref(0), owned.Object(0), metav1.DryRunAll); err != nil {
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

// writes creates and changes the objects of a batch, and returns what a write costs. Then it deletes them.
func writes(ctx context.Context, b *run.Bench, batch objects.Batch) (w written, err error) {
	// quiet is how long the rebalancer may take to see what was written.
	const writesEach, quiet = 2, 500 * time.Millisecond

	before, err := calls(ctx, b)
	if err != nil {
		return w, err
	}

	ms, err := b.Local.Usage().CPU(target.Rebalancer, func() error {
		if err := b.Objects.Create(ctx, batch); err != nil {
			return err
		}

		if err := b.Objects.Patch(ctx, batch, map[string]any{"data": map[string]string{"changed": "once"}}); err != nil {
			return err
		}

		return b.Pause(ctx, quiet)
	})
	if err != nil {
		return w, fmt.Errorf("write: %w", err)
	}

	after, err := calls(ctx, b)
	n := float64(writesEach * batch.Count)
	w = written{calls: (after - before) / n, rebalancer: ms / n}

	return w, errors.Join(err, b.Objects.Delete(ctx, batch), b.Pause(ctx, quiet))
}
