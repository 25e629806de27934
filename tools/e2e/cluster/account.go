package cluster

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	shardingv1alpha1 "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// AddAsker creates a service account of the given name in the ring's namespace. The account may query only this ring, through the API
// server, and create its own tokens. AddAsker writes a kubeconfig with a token of the account to the path. It returns the objects to delete
// with the ring.
func (c *Cluster) AddAsker(ctx context.Context, ring Ring, name, path string) ([]client.Object, error) {
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ring.Namespace(), Name: name}}
	scoped := metav1.ObjectMeta{Name: ring.Name + "-" + name}
	near := metav1.ObjectMeta{Namespace: contract.SystemNamespace, Name: scoped.Name}
	outside := []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: scoped, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{shardingv1alpha1.GroupName}, Resources: []string{"clusterrings/diagnostics"},
			ResourceNames: []string{ring.Name}, Verbs: []string{"get"},
		}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: scoped, Subjects: subjects, RoleRef: roleRef("ClusterRole", scoped.Name)},
		&rbacv1.Role{ObjectMeta: near, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"services", "pods", "configmaps"}, Verbs: []string{"get", "list"}},
			{APIGroups: []string{""}, Resources: []string{"pods/portforward"}, Verbs: []string{"create"}},
		}},
		&rbacv1.RoleBinding{ObjectMeta: near, Subjects: subjects, RoleRef: roleRef("Role", near.Name)},
	}

	own := metav1.ObjectMeta{Namespace: ring.Namespace(), Name: name}
	inside := []client.Object{
		&rbacv1.Role{ObjectMeta: own, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{name}, Verbs: []string{"create"},
		}}},
		&rbacv1.RoleBinding{ObjectMeta: own, Subjects: subjects, RoleRef: roleRef("Role", name)},
	}

	token, err := c.account(ctx, own, append(inside, outside...)...)
	if err != nil {
		return outside, err
	}

	return outside, localplane.WriteKubeconfig(path, c.Config, token, "")
}

func roleRef(kind, name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
}

// account creates a service account and what grants its permissions, and returns a token of the account.
func (c *Cluster) account(ctx context.Context, own metav1.ObjectMeta, grants ...client.Object) (string, error) {
	if err := c.create(ctx, append([]client.Object{&corev1.ServiceAccount{ObjectMeta: own}}, grants...)...); err != nil {
		return "", err
	}

	token, err := c.Clients.CoreV1().ServiceAccounts(own.Namespace).CreateToken(ctx, own.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("get a token of service account %s/%s: %w", own.Namespace, own.Name, err)
	}

	return token.Status.Token, nil
}
