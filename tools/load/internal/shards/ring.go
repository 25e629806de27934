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
)

const (
	// patience is how long the services may take to do what is waited for here; a machine that is measured is busy.
	patience = 5 * time.Minute
	look     = 250 * time.Millisecond
)

// Ring says what a ring shards.
type Ring struct {
	// Name is that of the ring. Namespace is where its Leases are, and the only one whose objects it shards, if Label is empty.
	Name, Namespace string
	// Label is the key of a label: the ring shards the objects of the namespaces that have it.
	Label string
	// Main is sharded; Controlled follows its owners of Main, and may be empty.
	Main       schema.GroupResource
	Controlled []schema.GroupResource
}

// Declare creates the ring and waits until the assigner has registered its webhook. It may still take a second until the API server
// has noticed.
func (r Ring) Declare(ctx context.Context, c client.Client) error {
	resource := v1alpha1.RingResource{Group: r.Main.Group, Resource: r.Main.Resource}
	for _, controlled := range r.Controlled {
		resource.ControlledResources = append(resource.ControlledResources, v1alpha1.ControlledResource{Group: controlled.Group, Resource: controlled.Resource})
	}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: r.Namespace}}
	if r.Label != "" {
		selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: r.Label, Operator: metav1.LabelSelectorOpExists}}}
	}
	ring := &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: r.Name},
		Spec:       v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{resource}, NamespaceSelector: selector},
	}
	if err := c.Create(ctx, ring); err != nil {
		return fmt.Errorf("create ClusterRing %s: %w", r.Name, err)
	}
	return r.Await(ctx, c, "its webhook is registered", func(ring *v1alpha1.ClusterRing) bool {
		return meta.IsStatusConditionTrue(ring.Status.Conditions, v1alpha1.ConditionWebhookRegistered)
	})
}

// AwaitAssigned waits until the rebalancer has found every object in its place.
func (r Ring) AwaitAssigned(ctx context.Context, c client.Client) error {
	return r.Await(ctx, c, "has everything in its place", func(ring *v1alpha1.ClusterRing) bool {
		return ring.Status.AvailableShards > 0 && meta.IsStatusConditionTrue(ring.Status.Conditions, v1alpha1.ConditionAssigned)
	})
}

// Fingerprint names the shards among which every object is in its place; it is empty while that is not so.
func Fingerprint(ring *v1alpha1.ClusterRing) string {
	if ring.Status.Assignment == nil {
		return ""
	}
	return ring.Status.Assignment.Fingerprint
}

// Present returns the fingerprint of now.
func (r Ring) Present(ctx context.Context, c client.Client) (fingerprint string, err error) {
	ring := &v1alpha1.ClusterRing{}
	if err := c.Get(ctx, client.ObjectKey{Name: r.Name}, ring); err != nil {
		return "", fmt.Errorf("read ClusterRing %s: %w", r.Name, err)
	}
	return Fingerprint(ring), nil
}

// Settle waits until so many shards are available, and every object is in its place among other shards than those of a fingerprint.
func (r Ring) Settle(ctx context.Context, c client.Client, shards int, before string) error {
	return r.Await(ctx, c, "is settled", func(ring *v1alpha1.ClusterRing) bool {
		f := Fingerprint(ring)
		return int(ring.Status.AvailableShards) == shards && f != "" && f != before &&
			meta.IsStatusConditionTrue(ring.Status.Conditions, v1alpha1.ConditionAssigned)
	})
}

// Await waits until the ring is as the condition says; what names that in the error if it takes too long.
func (r Ring) Await(ctx context.Context, c client.Client, what string, condition func(*v1alpha1.ClusterRing) bool) error {
	ring := &v1alpha1.ClusterRing{}
	err := wait.PollUntilContextTimeout(ctx, look, patience, true, func(ctx context.Context) (bool, error) {
		if err := c.Get(ctx, client.ObjectKey{Name: r.Name}, ring); err != nil {
			return false, err //nolint:wrapcheck // wrapped below
		}
		return condition(ring), nil
	})
	if err != nil {
		return fmt.Errorf("wait until of ClusterRing %s %s (status %+v): %w", r.Name, what, ring.Status, err)
	}
	return nil
}

// Remove deletes the ring and waits until it is gone: until the rebalancer has removed its labels from all objects.
func (r Ring) Remove(ctx context.Context, c client.Client) error {
	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: r.Name}}
	if err := client.IgnoreNotFound(c.Delete(ctx, ring)); err != nil {
		return fmt.Errorf("delete ClusterRing %s: %w", r.Name, err)
	}
	err := wait.PollUntilContextTimeout(ctx, look, patience, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(ring), ring)
		return err != nil && client.IgnoreNotFound(err) == nil, client.IgnoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("wait until ClusterRing %s is gone: %w", r.Name, err)
	}
	return nil
}
