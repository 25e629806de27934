package manifests_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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

// TestSkaffoldDeploysEveryOverlay: the images are built that the base needs, alone and with each component, and those
// that each overlay needs, which has a profile.
func TestSkaffoldDeploysEveryOverlay(t *testing.T) {
	overlays, err := filepath.Glob(filepath.Join(root, "deploy/overlays/*"))
	require.NoError(t, err)
	components, err := filepath.Glob(filepath.Join(root, "deploy/components/*"))
	require.NoError(t, err)
	require.NotEmpty(t, components)

	configs := skaffold(t)
	config := configs[slices.IndexFunc(configs, func(c manifests.Config) bool { return c.Metadata.Name == "clusterring" })]
	require.Equal(t, []string{"deploy/base"}, config.Manifests.Kustomize.Paths)
	require.Len(t, config.Profiles, len(overlays))

	var base []string
	for _, a := range config.Build.Artifacts {
		base = append(base, a.Image)
	}

	objects, err := manifests.Combine(root, nil)
	requireImages(t, base, objects, err)

	for _, component := range components {
		objects, err := manifests.Combine(root, nil, filepath.Base(component))
		requireImages(t, base, objects, err)
	}

	for _, p := range config.Profiles {
		require.Equal(t, []string{"deploy/overlays/" + p.Name}, p.Manifests.Kustomize.Paths)

		images := slices.Clone(base)

		for _, patch := range p.Patches {
			require.Equal(t, []string{"add", "/build/artifacts/-"}, []string{patch.Op, patch.Path})
			images = append(images, patch.Value.Image)
		}

		objects, err := manifests.Build(filepath.Join(root, "deploy/overlays", p.Name))
		requireImages(t, images, objects, err)
	}
}

// requireImages requires that the Deployments have no other images than the given ones.
func requireImages(t *testing.T, images []string, objects []*unstructured.Unstructured, err error) {
	t.Helper()
	require.NoError(t, err)
	in, err := manifests.Read(objects)
	require.NoError(t, err)
	require.NotEmpty(t, in.Deployments)

	for _, d := range in.Deployments {
		require.Contains(t, images, d.Spec.Template.Spec.Containers[0].Image)
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
