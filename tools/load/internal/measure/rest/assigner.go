package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

const (
	assignerRow  = "assigner-memory"
	writers      = 32
	leaseSeconds = 24 * 3600
)

func assignerMemory() run.Measurement {
	return run.Measurement{
		Name: "assigner-memory", IDs: []string{assignerRow},
		Budget: map[run.Scale]time.Duration{run.Small: 20 * time.Second, run.Full: 120 * time.Second}, Run: rememberedRings,
	}
}

// crowd is many rings with many shards each, and no objects.
type crowd struct {
	bench          *run.Bench
	namespace      string
	rings, members int
}

// rememberedRings measures the memory of an assigner that has started with all the rings there, once it knows all their shards.
func rememberedRings(ctx context.Context, b *run.Bench) (rows []result.Row, series []result.Series, err error) {
	c := &crowd{bench: b, rings: run.Pick(b, 5, 50), members: run.Pick(b, 100, 500)}
	if c.namespace, err = b.System.Namespace(ctx, "load-crowd"); err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, c.remove(context.WithoutCancel(ctx))) }()
	// The Leases first: a ring of many shards is known at once then.
	if err := c.leases(ctx); err != nil {
		return nil, nil, err
	}
	for i := range c.rings {
		if err := c.ring(i).Declare(ctx, b.System.Client); err != nil {
			return nil, nil, err
		}
	}
	var values []float64
	for range run.Pick(b, 1, 3) {
		if err := b.Local.Restart(ctx, target.Assigner); err != nil {
			return nil, nil, err
		}
		// What it took to read the Leases is given back within a moment, if ever.
		select {
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-b.Clock.After(run.Pick(b, time.Second, 5*time.Second)):
		}
		used, err := b.System.Usage().Read(ctx)
		if err != nil {
			return nil, nil, fmt.Errorf("read what the assigner uses: %w", err)
		}
		u := used[target.Assigner]
		b.Progress("%d shards × %d rings: %.1f MiB, at the peak %.1f MiB", c.members, c.rings, float64(u.Memory)/mebibyte, float64(u.PeakMemory)/mebibyte)
		values = append(values, float64(u.PeakMemory)/mebibyte)
	}
	return []result.Row{{
		ID: assignerRow, Title: fmt.Sprintf("assigner memory, %d shards × %d rings", c.members, c.rings), Unit: "MiB", Values: values,
		Judge: result.JudgeValue, Target: result.Target{Bound: result.AtMost, Value: 64, Unit: "MiB"},
		Notes: []string{"The highest since it was started with all rings and Leases there."},
	}}, nil, nil
}

func (c *crowd) ring(i int) shards.Ring {
	return shards.Ring{Name: "load-crowd-" + strconv.Itoa(i), Namespace: c.namespace, Main: objects.ConfigMaps.GroupResource()}
}

// leases makes all Leases. They are labelled as the lease monitor would do it, which would take it minutes.
func (c *crowd) leases(ctx context.Context) error {
	path := objects.Leases.Path(c.namespace, "")
	return objects.Each(ctx, c.rings*c.members, writers, func(ctx context.Context, i int) error {
		body, err := json.Marshal(c.lease(i))
		if err != nil {
			return fmt.Errorf("encode a Lease: %w", err)
		}
		return c.bench.Objects.Do(ctx, objects.Request{Method: http.MethodPost, Path: path, Body: body}, nil)
	})
}

func (c *crowd) lease(i int) *coordinationv1.Lease {
	ring, now := c.ring(i/c.members).Name, metav1.NewMicroTime(c.bench.Clock.Now())
	name := ring + "-" + strconv.Itoa(i%c.members)
	return &coordinationv1.Lease{
		TypeMeta: metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.namespace, Labels: map[string]string{
			v1alpha1.LabelClusterRing: ring, v1alpha1.LabelState: "ready",
		}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &name, LeaseDurationSeconds: ptr.To[int32](leaseSeconds), AcquireTime: &now, RenewTime: &now, LeaseTransitions: ptr.To[int32](0),
		},
	}
}

func (c *crowd) remove(ctx context.Context) error {
	var errs []error
	for i := range c.rings {
		ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: c.ring(i).Name}}
		errs = append(errs, client.IgnoreNotFound(c.bench.System.Client.Delete(ctx, ring)))
	}
	for i := range c.rings {
		errs = append(errs, c.ring(i).Remove(ctx, c.bench.System.Client))
	}
	return errors.Join(append(errs, c.bench.Objects.DeleteAll(ctx, objects.Selection{Kind: objects.Leases, Namespace: c.namespace, Labels: v1alpha1.LabelClusterRing}, writers))...)
}
