package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

// ownLabel is the label of a ring with a label of its own.
const ownLabel = "cloudapi.team-orca.dev/shard"

// named runs a ring with shards that have names of their own, and a label of its own. One of the processes is replaced.
func (s *Story) named(ctx context.Context) error {
	names := []string{"alpha", "beta"}

	if err := s.grantOwnLabel(ctx); err != nil {
		return err
	}

	err := s.remake(ctx, func(spec *v1alpha1.ClusterRingSpec) { spec.ShardLabel, spec.ShardNames = ownLabel, names })
	if err != nil {
		return err
	}

	if err := s.startSlots(ctx, "--slot-names="+strings.Join(names, ","), "--shard-label="+ownLabel); err != nil {
		return err
	}

	if err := s.createAll(ctx); err != nil {
		return err
	}

	before, err := s.awaitOwnLabel(ctx, names)
	if err != nil {
		return err
	}
	s.ok("%d Websites have the label %s with one of the values %v", s.Objects, ownLabel, names)

	out := s.running()[slices.IndexFunc(s.running(), func(shard *shard) bool { return shard.serve == names[0] })]

	took, err := s.replaceHolder(ctx, out)
	if err != nil {
		return err
	}

	if err := s.awaitRendered(ctx); err != nil {
		return err
	}

	after, err := s.awaitOwnLabel(ctx, names)
	if err != nil {
		return err
	}

	var moved []string

	for name, shard := range after {
		if before[name] != shard {
			moved = append(moved, fmt.Sprintf("%s moved from %s to %s", name, before[name], shard))
		}
	}

	if err := wrong("objects moved", moved); err != nil {
		return err
	}
	s.ok("%s stopped: the process that waited is %s after %s; no Website moved", out.Name, names[0], took)

	return s.tidy(ctx)
}

// grantOwnLabel lets the rebalancer write the label.
func (s *Story) grantOwnLabel(ctx context.Context) error {
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "demo:shard-label", Labels: map[string]string{contract.LabelAggregateToRebalancer: "true"}},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{contract.ResourceShardLabels}, ResourceNames: []string{ownLabel}, Verbs: []string{"write"},
		}},
	}
	if err := client.IgnoreAlreadyExists(s.client.Create(ctx, role)); err != nil {
		return fmt.Errorf("let the rebalancer write the label: %w", err)
	}

	if err := s.system.Plane.Aggregate(ctx); err != nil {
		return fmt.Errorf("let the rebalancer write the label: %w", err)
	}

	return nil
}

// awaitOwnLabel waits until each Website has the label with one of the names, and returns the names.
func (s *Story) awaitOwnLabel(ctx context.Context, names []string) (map[string]string, error) {
	at := map[string]string{}

	err := s.await(ctx, func(ctx context.Context) (string, error) {
		var sites examplev1alpha1.WebsiteList
		if err := s.client.List(ctx, &sites); err != nil {
			return "", fmt.Errorf("list the Websites: %w", err)
		}

		missing := 0

		for i := range sites.Items {
			site := &sites.Items[i]
			if at[site.Namespace+"/"+site.Name] = site.Labels[ownLabel]; !slices.Contains(names, site.Labels[ownLabel]) {
				missing++
			}
		}

		return unless(missing == 0, fmt.Sprintf("%d Websites have no shard", missing)), nil
	})

	return at, err
}
