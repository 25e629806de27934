package release

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Everyone who copies an image out of a layout finds it by its name. The order in which ko has built the images does
// not matter.
func TestImagesOfALayoutHaveNames(t *testing.T) {
	const index = `{"schemaVersion": 2, "manifests": [{"digest": "sha256:b", "size": 1}, {"digest": "sha256:a", "size": 2}]}`

	file := filepath.Join(t.TempDir(), "index.json")
	require.NoError(t, os.WriteFile(file, []byte(index), 0o600))
	require.NoError(t, nameLayout(file, map[string]string{"assigner": "sha256:a", "ringquery": "sha256:b"}))

	named, err := os.ReadFile(file)
	require.NoError(t, err)
	require.JSONEq(t, `{"schemaVersion": 2, "manifests": [
		{"digest": "sha256:a", "size": 2, "annotations": {"org.opencontainers.image.ref.name": "assigner"}},
		{"digest": "sha256:b", "size": 1, "annotations": {"org.opencontainers.image.ref.name": "ringquery"}}]}`, string(named))
}

// The chart of a release has its version, and installs its images.
func TestChartInstallsTheRelease(t *testing.T) {
	r := &Release{Root: t.TempDir(), Out: t.TempDir(), Version: "v1.2.3", Repo: "example.org/ring",
		Time: time.Unix(1767225600, 0)}

	digests := map[string]string{"assigner": "sha256:a", "ringquery": "sha256:b", "example": "sha256:c"}

	for name, content := range map[string]string{
		".helmignore":        ".*\n",
		"templates/all.yaml": "version: none\n",
		"Chart.yaml":         "name: clusterring\nversion: 0.0.0\nappVersion: none\n",
		"values.yaml":        values("clusterring/assigner", "", "clusterring/ringquery", ""),
	} {
		file := filepath.Join(r.Root, "charts", chartName, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}

	require.NoError(t, r.chart(digests))

	file, err := os.Open(filepath.Join(r.Out, "clusterring-1.2.3.tgz"))
	require.NoError(t, err)

	defer file.Close()

	compressed, err := gzip.NewReader(file)
	require.NoError(t, err)

	archive, found := tar.NewReader(compressed), map[string]string{}

	for header, err := archive.Next(); err != io.EOF; header, err = archive.Next() {
		require.NoError(t, err)

		content, err := io.ReadAll(archive)
		require.NoError(t, err)

		require.True(t, header.ModTime.Equal(r.Time))
		require.Equal(t, header.Typeflag == tar.TypeDir, header.Mode == 0o755)

		if header.Typeflag != tar.TypeDir {
			found[header.Name] = string(content)
		}
	}

	require.Equal(t, map[string]string{
		"clusterring/Chart.yaml":         "name: clusterring\nversion: 1.2.3\nappVersion: v1.2.3\n",
		"clusterring/templates/all.yaml": "version: none\n",
		"clusterring/values.yaml": values("example.org/ring/assigner", "sha256:a",
			"example.org/ring/ringquery", "sha256:b"),
	}, found)
}

// values returns values of two services with their repositories and digests.
func values(texts ...any) string {
	return fmt.Sprintf("one:\n  image:\n    repository: %s\n    tag: \"\"\n    # Replaces the tag.\n    digest: %q\n"+
		"two:\n  image:\n    repository: %s\n    tag: \"\"\n    digest: %q\n", texts...)
}
