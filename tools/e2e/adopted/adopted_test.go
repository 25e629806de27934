package adopted_test

import (
	"encoding/json"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/e2e/adopted"
)

const root = "../../.."

func read(t *testing.T, elements ...string) string {
	t.Helper()

	content, err := os.ReadFile(filepath.Join(elements...))
	require.NoError(t, err)

	return string(content)
}

// TestChangesOfTheGuideFitJobSet: what docs/adopt.md replaces is in the source of the version that tools/ requires.
// make e2e runs the result.
func TestChangesOfTheGuideFitJobSet(t *testing.T) {
	find := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "sigs.k8s.io/jobset")

	find.Dir, find.Env = filepath.Join(root, "tools"), append(os.Environ(), "GOWORK=off")
	output, err := find.Output()
	require.NoError(t, err)

	var source struct{ Dir string }
	require.NoError(t, json.Unmarshal(output, &source))

	dir := t.TempDir()

	for _, file := range []string{"main.go", "pkg/webhooks/jobset_webhook.go", "pkg/webhooks/pod_mutating_webhook.go"} {
		copied := filepath.Join(dir, filepath.Base(file))
		require.NoError(t, os.WriteFile(copied, []byte(read(t, source.Dir, file)), 0o600))
	}
	require.NoError(t, adopted.Apply(dir, adopted.Changes(read(t, root, "docs/adopt.md"))))

	changed := read(t, dir, "main.go")
	require.Contains(t, changed, "shard.NewManager(kubeConfig, options, shard.Options{")

	formatted, err := format.Source([]byte(changed))
	require.NoError(t, err)
	require.Equal(t, string(formatted), changed)

	require.ErrorContains(t, adopted.Apply(dir, adopted.Changes(read(t, root, "docs/adopt.md"))), "0 files have",
		"it was changed already")
}
