package suite_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/e2e/cluster"
)

// parts adds what needs nothing else in the cluster to the installation, by a kustomization as docs/installation.md has it: network
// policies, and the assigner's autoscaler. All is ready and new objects are assigned in admission; then they are taken away again.
func (s *suite) parts(t *testing.T) {
	ctx := t.Context()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)

	relative := func(path string) string {
		path, err := filepath.EvalSymlinks(path)
		require.NoError(t, err)
		path, err = filepath.Rel(dir, path)
		require.NoError(t, err)

		return path
	}
	components := filepath.Join(s.root, "deploy", "components")
	kustomization := fmt.Sprintf("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [%s]\ncomponents: [%s, %s]\n",
		relative(s.dir), relative(filepath.Join(components, "network-policies")), relative(filepath.Join(components, "autoscaling")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600))

	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		_, err := s.Kubectl(ctx, "delete", "networkpolicies,horizontalpodautoscalers", "-n", system, "-l", "app.kubernetes.io/part-of=clusterring")
		assert.NoError(t, err)
		_, err = s.Kubectl(ctx, "apply", "-k", s.dir)
		assert.NoError(t, err)
		assert.NoError(t, s.Rolled(ctx, service("assigner"), patience))
	})

	began := s.Clock.Now()
	_, err = s.Kubectl(ctx, "apply", "-k", dir)
	require.NoError(t, err)
	// The number of assigners is the autoscaler's now, which keeps to its minimum even where there are no metrics.
	require.NoError(t, s.Until(ctx, patience, func(ctx context.Context) error {
		n, err := s.Replicas(ctx, service("assigner"))
		if err == nil && n < 2 {
			err = fmt.Errorf("there are %d assigners, not 2", n)
		}

		return err
	}))

	for _, name := range []string{"leasemonitor", "assigner", "rebalancer", "ringquery"} {
		require.NoError(t, s.Rolled(ctx, service(name), patience))
	}
	s.complete(t, cluster.Example, 3)
	s.note(t, "with network policies and an autoscaler: ready after", s.Clock.Since(began).Round(time.Second))
	s.admission(t)
	out, err := s.Kubectl(ctx, "get", "networkpolicies,horizontalpodautoscalers", "-n", system, "-o", "name")
	require.NoError(t, err)
	require.Contains(t, out, "networkpolicy.networking.k8s.io/default-deny")
	require.Contains(t, out, "horizontalpodautoscaler.autoscaling/assigner")
}
