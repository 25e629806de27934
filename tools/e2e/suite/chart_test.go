package suite_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/e2e/cluster"
)

// chart installs the Helm chart on a cluster that has nothing, as docs/installation.md says, with the example. It changes a value, rolls that
// back, and removes everything, which is refused while there is a ring.
func (s *suite) chart(t *testing.T) {
	program := os.Getenv("E2E_HELM")
	if program == "" {
		t.Skip("E2E_HELM is not set: it names the Helm program")
	}
	s.absent(t)

	ctx := t.Context()
	chart, example := filepath.Join(s.root, "charts/clusterring"), filepath.Join(filepath.Dir(s.dir), "example")

	helm := func(args ...string) error {
		_, err := cluster.Command(ctx, program, append(args, "--namespace", system)...)
		return err
	}
	began := s.Clock.Now()
	_, err := s.Kubectl(ctx, "apply", "-f", filepath.Join(s.root, "deploy/base/namespace.yaml"))
	require.NoError(t, err)
	require.NoError(t, helm("install", "clusterring", chart, "--values", filepath.Join(s.dir, "values.yaml"), "--set", "development.enabled=true"))
	s.apply(t, version{definitions: []string{"-k", filepath.Join(s.root, "deploy/example/crd")}, all: []string{"-k", example}})
	s.note(t, "ready after", s.Clock.Since(began).Round(time.Second))
	s.admission(t)

	require.NoError(t, helm("upgrade", "clusterring", chart, "--reset-then-reuse-values", "--set", "ringquery.replicas=3"))
	s.asks(t, 3)
	require.NoError(t, helm("rollback", "clusterring"))
	s.asks(t, 2)
	s.guarded(t)
	require.ErrorContains(t, helm("uninstall", "clusterring"), "First run: kubectl delete clusterrings --all")
	require.NoError(t, helm("rollback", "clusterring", "3"))
	require.NoError(t, s.Rolled(ctx, service("ringquery"), patience))
	s.complete(t, cluster.Example, 3)

	_, err = s.Kubectl(ctx, "delete", "clusterrings", "--all", "--timeout=300s")
	require.NoError(t, err)
	s.noLabels(t)
	require.NoError(t, helm("uninstall", "clusterring"))

	left, err := s.Kubectl(ctx, "get", "deployments,services,serviceaccounts,clusterroles,validatingadmissionpolicies", "-A", "-l", partOf, "-o", "name")
	require.NoError(t, err)
	require.Empty(t, left)
	s.uninstall(t) // the namespace, the definitions, and the example
}

// asks demands that there shall be so many replicas of ringquery.
func (s *suite) asks(t *testing.T, replicas int) {
	t.Helper()

	got, err := s.Replicas(t.Context(), service("ringquery"))
	require.NoError(t, err)
	require.Equal(t, replicas, got)
}
