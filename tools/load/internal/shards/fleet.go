// Package shards simulates the shards of a ring, up to thousands of them: it holds their Leases, lets them join, leave,
// and die, and acknowledges their drains.
package shards

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/testkit/kubelettest"
)

const (
	// longest is longer than any measurement, so that no shard has to renew its Lease.
	longest = 24 * time.Hour
	// taker is the holder of the Lease of a dead shard.
	taker = "shardlease-controller"
)

// Fleet is a ring and its shards. Create it with [NewFleet]; it is for one goroutine.
type Fleet struct {
	Ring Ring

	objects *objects.Client
	client  client.Client
	clock   clock.Clock

	made int
	held []string
}

// NewFleet returns a fleet without shards, and sends no request. The objects client writes the Leases, with timestamps
// of the clock; the other one reads the ring.
func NewFleet(ring Ring, o *objects.Client, c client.Client, clk clock.Clock) *Fleet {
	return &Fleet{Ring: ring, objects: o, client: c, clock: clk}
}

// Join adds n shards and returns their names. Names are never reused.
func (f *Fleet) Join(ctx context.Context, n int) ([]string, error) {
	names := make([]string, n)
	for i := range names {
		names[i] = f.Ring.Name + "-" + strconv.Itoa(f.made+i)
	}

	f.made += n
	f.held = append(f.held, names...)

	return names, f.each(ctx, names, func(ctx context.Context, r objects.Ref) error {
		_, err := f.objects.Post(ctx, r, f.lease(r.Name))
		return err
	})
}

// Held returns the names of the shards that hold their Leases, the oldest first.
func (f *Fleet) Held() []string { return slices.Clone(f.held) }

// Lose takes the Leases of shards, as the lease monitor does if a shard stops renewing.
func (f *Fleet) Lose(ctx context.Context, names ...string) error {
	f.forget(names...)

	return f.each(ctx, names, func(ctx context.Context, r objects.Ref) error {
		return f.objects.MergePatch(ctx, r, map[string]any{"spec": map[string]any{
			"holderIdentity": taker, "leaseDurationSeconds": int(2 * longest / time.Second), "acquireTime": f.now(),
			"renewTime": f.now(), "leaseTransitions": 1,
		}})
	})
}

// Bury deletes the Leases of shards that were lost, as the lease monitor does in time.
func (f *Fleet) Bury(ctx context.Context, lost []string) error {
	return f.each(ctx, lost, f.objects.Remove)
}

// Mark writes a label to the Leases of shards, which means nothing.
func (f *Fleet) Mark(ctx context.Context, names []string, value string) error {
	return f.each(ctx, names, func(ctx context.Context, r objects.Ref) error {
		return f.objects.MergePatch(ctx, r,
			map[string]any{"metadata": map[string]any{"labels": map[string]any{objects.TurnLabel: value}}})
	})
}

// each calls do for the Lease of each of the shards.
func (f *Fleet) each(ctx context.Context, names []string, do func(context.Context, objects.Ref) error) error {
	return objects.Each(ctx, len(names), objects.Concurrency, func(ctx context.Context, i int) error {
		return do(ctx, f.ref(objects.Leases, names[i]))
	})
}

// End reports that the Pod of a shard has ended, as the kubelet does. The ring must have Pods.
func (f *Fleet) End(ctx context.Context, name string) error {
	f.forget(name)

	status := f.ref(objects.Pods, name)
	status.Subresource = "status"

	return f.objects.MergePatch(ctx, status, map[string]any{"status": kubelettest.Ended()})
}

// Close removes the ring and its Leases, in this order: if the Leases went first, the rebalancer would see shards
// vanish.
func (f *Fleet) Close(ctx context.Context) error {
	err := errors.Join(f.removeRing(ctx), f.objects.DeleteAll(ctx, objects.Selection{
		Kind: objects.Leases, Namespace: f.Ring.Namespace, Labels: contract.LabelClusterRing + "=" + f.Ring.Name,
	}))
	if f.Ring.Pods {
		err = errors.Join(err, f.objects.DeleteAll(ctx, objects.Selection{Kind: objects.Pods, Namespace: f.Ring.Namespace}))
	}

	return err
}

func (f *Fleet) ref(kind objects.Kind, name string) objects.Ref {
	return objects.Ref{Kind: kind, Namespace: f.Ring.Namespace, Name: name}
}

func (f *Fleet) forget(names ...string) {
	f.held = slices.DeleteFunc(f.held, func(name string) bool { return slices.Contains(names, name) })
}

func (f *Fleet) now() metav1.MicroTime { return metav1.NewMicroTime(f.clock.Now()) }

func (f *Fleet) lease(name string) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{
		TypeMeta: metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: f.Ring.Namespace, Labels: map[string]string{contract.LabelClusterRing: f.Ring.Name},
			Annotations: map[string]string{contract.AnnotationHoldOff: "2s"}, // as shards of our library do
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(name), LeaseDurationSeconds: new(int32(longest / time.Second)),
			AcquireTime: new(f.now()), RenewTime: new(f.now()), LeaseTransitions: new(int32(0)),
		},
	}
	if f.Ring.State != "" {
		lease.Labels[contract.LabelState] = f.Ring.State
	}

	return lease
}

// Ring describes a ring.
type Ring struct {
	// Namespace contains the Leases, and the objects: the ring shards only those of this namespace.
	Name, Namespace string
	// Main is the main resource. Controlled are its controlled resources, possibly none.
	Main       schema.GroupResource
	Controlled []schema.GroupResource
	// Pods lets the lease monitor watch the Pods of the shards, which are processes.
	Pods bool
	// Embedded makes the shards elect one of themselves as the sharder. Silent is true if nobody registers a webhook.
	Embedded, Silent bool
	// State is the state label of new Leases; empty for none.
	State string
}

// Declare creates the ring and waits until the assigner has registered its webhook. The API server may take another
// second to call it.
func (f *Fleet) Declare(ctx context.Context) error {
	r := f.Ring

	resource := v1alpha1.RingResource{Group: r.Main.Group, Resource: r.Main.Resource}
	for _, controlled := range r.Controlled {
		resource.ControlledResources = append(resource.ControlledResources,
			v1alpha1.ControlledResource{Group: controlled.Group, Resource: controlled.Resource})
	}

	ring := &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: r.Name},
		Spec: v1alpha1.ClusterRingSpec{
			Resources:         []v1alpha1.RingResource{resource},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: r.Namespace}},
		},
	}

	if r.Pods {
		ring.Spec.ShardNamespaces = []string{r.Namespace}

		if err := f.client.Create(ctx, kubelettest.Binding(r.Namespace)); err != nil {
			return fmt.Errorf("let the lease monitor watch the Pods of ring %s: %w", r.Name, err)
		}
	}

	if r.Embedded {
		ring.Spec.Sharder = v1alpha1.SharderEmbedded
	}

	if err := f.client.Create(ctx, ring); err != nil {
		return fmt.Errorf("create ClusterRing %s: %w", r.Name, err)
	}

	if r.Silent {
		return nil
	}

	return f.Await(ctx, "its webhook is registered", func(ring *v1alpha1.ClusterRing) bool {
		return meta.IsStatusConditionTrue(ring.Status.Conditions, v1alpha1.ConditionWebhookRegistered)
	})
}

// Fingerprint identifies the set of shards among which every object is in place. It is empty while an object is out of
// place.
func Fingerprint(ring *v1alpha1.ClusterRing) string {
	if ring.Status.Assignment == nil {
		return ""
	}

	return ring.Status.Assignment.Fingerprint
}

// Read returns the ring as it is stored.
func (f *Fleet) Read(ctx context.Context) (*v1alpha1.ClusterRing, error) {
	ring := &v1alpha1.ClusterRing{}
	if err := f.client.Get(ctx, client.ObjectKey{Name: f.Ring.Name}, ring); err != nil {
		return nil, fmt.Errorf("read ClusterRing %s: %w", f.Ring.Name, err)
	}

	return ring, nil
}

// AwaitConverged waits until as many shards are available as hold their Leases, and every object is in place among
// another set of shards than the one with the fingerprint before.
func (f *Fleet) AwaitConverged(ctx context.Context, before string) error {
	return f.AwaitConvergedAmong(ctx, len(f.held), before)
}

// AwaitConvergedAmong is AwaitConverged with the number of available shards.
func (f *Fleet) AwaitConvergedAmong(ctx context.Context, shards int, before string) error {
	return f.Await(ctx, fmt.Sprintf("has converged among %d shards", shards), func(ring *v1alpha1.ClusterRing) bool {
		now := Fingerprint(ring)

		return int(ring.Status.AvailableShards) == shards && now != "" && now != before &&
			meta.IsStatusConditionTrue(ring.Status.Conditions, v1alpha1.ConditionAssigned)
	})
}

// Await waits until the condition holds for the ring. The text what describes the condition in the error.
func (f *Fleet) Await(ctx context.Context, what string, condition func(*v1alpha1.ClusterRing) bool) error {
	var status v1alpha1.ClusterRingStatus

	err := objects.Until(ctx, "ClusterRing "+f.Ring.Name+": "+what, func(ctx context.Context) (bool, error) {
		ring, err := f.Read(ctx)
		if err != nil {
			return false, err
		}

		status = ring.Status

		return condition(ring), nil
	})
	if err != nil {
		return fmt.Errorf("%w (status %+v)", err, status)
	}

	return nil
}

// Change changes the shards, and waits until the ring has converged among others than before.
func (f *Fleet) Change(ctx context.Context, do func() error) error {
	before, err := f.Read(ctx)
	if err != nil {
		return err
	}

	if err := do(); err != nil {
		return err
	}

	return f.AwaitConverged(ctx, Fingerprint(before))
}

// removeRing deletes the ring and waits until it is gone: until the rebalancer has removed the ring's labels from all
// objects.
func (f *Fleet) removeRing(ctx context.Context) error {
	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: f.Ring.Name}}
	if err := client.IgnoreNotFound(f.client.Delete(ctx, ring)); err != nil {
		return fmt.Errorf("delete ClusterRing %s: %w", f.Ring.Name, err)
	}

	return objects.Until(ctx, "ClusterRing "+f.Ring.Name+" is gone", func(ctx context.Context) (bool, error) {
		_, err := f.Read(ctx)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}

// Acknowledge acknowledges all drains of objects of the ring's main kind, until the returned function is called, which
// returns the first error. It uses one metadata watch, and one patch per object, as pkg/shard does: the patch is
// conditional on the resource version, removes the drain label, and sets the shard label to the next shard, or removes
// it if the drain label names none.
func (f *Fleet) Acknowledge(ctx context.Context, kind objects.Kind) (stop func() error, err error) {
	shard, drain := contract.ShardLabel(f.Ring.Name), contract.DrainLabel(f.Ring.Name)
	workers, working := errgroup.WithContext(ctx)
	workers.SetLimit(objects.Concurrency)

	draining, err := f.objects.Watch(ctx, objects.Selection{
		Kind: kind, Namespace: f.Ring.Namespace, Labels: drain,
	}, func(event watch.EventType, o *metav1.PartialObjectMetadata) {
		if event == watch.Deleted {
			return // its drain label is gone
		}
		workers.Go(func() error {
			labels := map[string]any{shard: nil, drain: nil}
			if next := contract.NextShard(o.Labels[drain]); next != "" {
				labels[shard] = next
			}

			err := f.objects.MergePatch(working, f.ref(kind, o.Name), map[string]any{
				"metadata": map[string]any{"resourceVersion": o.ResourceVersion, "labels": labels},
			})
			if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				return fmt.Errorf("acknowledge a drain: %w", err)
			}

			return nil
		})
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("follow drains: %w", err), workers.Wait())
	}

	return func() error {
		err := draining.Stop()
		return cmp.Or(workers.Wait(), err)
	}, nil
}
