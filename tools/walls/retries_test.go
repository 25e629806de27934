package walls

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRetriesAreBounded looks for controllers that nobody has told how long to pause: controller-runtime lets that grow
// to 1,000 s, for which a dead shard would keep its objects after the API server has refused writes for a while.
func TestRetriesAreBounded(t *testing.T) {
	controllers := 0
	require.NoError(t, filepath.WalkDir(filepath.Join("..", "..", "services"),
		func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}

			code, err := os.ReadFile(path) //nolint:gosec // our own code
			if err != nil {
				return err
			}

			made := strings.Count(string(code), "builder.ControllerManagedBy(")
			controllers += made

			if limited := strings.Count(string(code), "RateLimiter: "); limited < made {
				t.Errorf("%s makes %d controllers and limits the retries of %d: set Options.RateLimiter to kit.RateLimiter",
					path, made, limited)
			}

			return nil
		}))
	require.NotZero(t, controllers)
}
