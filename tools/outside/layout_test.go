package outside_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// runtimes are the versions of controller-runtime that pkg/shard supports: the last of each minor version. That of
// pkg/go.mod is the newest.
var runtimes = []string{"v0.24.1", "v0.25.2"}

// pkg/shard finds the fields of a controller by reflection, and relies on the context of Start being that of
// reconciles. Its own tests run with the newest version; this is what they would rely on with the others.
func TestControllersAreWhereShardLooksForThem(t *testing.T) {
	for _, r := range parse(t, "pkg").Require {
		if r.Mod.Path == "sigs.k8s.io/controller-runtime" {
			require.Equal(t, r.Mod.Version, runtimes[len(runtimes)-1], "the newest version is that of pkg/go.mod")
		}
	}

	for _, v := range runtimes {
		t.Run(v, func(t *testing.T) {
			file := filepath.Join(downloaded(t, "sigs.k8s.io/controller-runtime@"+v), "pkg", "internal", "controller",
				"controller.go")
			source, err := os.ReadFile(file)
			require.NoError(t, err)

			for _, line := range []string{
				"Name string", "Do reconcile.TypedReconciler[request]", "LogConstructor func(request *request) logr.Logger",
				"CacheSyncTimeout time.Duration", "EnableWarmup *bool", "startWatches []source.TypedSource[request]",
			} {
				require.Contains(t, string(source), "\n\t"+line+"\n")
			}

			_, start, _ := strings.Cut(string(source), ") Start(ctx context.Context) error {\n")
			start, _, _ = strings.Cut(start, "\n}\n")
			require.Contains(t, start, "c.processNextWorkItem(ctx)")
		})
	}
}

// downloaded returns the directory of a module.
func downloaded(t *testing.T, module string) string {
	t.Helper()

	out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module).Output()
	require.NoError(t, err, module)

	var found struct{ Dir string }
	require.NoError(t, json.Unmarshal(out, &found))

	return found.Dir
}
