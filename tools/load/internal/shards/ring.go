package shards

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/kubelettest"
)

const (
	// patience limits waits for the services. It is long, because the machine is busy.
	patience = 5 * time.Minute
	look     = 250 * time.Millisecond
)

// Ring describes a ring.
type Ring struct {
	// Namespace contains the Leases, and the objects: the ring shards only those of this namespace.
	Name, Namespace string
	// Main is the main resource. Controlled are its controlled resources, possibly none.
	Main       schema.GroupResource
	Controlled []schema.GroupResource
	// Fence is the fence of the ring; nil for none.
	Fence *v1alpha1.Fence
	// Pods gives each shard a Pod, which its Lease announces, and lets the lease monitor watch them. Such shards do not renew their Leases.
	Pods bool
	// State is the state label of new Leases; empty for none.
	State string
}

// Declare creates the ring and waits until the assigner has registered its webhook. The API server may take another second to call it.
func (f *Fleet) Declare(ctx context.Context) error {
	r := f.Ring

	resource := v1alpha1.RingResource{Group: r.Main.Group, Resource: r.Main.Resource}
	for _, controlled := range r.Controlled {
		resource.ControlledResources = append(resource.ControlledResources, v1alpha1.ControlledResource{Group: controlled.Group, Resource: controlled.Resource})
	}

	selector := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: r.Namespace}}

	ring := &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: r.Name},
		Spec:       v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{resource}, NamespaceSelector: selector, Fence: r.Fence},
	}

	if r.Pods {
		ring.Spec.ShardNamespaces = []string{r.Namespace}

		if err := f.client.Create(ctx, kubelettest.Binding(r.Namespace)); err != nil {
			return fmt.Errorf("let the lease monitor watch the Pods of ring %s: %w", r.Name, err)
		}
	}

	if err := f.client.Create(ctx, ring); err != nil {
		return fmt.Errorf("create ClusterRing %s: %w", r.Name, err)
	}

	return f.Await(ctx, "its webhook is registered", func(ring *v1alpha1.ClusterRing) bool {
		return meta.IsStatusConditionTrue(ring.Status.Conditions, v1alpha1.ConditionWebhookRegistered)
	})
}

// Fingerprint identifies the set of shards among which every object is in place. It is empty while an object is out of place.
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

// AwaitConverged waits until as many shards are available as hold their Leases, and every object is in place among another set of shards
// than the one with the fingerprint before.
func (f *Fleet) AwaitConverged(ctx context.Context, before string) error {
	return f.AwaitConvergedAmong(ctx, len(f.Held()), before)
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
	ring := &v1alpha1.ClusterRing{}

	err := wait.PollUntilContextTimeout(ctx, look, patience, true, func(ctx context.Context) (bool, error) {
		stored, err := f.Read(ctx)
		if err != nil {
			return false, err
		}

		ring = stored

		return condition(ring), nil
	})
	if err != nil {
		return fmt.Errorf("wait for ClusterRing %s: %s: %w (status %+v)", f.Ring.Name, what, err, ring.Status)
	}

	return nil
}

// removeRing deletes the ring and waits until it is gone: until the rebalancer has removed the ring's labels from all objects.
func (f *Fleet) removeRing(ctx context.Context) error {
	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: f.Ring.Name}}
	if err := client.IgnoreNotFound(f.client.Delete(ctx, ring)); err != nil {
		return fmt.Errorf("delete ClusterRing %s: %w", f.Ring.Name, err)
	}

	err := wait.PollUntilContextTimeout(ctx, look, patience, true, func(ctx context.Context) (bool, error) {
		_, err := f.Read(ctx)
		return err != nil && client.IgnoreNotFound(err) == nil, client.IgnoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("wait until ClusterRing %s is gone: %w", f.Ring.Name, err)
	}

	return nil
}
