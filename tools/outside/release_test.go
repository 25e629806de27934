package outside_test

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// version is a version that nobody has released.
const version = "v0.99.1-rc.1"

// downloads is where a release says that its files are.
const downloads = "https://github.com/clusterring/clusterring/releases/download/" + version + "/"

// TestRelease makes the release of a commit, and then makes it again elsewhere.
func TestRelease(t *testing.T) {
	first, second := newCheckout(t), newCheckout(t)

	first.refused(version, "CHANGELOG.md has no section")

	for _, c := range []checkout{first, second} {
		c.change("CHANGELOG.md", "\n## [0.99.1-rc.1] - 2026-01-02\n\nA test.\n\n[0.99.1-rc.1]: https://example.org\n")
	}

	first.refused(version, "commit everything first")

	for _, c := range []checkout{first, second} {
		c.git("commit", "--quiet", "--all", "--message", "docs: what is new")
	}

	first.refused("0.99.1", "is not a version")
	first.refused("v2.0.0", "is not a version")

	before := first.git("rev-parse", "HEAD")

	out, err := first.release(version)
	require.NoError(t, err, out)

	tags := first.tags(t)
	for _, tag := range tags {
		require.Contains(t, out, "refs/tags/"+tag, "how to push it")
	}

	require.Equal(t, before, first.git("rev-parse", "HEAD"), "the branch is as before")
	require.Equal(t, before, first.git("rev-parse", version+"^{commit}"))
	require.Equal(t, before, first.git("rev-parse", "pkg/"+version+"~1"))
	first.refused(version, "tag "+version+" exists")

	out, err = second.release(version, "DRY_RUN=1")
	require.NoError(t, err, out)
	require.Empty(t, second.git("tag"))

	sums := first.read("checksums.txt")

	t.Run("Reproducible", func(t *testing.T) { require.Equal(t, sums, second.read("checksums.txt")) })
	t.Run("Checksums", func(t *testing.T) { checksums(t, first, sums) })
	t.Run("Krew", func(t *testing.T) { krew(t, first) })
	t.Run("Manifests", func(t *testing.T) { installs(t, first) })
	t.Run("SBOM", func(t *testing.T) { describes(t, first) })
	t.Run("Others", func(t *testing.T) { others(t, first) })
	require.Equal(t, "\nA test.\n\n", first.read("notes.md"))
}

// checksums verifies that each file is listed with its digest.
func checksums(t *testing.T, c checkout, sums string) {
	t.Helper()

	files, err := filepath.Glob(filepath.Join(c.dir, "dist", "release", "*"))
	require.NoError(t, err)
	require.Len(t, strings.Split(strings.TrimSpace(sums), "\n"), len(files)-1, "all files but the list")

	for line := range strings.Lines(sums) {
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		require.True(t, ok, line)
		require.Equal(t, digest(c.read(name)), sum, name)
	}
}

// plugin has the fields of a manifest that krew documents.
type plugin struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Spec       struct {
		Version          string `json:"version"`
		Homepage         string `json:"homepage"`
		ShortDescription string `json:"shortDescription"`
		Description      string `json:"description"`
		Caveats          string `json:"caveats"`
		Platforms        []struct {
			Selector struct {
				MatchLabels map[string]string `json:"matchLabels"`
			} `json:"selector"`
			URI    string     `json:"uri"`
			SHA256 string     `json:"sha256"`
			Files  []krewFile `json:"files"`
			Bin    string     `json:"bin"`
		} `json:"platforms"`
	} `json:"spec"`
}

type krewFile struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// krew does what krew does with the manifest: it finds the archive of a platform, verifies it, and finds the files in it.
func krew(t *testing.T, c checkout) {
	t.Helper()

	var p plugin

	manifest, err := yaml.YAMLToJSONStrict([]byte(c.read("ring.yaml")))
	require.NoError(t, err)
	unknown, err := kjson.UnmarshalStrict(manifest, &p)
	require.NoError(t, err)
	require.Empty(t, unknown)
	require.Equal(t, "krew.googlecontainertools.github.com/v1alpha2 Plugin ring "+version, strings.Join([]string{p.APIVersion, p.Kind, p.Metadata["name"], p.Spec.Version}, " "))
	require.LessOrEqual(t, len(p.Spec.ShortDescription), 50, "krew shows it in a line")
	require.NotEmpty(t, p.Spec.Description)

	var found []string

	for _, platform := range p.Spec.Platforms {
		labels := platform.Selector.MatchLabels
		require.Len(t, labels, 2)

		found = append(found, labels["os"]+"/"+labels["arch"])
		name, ok := strings.CutPrefix(platform.URI, downloads)
		require.True(t, ok, platform.URI)
		require.Equal(t, digest(c.read(name)), platform.SHA256)

		modes := unpack(t, filepath.Join(c.dir, "dist", "release", name))
		for _, file := range platform.Files {
			require.Contains(t, modes, file.From)
			delete(modes, file.From)
		}

		require.Empty(t, modes, "files that krew would not install")
		require.Contains(t, platform.Files, krewFile{platform.Bin, "."})
	}

	require.Equal(t, platforms, found)
}

// unpack returns the modes of the files in an archive, the program of which is executable.
func unpack(t *testing.T, name string) map[string]os.FileMode {
	t.Helper()

	modes := map[string]os.FileMode{}

	file, err := os.Open(name)
	require.NoError(t, err)

	defer file.Close()

	compressed, err := gzip.NewReader(file)
	require.NoError(t, err)

	archive := tar.NewReader(compressed)
	for {
		header, err := archive.Next()
		if err == io.EOF {
			break
		}

		require.NoError(t, err)
		require.Zero(t, header.Uid+header.Gid)
		require.Empty(t, header.Uname+header.Gname, "whoever made it")

		modes[header.Name] = header.FileInfo().Mode()
	}

	for name, mode := range modes {
		require.Equal(t, strings.HasPrefix(name, "kubectl-ring"), mode == 0o755, "%s: %s", name, mode)
	}

	return modes
}

// installs verifies that every manifest refers to images by the digests that the SBOMs name.
func installs(t *testing.T, c checkout) {
	t.Helper()

	for name, images := range map[string][]string{
		"crds.yaml": nil, "install.yaml": {"assigner", "leasemonitor", "rebalancer", "ringquery"}, "example.yaml": {"example"},
	} {
		var found []string

		for document := range strings.SplitSeq(c.read(name), "\n---\n") {
			var object struct {
				Spec struct {
					Template struct {
						Spec struct{ Containers []struct{ Image string } }
					}
				}
			}
			require.NoError(t, yaml.Unmarshal([]byte(document), &object))

			for _, container := range object.Spec.Template.Spec.Containers {
				found = append(found, container.Image)
			}
		}

		for i, image := range images {
			images[i] = "clusterring/" + image + "@sha256:" + digest(image)
		}

		require.ElementsMatch(t, images, found, name)
	}
}

// describes verifies that the SBOM of an archive lists the modules of the plugin.
func describes(t *testing.T, c checkout) {
	t.Helper()

	var sbom struct {
		SPDXVersion string
		Packages    []struct{ Name, VersionInfo string }
	}
	require.NoError(t, json.Unmarshal([]byte(c.read("kubectl-ring_"+version+"_"+strings.ReplaceAll(native, "/", "_")+".spdx.json")), &sbom))
	require.Equal(t, "SPDX-2.3", sbom.SPDXVersion)

	versions := map[string]string{}
	for _, p := range sbom.Packages {
		versions[p.Name] = p.VersionInfo
	}

	require.Equal(t, version, versions[repository+"pkg"])
	require.Equal(t, version, versions[repository+"tools/kubectl-ring"])
	require.Equal(t, strings.TrimPrefix(runtime.Version(), "go"), versions["stdlib"])

	for _, r := range parse(t, "tools/kubectl-ring").Require {
		if r.Mod.Path == "k8s.io/client-go" {
			require.Equal(t, r.Mod.Version, versions[r.Mod.Path])
		}
	}
}

// native is the platform that the test builds the plugin for. Another one takes minutes of CPU; make test-release builds all.
var (
	native    = runtime.GOOS + "/" + runtime.GOARCH
	platforms = []string{native}
)
