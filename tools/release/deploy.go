package release

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/clusterring/clusterring/tools/manifests"
)

// What a release changes: in manifests, the names of images; in the values of the chart, their names and digests; its versions.
var (
	image      = regexp.MustCompile(`(?m)(\bimage: )clusterring/([a-z-]+)$`)
	imageValue = regexp.MustCompile(`(?s)(\brepository: )clusterring/([a-z-]+)(\n.*?\bdigest: )""`)
	version    = regexp.MustCompile(`(?m)^version: .*$`)
	appVersion = regexp.MustCompile(`(?m)^appVersion: .*$`)
)

// development is the only overlay that nobody should install from a release.
const development = "development"

// manifests writes what kubectl apply takes, one file for each overlay and example.
func (r *Release) manifests(digests map[string]string) error {
	files := map[string]string{"crds.yaml": "deploy/base/crd", "install.yaml": "deploy/base"}

	for prefix, pattern := range map[string]string{"install-": "deploy/overlays/*", "": "deploy/example*"} {
		found, err := filepath.Glob(filepath.Join(r.Root, pattern))
		if err != nil || len(found) == 0 {
			return fmt.Errorf("there is no %s: %w", pattern, err)
		}

		for _, dir := range found {
			if name := filepath.Base(dir); name != development {
				files[prefix+name+".yaml"] = path.Join(path.Dir(pattern), name)
			}
		}
	}

	for name, dir := range files {
		text, err := manifests.Text(filepath.Join(r.Root, dir))
		if err != nil {
			return fmt.Errorf("build %s: %w", name, err)
		}

		content, err := r.pinned(text, digests)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}

		content = fmt.Sprintf("# ClusterRing %s, %s. To install it: kubectl apply -f %s\n%s", r.Version, dir, name, content)
		if err := r.write(name, []byte(content)); err != nil {
			return err
		}
	}

	return nil
}

// pinned refers to images by digest.
func (r *Release) pinned(text string, digests map[string]string) (string, error) {
	var missing error

	pinned := image.ReplaceAllStringFunc(text, func(found string) string {
		parts := image.FindStringSubmatch(found)

		digest, ok := digests[parts[2]]
		if !ok {
			missing = fmt.Errorf("there is no image %s", parts[2])
		}

		return parts[1] + r.Repo + "/" + parts[2] + "@" + digest
	})

	return pinned, missing
}

// chartDir is the directory of the chart.
const chartDir = "charts/clusterring"

// chart packs the chart, if there is one, as helm package does. Its values name the images of the release.
func (r *Release) chart(digests map[string]string) error {
	root := filepath.Join(r.Root, chartDir)
	if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	number := strings.TrimPrefix(r.Version, "v")

	var entries []entry

	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			return err
		}

		content, err := os.ReadFile(name)
		if err != nil {
			return err //nolint:wrapcheck // wrapped below
		}

		relative, err := filepath.Rel(root, name)
		if err != nil {
			return err //nolint:wrapcheck // wrapped below
		}

		switch relative {
		case "Chart.yaml":
			content = appVersion.ReplaceAll(version.ReplaceAll(content, []byte("version: "+number)), []byte("appVersion: "+r.Version))
		case "values.yaml":
			content = imageValue.ReplaceAllFunc(content, func(found []byte) []byte {
				parts := imageValue.FindSubmatch(found)
				service := string(parts[2])

				return fmt.Appendf(nil, "%s%s/%s%s%q", parts[1], r.Repo, service, parts[3], digests[service])
			})
		}

		entries = append(entries, entry{path.Join(path.Base(chartDir), filepath.ToSlash(relative)), 0o644, content})

		return nil
	})
	if err != nil {
		return fmt.Errorf("read the chart: %w", err)
	}

	packed, err := targz(entries, r.Time)
	if err != nil {
		return fmt.Errorf("pack the chart: %w", err)
	}

	return r.write(path.Base(chartDir)+"-"+number+".tgz", packed)
}
