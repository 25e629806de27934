package shard

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
)

func TestOptionsDefaults(t *testing.T) {
	mounted := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(mounted, "namespace"), []byte("websites\n"), 0o600))

	hostname := func() (string, error) { return "shard-0", nil }

	got, err := Options{Ring: "example"}.complete(hostname, mounted)
	require.NoError(t, err)
	require.Equal(t, Options{
		Ring: "example", Name: "shard-0", Namespace: "websites",
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		HoldOff: 2 * time.Second, DrainTimeout: 15 * time.Second,
	}, got)

	got, err = Options{Ring: "example", Name: "me", Namespace: "here", LeaseDuration: 3 * time.Second}.complete(nil, "")
	require.NoError(t, err)
	require.Equal(t, 2*time.Second, got.RenewDeadline)
	require.Equal(t, 400*time.Millisecond, got.RetryPeriod)
}

// The kubelet mounts a token whose claims name the Pod that it is bound to.
func TestPodUIDIsThatOfTheToken(t *testing.T) {
	token := func(claims string) string {
		return "header." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".signature\n"
	}

	const uid = "4ac0d21e-4b33-4c40-b4c5-6c8ea1f7e1d3"

	for name, tc := range map[string]struct {
		token string
		want  types.UID
	}{
		"bound to a Pod": {token(`{"iss":"x","kubernetes.io":{"namespace":"a","pod":{"name":"p","uid":"` + uid + `"}}}`),
			uid},
		"bound to none": {token(`{"kubernetes.io":{"namespace":"a"}}`), ""},
		"not JSON":      {token(`{`), ""},
		"not Base64":    {"header.%.signature", ""},
		"not a token":   {"secret", ""},
		"none":          {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			mounted := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(mounted, "token"), []byte(tc.token), 0o600))

			o := Options{Ring: "example", Name: "shard-0", Namespace: "websites"}
			got, err := o.complete(nil, mounted)
			require.NoError(t, err)
			require.Equal(t, tc.want, got.PodUID)

			o.PodUID = "mine"
			got, err = o.complete(nil, mounted)
			require.NoError(t, err)
			require.EqualValues(t, "mine", got.PodUID)
		})
	}
}

func TestOptionsThatAreRefused(t *testing.T) {
	valid := Options{Ring: "example", Name: "shard-0", Namespace: "websites"}

	for _, tc := range []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"no ring", func(o *Options) { o.Ring = "" }, "ring: set the name"},
		{"bad ring", func(o *Options) { o.Ring = "Example" }, `ring: "Example" is invalid`},
		{"long ring", func(o *Options) { o.Ring = strings.Repeat("a", 64) }, "no more than 63"},
		{"name is no label value", func(o *Options) { o.Name = strings.Repeat("a", 64) }, "no more than 63"},
		{"name is no Lease name", func(o *Options) { o.Name = "Shard_0" }, `name: "Shard_0" is invalid`},
		{"name of the lease monitor", func(o *Options) { o.Name = "shardlease-controller" }, "choose another"},
		{"bad namespace", func(o *Options) { o.Namespace = "a.b" }, `namespace: "a.b" is invalid`},
		{"bad pod", func(o *Options) { o.Pod = "Pod_0" }, `pod: "Pod_0" is invalid`},
		{"fraction of a second", func(o *Options) { o.LeaseDuration = 1500 * time.Millisecond }, "whole seconds"},
		{"too long", func(o *Options) { o.LeaseDuration = 25 * time.Hour }, "at most 24h0m0s"},
		{"negative duration", func(o *Options) { o.LeaseDuration = -time.Second }, "at least one"},
		{"late deadline", func(o *Options) { o.RenewDeadline = 15 * time.Second }, "less than the lease duration"},
		{"long retry period", func(o *Options) { o.RetryPeriod = 9 * time.Second }, "divided by 1.2"},
		{"short hold-off", func(o *Options) { o.HoldOff = 1400 * time.Millisecond }, "hold-off: 1.4s must be at least 1.5s"},
		{"no host name", func(o *Options) { o.Name = "" }, "name: set it, the host has none: nameless"},
		{"not in a cluster", func(o *Options) { o.Namespace = "" }, "namespace: set it"},
		{"less than no slots", func(o *Options) { o.Slots = Count(-1) }, `slots: their number, -1, must be from 1`},
		{"too many slots", func(o *Options) { o.Slots = Count(5001) }, `slots: their number, 5001, must be from 1`},
		{"no names", func(o *Options) { o.Slots = Named() }, `slots: give Named at least one name`},
		{"an empty name", func(o *Options) { o.Slots = Named("blue", "") }, `slots: give Named at least one name, and`},
		{"a name and slots", func(o *Options) { o.Slots = Named("blue") }, `name: remove "shard-0"`},
		{"a slot that is no label value", func(o *Options) { o.Slots = Named("a/b") }, `slots: "a/b" is invalid`},
		{"a slot of the lease monitor", func(o *Options) { o.Slots = Named("shardlease-controller") },
			`it is how the lease monitor signs`},
		{"a label of Kubernetes", func(o *Options) { o.ShardLabel = "k8s.io/shard" },
			`shard label: "k8s.io/shard" is invalid`},
		{"a reserved domain", func(o *Options) { o.ShardLabel = "x.kubernetes.io/shard" }, `use a domain of your own`},
		{"a label that may follow", func(o *Options) { o.ShardLabel = "example.com/shard-drain" },
			`could be one that follows from the shardL`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			options := valid
			tc.change(&options)
			_, err := options.complete(func() (string, error) { return "", errors.New("nameless") },
				filepath.Join(t.TempDir(), "none"))
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, "shard options: ")
		})
	}

	_, err := New(Options{Ring: "-", Name: "-", Namespace: "-", LeaseDuration: 1})
	for _, part := range []string{"ring:", "name:", "namespace:", "lease duration:"} {
		require.ErrorContains(t, err, part, "every problem is named")
	}
}

// grant returns a function that grants a permission in the namespace to the user who has the name of the namespace.
func (f *fixture) grant() (allow func(group, resource string, verbs ...string)) {
	f.Helper()

	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "shard"}}
	require.NoError(f, f.admin.Create(f.Context(), role))
	require.NoError(f, f.admin.Create(f.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "shard"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: f.namespace}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
	}))

	return func(group, resource string, verbs ...string) {
		f.Helper()

		role.Rules = append(role.Rules,
			rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs})
		require.NoError(f, f.admin.Update(f.Context(), role))
	}
}

// grantAll grants the rules in all namespaces to the same user.
func (f *fixture) grantAll(rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	f.Helper()

	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: f.namespace}, Rules: rules}
	require.NoError(f, f.admin.Create(f.Context(), role))
	require.NoError(f, f.admin.Create(f.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: f.namespace},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: f.namespace}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: f.namespace},
	}))

	return role
}

// The permissions in the package documentation are sufficient to hold a Lease, to work, to acknowledge, and to stop.
func TestDocumentedRightsAreEnough(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	f.grant()("coordination.k8s.io", "leases", "get", "create", "update")
	f.grantAll(rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps", "secrets"},
		Verbs: []string{"get", "list", "watch", "patch"}})

	f.config.Impersonate.UserName = f.namespace

	cm := f.configMap(s, "a")
	p := f.start(s, func(mgr ctrl.Manager) {
		f.controls(mgr, s, &corev1.ConfigMap{}, nothing)
		f.controls(mgr, s, &corev1.Secret{}, nothing)
	})
	f.held(s)
	f.label(cm, s.drainKey, "true")
	f.released(cm)
	require.NoError(t, p.stop())
	require.Empty(t, holder(f.lease(s)))
}
