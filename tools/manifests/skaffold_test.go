package manifests_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/manifests"
)

// TestSkaffoldBuildsWhatChanged: every file that a program is made of makes skaffold build its image, and no file of another
// service does.
func TestSkaffoldBuildsWhatChanged(t *testing.T) {
	artifacts := map[string]manifests.Artifact{}

	for _, c := range skaffold(t) {
		for _, a := range c.Build.Artifacts {
			artifacts[strings.TrimPrefix(a.Image, "clusterring/")] = a
		}

		for _, p := range c.Profiles {
			for _, patch := range p.Patches {
				artifacts[strings.TrimPrefix(patch.Value.Image, "clusterring/")] = patch.Value
			}
		}
	}

	top, err := filepath.Abs(root)
	require.NoError(t, err)

	for name, main := range programs {
		a := artifacts[name]
		require.Equal(t, main, a.Ko.Main)

		files := []string{"go.work", ".ko.yaml"}
		list := exec.Command("go", "list", "-deps", "-f", `{{if not .Standard}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}
{{end}}{{range .EmbedFiles}}{{$d}}/{{.}}
{{end}}{{if .Module}}{{.Module.GoMod}}
{{end}}{{end}}`, main)
		list.Dir = root
		output, err := list.Output()
		require.NoError(t, err)

		for file := range strings.FieldsSeq(string(output)) {
			if relative, ok := strings.CutPrefix(file, top+"/"); ok {
				files = append(files, relative)
			}
		}
		require.Greater(t, len(files), 10)

		for _, file := range files {
			require.True(t, a.Watches(file), "an edit of %s does not build the image of %s anew", file, name)
		}

		for other := range programs {
			if other != name {
				require.False(t, a.Watches(strings.TrimPrefix(programs[other], "./")+"/main.go"), "an edit of %s builds the image of %s anew", other, name)
			}
		}
		require.False(t, a.Watches("pkg/shard/shard_test.go"), "an edit of a test builds the image of %s anew", name)
	}
}

// TestSkaffoldDeploysEveryOverlay: there is a profile for each, and the images that it needs are built.
func TestSkaffoldDeploysEveryOverlay(t *testing.T) {
	overlays, err := filepath.Glob(filepath.Join(root, "deploy/overlays/*"))
	require.NoError(t, err)
	configs := skaffold(t)
	config := configs[slices.IndexFunc(configs, func(c manifests.Config) bool { return c.Metadata.Name == "clusterring" })]
	built := func(more ...string) []string {
		images := more
		for _, a := range config.Build.Artifacts {
			images = append(images, a.Image)
		}

		return images
	}
	covers := func(paths, images []string) {
		for _, path := range paths {
			objects, err := manifests.Build(filepath.Join(root, path))
			require.NoError(t, err)
			in, err := manifests.Read(objects)
			require.NoError(t, err)
			require.NotEmpty(t, in.Deployments)

			for _, d := range in.Deployments {
				require.Contains(t, images, d.Spec.Template.Spec.Containers[0].Image, path)
			}
		}
	}
	covers(config.Manifests.Kustomize.Paths, built())
	require.Len(t, config.Profiles, len(overlays))

	for _, p := range config.Profiles {
		require.Equal(t, []string{"deploy/overlays/" + p.Name}, p.Manifests.Kustomize.Paths)

		var more []string

		for _, patch := range p.Patches {
			require.Equal(t, []string{"add", "/build/artifacts/-"}, []string{patch.Op, patch.Path})
			more = append(more, patch.Value.Image)
		}
		covers(p.Manifests.Kustomize.Paths, built(more...))
	}
}

func skaffold(t *testing.T) []manifests.Config {
	t.Helper()

	content, err := os.ReadFile(filepath.Join(root, "skaffold.yaml"))
	require.NoError(t, err)
	configs, err := manifests.ReadSkaffold(content)
	require.NoError(t, err)
	require.Len(t, configs, 2)

	return configs
}
