package admission

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

// foreign counts calls for objects of a controlled resource that no object of the ring controls.
func foreign(ctx context.Context, b *run.Bench) (rows []result.Row, series []result.Series, err error) {
	s := b.System

	fleet, err := b.Fleet(ctx, shards.Ring{
		Name: "load-foreign", Main: objects.Deployments, Controlled: []schema.GroupResource{objects.ConfigMaps.GroupResource()},
	})
	if err != nil {
		return nil, nil, err
	}

	namespace := fleet.Ring.Namespace
	defer func() { err = errors.Join(err, fleet.Close(context.WithoutCancel(ctx))) }()

	if _, err := fleet.Join(ctx, 1); err != nil {
		return nil, nil, err
	}

	if err := fleet.Declare(ctx); err != nil {
		return nil, nil, err
	}
	// One that the ring controls is asked about: the webhook is in place.
	owner := &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "owner", UID: "0b5f4b1e-8a1b-4f83-9a55-4a2f6f2f1f0e", Controller: new(true)}

	before, err := s.Metric(ctx, target.Assigner, callsTotal, ofForeign)
	if err != nil {
		return nil, nil, err
	}

	err = target.Until(ctx, "the API server calls the webhook for controlled objects", func(ctx context.Context) (bool, error) {
		if _, err := b.Objects.DryRun(ctx, objects.Batch{Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "owned", Owner: owner}, 0); err != nil {
			return false, err
		}

		now, err := s.Metric(ctx, target.Assigner, callsTotal, ofForeign)

		return now > before, err
	})
	if err != nil {
		return nil, nil, err
	}

	values, _, err := run.Rounds(ctx, b, func(ctx context.Context) (float64, error) { return foreignWrites(ctx, b, namespace) }, nil)
	if err != nil {
		return nil, nil, err
	}

	none := make([]float64, len(values))

	return []result.Row{{
		ID: foreignRow, Title: "webhook calls for unrelated objects of a controlled resource", Unit: "calls/write", Values: values,
		FloorTitle: "no call", Floor: none, Judge: result.JudgeValue, Target: result.Target{Bound: result.AtMost, Unit: "calls/write"}, PriorArt: priorArt[foreignRow],
	}}, nil, nil
}

const (
	callsTotal = "clusterring_assigner_admission_requests_total"
	ofForeign  = `ring="load-foreign"`
)

// foreignWrites creates and changes ConfigMaps without an owner, and returns the calls of the webhook per write.
func foreignWrites(ctx context.Context, b *run.Bench, namespace string) (float64, error) {
	const writesEach = 2

	batch := objects.Batch{Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "foreign", Count: run.Pick(b, 100, 1000), Concurrency: run.Concurrency}

	before, err := b.System.Metric(ctx, target.Assigner, callsTotal, ofForeign)
	if err != nil {
		return 0, err
	}

	if err := b.Objects.Create(ctx, batch); err != nil {
		return 0, err
	}

	if err := b.Objects.Patch(ctx, batch, func(int) []byte { return []byte(`{"data":{"changed":"once"}}`) }); err != nil {
		return 0, err
	}

	after, err := b.System.Metric(ctx, target.Assigner, callsTotal, ofForeign)
	if err != nil {
		return 0, err
	}

	return (after - before) / float64(writesEach*batch.Count), b.Objects.Delete(ctx, batch)
}
