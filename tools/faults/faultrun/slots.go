package faultrun

import (
	"context"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// Update replaces the Pod old by the Pod next, as a rolling update does: the next one starts, and when it waits for a slot, the old one stops. It
// returns when the next one holds a slot. Both are shards of a ring with slots.
func (run *Run) Update(ctx context.Context, old, next *Member) error {
	if err := errors.Join(run.Start(next), run.AwaitStandby(ctx, next)); err != nil {
		return err
	}

	run.Expect(old.Name, false)

	if err := old.Process().Stop(stopTimeout); err != nil {
		return fmt.Errorf("stop Pod %s: %w", old.Name, err)
	}

	return run.AwaitSlot(ctx, next)
}

// AwaitStandby waits until the Pod waits for a slot.
func (run *Run) AwaitStandby(ctx context.Context, m *Member) error {
	return run.awaitLease(ctx, m, contract.LabelStandby, func(l *coordinationv1.Lease) bool { return *l.Spec.HolderIdentity == m.Name })
}

// AwaitSlot waits until the Pod holds a slot.
func (run *Run) AwaitSlot(ctx context.Context, m *Member) error {
	return run.awaitLease(ctx, m, contract.LabelClusterRing, func(l *coordinationv1.Lease) bool { return holds(m, l) })
}

func holds(m *Member, l *coordinationv1.Lease) bool {
	holder := l.Spec.HolderIdentity

	return holder != nil && *holder == l.Name && l.Annotations[contract.AnnotationPod] == m.Name && l.Annotations[contract.AnnotationOffered] == ""
}

func (run *Run) awaitLease(ctx context.Context, m *Member, label string, is func(*coordinationv1.Lease) bool) error {
	return run.await(ctx, "Pod "+m.Name+" has a Lease with label "+label, func(ctx context.Context) ([]string, error) {
		leases := &coordinationv1.LeaseList{}
		if err := run.client.List(ctx, leases, client.InNamespace(shardNamespace), client.MatchingLabels{label: m.ring}); err != nil {
			return nil, fmt.Errorf("list Leases: %w", err)
		}

		var found []string

		for i := range leases.Items {
			l := &leases.Items[i]
			if is(l) {
				return nil, nil
			}

			found = append(found, fmt.Sprintf("%s: %v %v", l.Name, l.Spec.HolderIdentity, l.Annotations))
		}

		return append(found, "none"), nil
	})
}

// DeleteLease deletes the Lease of a shard.
func (run *Run) DeleteLease(ctx context.Context, name string) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: shardNamespace, Name: name}}
	if err := run.client.Delete(ctx, lease); err != nil {
		return fmt.Errorf("delete Lease %s: %w", name, err)
	}

	return nil
}
