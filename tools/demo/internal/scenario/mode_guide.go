package scenario

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
)

// guide runs the program that the guide of kubernetes-controller-sharding prints. There, the rebalancer runs as the service account sharder; here, the
// role that the guide grants is bound to the accounts of the services, too.
func (s *Story) guide(ctx context.Context) error {
	const role = "sharding:clusterring:guide"

	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "demo:" + role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}
	for _, account := range []string{localsystem.Rebalancer, "ringquery"} {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{
			Kind: rbacv1.ServiceAccountKind, Namespace: contract.SystemNamespace, Name: account,
		})
	}

	if err := client.IgnoreAlreadyExists(s.client.Create(ctx, binding)); err != nil {
		return fmt.Errorf("grant the services their rights at the ring of the guide: %w", err)
	}

	return s.share(ctx, &program{
		name: "guide", manifests: []string{"tools/guide/testdata/rbac.yaml"}, args: []string{"--work=50ms"},
		objects: s.Objects, object: object("v1", "ConfigMap", "guide", nil),
		children: []schema.GroupVersionKind{{Version: "v1", Kind: "Secret"}},
	})
}
