package localplane

import (
	"context"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Aggregate does what kube-controller-manager does in the background: it gives every ClusterRole with an aggregation rule the rules of the
// selected roles. Without it, tests would need that process and wait for it.
func (p *Plane) Aggregate(ctx context.Context) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var roles rbacv1.ClusterRoleList
		if err := p.Client.List(ctx, &roles); err != nil {
			return err //nolint:wrapcheck // wrapped below
		}
		slices.SortFunc(roles.Items, func(a, b rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })

		for i := range roles.Items {
			if err := p.aggregateInto(ctx, &roles.Items[i], roles.Items); err != nil {
				return err
			}
		}

		return nil
	})
	if err != nil {
		return fmt.Errorf("aggregate cluster roles: %w", err)
	}

	return nil
}

// aggregateInto aggregates the rules of all other roles into one role.
func (p *Plane) aggregateInto(ctx context.Context, role *rbacv1.ClusterRole, all []rbacv1.ClusterRole) error {
	if role.AggregationRule == nil {
		return nil
	}

	var rules []rbacv1.PolicyRule

	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return fmt.Errorf("aggregation rule of cluster role %s: %w", role.Name, err)
		}

		for j := range all {
			if all[j].Name != role.Name && selector.Matches(labels.Set(all[j].Labels)) {
				rules = appendNew(rules, all[j].Rules)
			}
		}
	}

	if equality.Semantic.DeepEqual(role.Rules, rules) {
		return nil
	}

	old := role.DeepCopy()
	role.Rules = rules

	return p.Client.Patch(ctx, role, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})) //nolint:wrapcheck // the caller wraps
}

func appendNew(rules, more []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	for _, r := range more {
		if !slices.ContainsFunc(rules, func(have rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(have, r) }) {
			rules = append(rules, r)
		}
	}

	return rules
}
