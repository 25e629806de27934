package release

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing/fstest"

	"github.com/clusterring/clusterring/tools/manifests"
)

// What a release changes: in manifests, the names of images; in the values of the chart, their names and digests; its versions.
var (
	image      = regexp.MustCompile(`(?m)(\bimage: )clusterring/([a-z-]+)$`)
	imageValue = regexp.MustCompile(`(?s)(\brepository: )clusterring/([a-z-]+)(\n.*?\bdigest: )""`)
	version    = regexp.MustCompile(`(?m)^version: .*$`)
	appVersion = regexp.MustCompile(`(?m)^appVersion: .*$`)
)

// manifests writes what kubectl apply takes: the base, and each example.
func (r *Release) manifests(digests map[string]string) error {
	files := map[string]string{"crds.yaml": "deploy/base/crd", "install.yaml": "deploy/base"}

	examples, err := filepath.Glob(filepath.Join(r.Root, "deploy/example*"))
	if err != nil || len(examples) == 0 {
		return fmt.Errorf("there is no example: %w", err)
	}

	for _, dir := range examples {
		files[filepath.Base(dir)+".yaml"] = path.Join("deploy", filepath.Base(dir))
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

	files := fstest.MapFS{}

	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || strings.HasPrefix(d.Name(), ".") {
			return err
		}

		relative, err := filepath.Rel(filepath.Dir(root), name)
		if err != nil {
			return err //nolint:wrapcheck // wrapped below
		}

		if d.IsDir() {
			files[filepath.ToSlash(relative)] = r.file(nil, fs.ModeDir|0o755)
			return nil
		}

		content, err := os.ReadFile(name)
		if err != nil {
			return err //nolint:wrapcheck // wrapped below
		}

		switch name {
		case filepath.Join(root, "Chart.yaml"):
			content = appVersion.ReplaceAll(version.ReplaceAll(content, []byte("version: "+number)), []byte("appVersion: "+r.Version))
		case filepath.Join(root, "values.yaml"):
			content = imageValue.ReplaceAllFunc(content, func(found []byte) []byte {
				parts := imageValue.FindSubmatch(found)
				service := string(parts[2])

				return fmt.Appendf(nil, "%s%s/%s%s%q", parts[1], r.Repo, service, parts[3], digests[service])
			})
		}

		files[filepath.ToSlash(relative)] = r.file(content, 0o644)

		return nil
	})
	if err != nil {
		return fmt.Errorf("read the chart: %w", err)
	}

	packed, err := targz(files)
	if err != nil {
		return fmt.Errorf("pack the chart: %w", err)
	}

	return r.write(path.Base(chartDir)+"-"+number+".tgz", packed)
}

// ko names the SBOM of an image NAME-index, if it is for several platforms, and those of its platforms NAME-OS-ARCH. Each says in its own
// name which digest it describes.
var (
	sbomFile = regexp.MustCompile(`^(.+)-(index|linux-.+)\.spdx\.json$`)
	sbomName = regexp.MustCompile(`"name": *"sbom-(sha256:[0-9a-f]{64})"`)
)

// digests returns the digest of each image.
func digests(dir string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.spdx.json"))
	if err != nil {
		return nil, fmt.Errorf("list SBOMs: %w", err)
	}

	found := map[string]string{}

	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read an SBOM: %w", err)
		}

		of, digest := sbomFile.FindStringSubmatch(filepath.Base(file)), sbomName.FindSubmatch(content)
		if of == nil || digest == nil {
			return nil, fmt.Errorf("%s does not name its image", file)
		}

		if found[of[1]] == "" || of[2] == "index" {
			found[of[1]] = string(digest[1])
		}
	}

	return found, nil
}

// images lists the images, and copies their SBOMs. In an OCI layout, each gets its name.
func (r *Release) images(digests map[string]string) error {
	var list bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(digests)) {
		fmt.Fprintf(&list, "%s/%s@%s\n", r.Repo, name, digests[name])
	}

	if err := r.write("images.txt", list.Bytes()); err != nil {
		return err
	}

	files, err := filepath.Glob(filepath.Join(r.Images, "*.spdx.json"))
	if err != nil {
		return fmt.Errorf("list SBOMs: %w", err)
	}

	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read an SBOM: %w", err)
		}

		of := sbomFile.FindStringSubmatch(filepath.Base(file))
		if err := r.write(of[1]+"_"+r.Version+"_"+strings.ReplaceAll(of[2], "-", "_")+".spdx.json", content); err != nil {
			return err
		}
	}

	if r.Layout == "" {
		return nil
	}

	return nameLayout(filepath.Join(r.Layout, "index.json"), digests)
}

// nameLayout writes the name of each image to the index of a layout, as the image specification of the OCI defines it, and sorts them.
func nameLayout(file string, digests map[string]string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the layout: %w", err)
	}

	names := map[string]string{}
	for name, digest := range digests {
		names[digest] = name
	}

	var index map[string]any
	if err := json.Unmarshal(content, &index); err != nil {
		return fmt.Errorf("read the layout: %w", err)
	}

	images, _ := index["manifests"].([]any)
	digest := func(image any) string {
		fields, _ := image.(map[string]any)
		digest, _ := fields["digest"].(string)

		return digest
	}

	slices.SortFunc(images, func(a, b any) int { return cmp.Compare(names[digest(a)], names[digest(b)]) })

	for _, image := range images {
		if fields, ok := image.(map[string]any); ok && names[digest(image)] != "" {
			fields["annotations"] = map[string]string{"org.opencontainers.image.ref.name": names[digest(image)]}
		}
	}

	content, err = json.MarshalIndent(index, "", "  ")
	if err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}

	if err := os.WriteFile(file, content, 0o644); err != nil { //nolint:gosec // everybody may read it
		return fmt.Errorf("write the layout: %w", err)
	}

	return nil
}
