package shard

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// grant creates the role, and grants it to the user who has the name of the namespace.
func (f *fixture) grant(role *rbacv1.Role) {
	f.Helper()
	require.NoError(f, f.admin.Create(f.Context(), role))
	require.NoError(f, f.admin.Create(f.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "shard"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: f.namespace}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
	}))
}

// The permissions in the package documentation are sufficient to hold a Lease, to work, to acknowledge, and to stop.
func TestDocumentedRightsAreEnough(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "shard"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"}},
		},
	}
	objects := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: f.namespace},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps", "secrets"}, Verbs: []string{"get", "list", "watch", "patch"}},
		},
	}
	user := rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: f.namespace}
	f.grant(role)
	require.NoError(t, f.admin.Create(t.Context(), objects))
	require.NoError(t, f.admin.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: f.namespace}, Subjects: []rbacv1.Subject{user},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: objects.Name},
	}))
	f.config.Impersonate.UserName = f.namespace

	cm := f.configMap(s, "a")
	p := f.start(s, func(mgr ctrl.Manager) {
		f.controls(mgr, s, &corev1.ConfigMap{}, nothing)
		f.controls(mgr, s, &corev1.Secret{}, nothing)
	})
	f.held(s)
	f.label(cm, s.drainKey, "true")
	f.released(s, cm)
	require.NoError(t, p.stop())
	require.Empty(t, holder(f.lease(s)))
}

// A shard of one namespace needs no permissions on others.
func TestRightsInOneNamespaceAreEnough(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "shard"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"}},
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch", "patch"}}, // no get: no object is read on its own
		},
	}
	f.grant(role)
	f.config.Impersonate.UserName = f.namespace
	f.cache.DefaultNamespaces = map[string]cache.Config{f.namespace: {}}

	cm := f.configMap(s, "a")
	b := newBlocker()
	close(b.proceed)
	f.start(s, func(mgr ctrl.Manager) { f.controls(mgr, s, &corev1.ConfigMap{}, b.reconcile) }, &corev1.ConfigMap{})
	receive(f, b.entered, "the object is worked on")
	f.label(cm, s.drainKey, "true")
	f.released(s, cm)
}
