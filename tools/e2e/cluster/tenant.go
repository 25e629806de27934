package cluster

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

// AddTenant creates a service account with the ClusterRole edit in an existing namespace, which may also do everything to the Websites there,
// and returns a client with its token. The objects disappear with the namespace.
func (c *Cluster) AddTenant(ctx context.Context, namespace, name string) (client.Client, error) {
	own := metav1.ObjectMeta{Namespace: namespace, Name: name}
	websites := metav1.ObjectMeta{Namespace: namespace, Name: name + "-websites"}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}}

	token, err := c.account(ctx, own,
		&rbacv1.RoleBinding{ObjectMeta: own, Subjects: subjects, RoleRef: roleRef("ClusterRole", "edit")},
		&rbacv1.Role{ObjectMeta: websites, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{v1alpha1.SchemeGroupVersion.Group}, Resources: []string{"websites"}, Verbs: []string{"*"},
		}}},
		&rbacv1.RoleBinding{ObjectMeta: websites, Subjects: subjects, RoleRef: roleRef("Role", websites.Name)},
	)
	if err != nil {
		return nil, fmt.Errorf("create tenant %s/%s: %w", namespace, name, err)
	}

	config := rest.AnonymousClientConfig(c.Config)
	config.BearerToken = token

	tenant, err := client.New(config, client.Options{Scheme: c.Client.Scheme(), Mapper: c.Client.RESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("create a client of tenant %s/%s: %w", namespace, name, err)
	}

	return tenant, nil
}
