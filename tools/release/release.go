// Package release packs the files of a release from what make has built: archives, manifests, SBOMs, and their
// checksums. The same input results in the same bytes, whenever and wherever it is packed.
package release

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
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
	"strconv"
	"strings"
	"testing/fstest"
	"text/template"
	"time"

	"github.com/clusterring/clusterring/tools/manifests"
)

// Release describes what to pack.
type Release struct {
	// Root is the directory of the repository.
	Root string
	// Version is that of the release, such as v1.2.3.
	Version string
	// Time is the time of the commit. All files of archives have it.
	Time time.Time
	// Plugins is the directory of the kubectl plugin for each platform: OS_ARCH/kubectl-ring.
	Plugins string
	// Images is the directory that ko writes the SBOMs of images to.
	Images string
	// Layout is the OCI layout with the images. Empty: they are in a registry.
	Layout string
	// Repo is the prefix of the names of images.
	Repo string
	// Downloads is the URL below which releases are published.
	Downloads string
	// Out is the directory of the results.
	Out string
}

// asset is a file that a release offers.
type asset struct{ OS, Arch, Name, Bin, SHA256 string }

// Pack writes all files of the release to r.Out.
func (r *Release) Pack() error {
	digests, sboms, err := r.readSBOMs()
	if err != nil {
		return err
	}

	plugins, err := r.plugins()
	if err != nil {
		return err
	}

	k9s, err := os.ReadFile(filepath.Join(r.Root, "plugins/k9s/plugins.yaml"))
	if err != nil {
		return fmt.Errorf("read the plugins of k9s: %w", err)
	}

	return errors.Join(r.krew(plugins), r.write("k9s-plugins.yaml", k9s), r.images(digests, sboms), r.manifests(digests),
		r.chart(digests), r.checksums())
}

// plugins packs the kubectl plugin, once for each platform, each with its SBOM.
func (r *Release) plugins() ([]asset, error) {
	binaries, err := filepath.Glob(filepath.Join(r.Plugins, "*_*", "kubectl-ring*"))
	if err != nil || len(binaries) == 0 {
		return nil, fmt.Errorf("there is no kubectl-ring in %s: %w", r.Plugins, err)
	}

	license, err := os.ReadFile(filepath.Join(r.Root, "LICENSE"))
	if err != nil {
		return nil, fmt.Errorf("read the license: %w", err)
	}

	assets := make([]asset, 0, len(binaries))

	for _, binary := range binaries {
		content, err := os.ReadFile(binary)
		if err != nil {
			return nil, fmt.Errorf("read the plugin: %w", err)
		}

		platform := filepath.Base(filepath.Dir(binary))
		a := asset{Name: "kubectl-ring_" + r.Version + "_" + platform, Bin: filepath.Base(binary)}
		a.OS, a.Arch, _ = strings.Cut(platform, "_")

		sbom, err := r.sbom(a.Name, binary)
		if err != nil {
			return nil, err
		}

		if err := r.write(a.Name+".spdx.json", sbom); err != nil {
			return nil, err
		}

		packed, err := targz(fstest.MapFS{"LICENSE": r.file(license, 0o644), a.Bin: r.file(content, 0o755)})
		if err != nil {
			return nil, fmt.Errorf("pack the plugin: %w", err)
		}

		a.Name += ".tar.gz"
		a.SHA256 = fmt.Sprintf("%x", sha256.Sum256(packed))

		if err := r.write(a.Name, packed); err != nil {
			return nil, err
		}

		assets = append(assets, a)
	}

	return assets, nil
}

// file returns a file of an archive. It says nothing about the machine or the user.
func (r *Release) file(content []byte, mode fs.FileMode) *fstest.MapFile {
	return &fstest.MapFile{Data: content, Mode: mode, ModTime: r.Time}
}

func targz(files fs.FS) ([]byte, error) {
	var b bytes.Buffer

	compressed := gzip.NewWriter(&b)
	archive := tar.NewWriter(compressed)
	err := errors.Join(archive.AddFS(files), archive.Close(), compressed.Close())

	return b.Bytes(), err
}

// sbom returns the SBOM of a program in the format SPDX 2.3: the Go release and the modules that it was built from, as
// the program says itself.
func (r *Release) sbom(name, program string) ([]byte, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("read the modules of %s: %w", program, err)
	}

	type list = []map[string]any

	var packages, relations list

	add := func(module, version string) {
		from, kind, id := "SPDXRef-Package-0", "DEPENDS_ON", "SPDXRef-Package-"+strconv.Itoa(len(packages))
		if len(packages) == 0 {
			from, kind = "SPDXRef-DOCUMENT", "DESCRIBES"
		}

		packages = append(packages, map[string]any{
			"SPDXID": id, "name": module, "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
			"externalRefs": list{{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
				"referenceLocator": "pkg:golang/" + module + "@" + version}},
		})
		relations = append(relations, map[string]any{
			"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": id,
		})
	}

	add(info.Main.Path, r.Version)
	add("stdlib", strings.TrimPrefix(info.GoVersion, "go"))

	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}

		if m.Version == "(devel)" { // a module of this repository
			m.Version = r.Version
		}

		add(m.Path, m.Version)
	}

	return json.MarshalIndent(map[string]any{ //nolint:wrapcheck // strings can be encoded
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
		"documentNamespace": r.Downloads + "/" + r.Version + "/" + name + ".spdx.json",
		"creationInfo": map[string]any{"created": r.Time.UTC().Format(time.RFC3339),
			"creators": []string{"Tool: make release"}},
		"packages": packages, "relationships": relations,
	}, "", "  ")
}

// krew fills the manifest of the plugin for krew, which is a template.
func (r *Release) krew(plugins []asset) error {
	manifest, err := template.ParseFiles(filepath.Join(r.Root, "plugins/krew/ring.yaml"))
	if err != nil {
		return fmt.Errorf("read the manifest for krew: %w", err)
	}

	var b bytes.Buffer
	if err := manifest.Execute(&b, map[string]any{"Version": r.Version, "URL": r.Downloads + "/" + r.Version,
		"Plugins": plugins}); err != nil {
		return fmt.Errorf("fill the manifest for krew: %w", err)
	}

	return r.write("ring.yaml", b.Bytes())
}

// checksums lists the digests of all files, as sha256sum does.
func (r *Release) checksums() error {
	entries, err := os.ReadDir(r.Out)
	if err != nil {
		return fmt.Errorf("list the files: %w", err)
	}

	var b bytes.Buffer

	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}

		content, err := os.ReadFile(filepath.Join(r.Out, e.Name()))
		if err != nil {
			return fmt.Errorf("read what was packed: %w", err)
		}

		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(content), e.Name())
	}

	return r.write("checksums.txt", b.Bytes())
}

func (r *Release) write(name string, content []byte) error {
	if err := os.WriteFile(filepath.Join(r.Out, name), content, 0o644); err != nil { //nolint:gosec // everybody may read it
		return fmt.Errorf("write %s: %w", name, err)
	}

	return nil
}

// What a release changes: in manifests, the names of images; in the values of the chart, their names and digests; its
// versions.
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

// chartName is the name of the chart and of its directory.
const chartName = "clusterring"

// chart packs the chart, as helm package does. Its values name the images of the release.
func (r *Release) chart(digests map[string]string) error {
	charts, number := os.DirFS(filepath.Join(r.Root, "charts")), strings.TrimPrefix(r.Version, "v")
	files := fstest.MapFS{}

	err := fs.WalkDir(charts, chartName, func(name string, d fs.DirEntry, err error) error {
		if err != nil || strings.HasPrefix(d.Name(), ".") {
			return err
		}

		if d.IsDir() {
			files[name] = r.file(nil, fs.ModeDir|0o755)
			return nil
		}

		content, err := fs.ReadFile(charts, name)

		switch name {
		case chartName + "/Chart.yaml":
			content = appVersion.ReplaceAll(version.ReplaceAll(content, []byte("version: "+number)),
				[]byte("appVersion: "+r.Version))
		case chartName + "/values.yaml":
			content = imageValue.ReplaceAllFunc(content, func(found []byte) []byte {
				parts := imageValue.FindSubmatch(found)
				service := string(parts[2])

				return fmt.Appendf(nil, "%s%s/%s%s%q", parts[1], r.Repo, service, parts[3], digests[service])
			})
		}

		files[name] = r.file(content, 0o644)

		return err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return fmt.Errorf("read the chart: %w", err)
	}

	packed, err := targz(files)
	if err != nil {
		return fmt.Errorf("pack the chart: %w", err)
	}

	return r.write(chartName+"-"+number+".tgz", packed)
}

// ko names the SBOM of an image NAME-index, if it is for several platforms, and those of its platforms NAME-OS-ARCH.
// Each says in its own name which digest it describes.
var (
	sbomFile = regexp.MustCompile(`^(.+)-(index|linux-.+)\.spdx\.json$`)
	sbomName = regexp.MustCompile(`"name": *"sbom-(sha256:[0-9a-f]{64})"`)
)

// readSBOMs returns the digest of each image, and the SBOMs of images by the names that they have in the release.
func (r *Release) readSBOMs() (digests map[string]string, sboms map[string][]byte, err error) {
	files, err := filepath.Glob(filepath.Join(r.Images, "*.spdx.json"))
	if err != nil {
		return nil, nil, fmt.Errorf("list SBOMs: %w", err)
	}

	digests, sboms = map[string]string{}, map[string][]byte{}

	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, fmt.Errorf("read an SBOM: %w", err)
		}

		of, digest := sbomFile.FindStringSubmatch(filepath.Base(file)), sbomName.FindSubmatch(content)
		if of == nil || digest == nil {
			return nil, nil, fmt.Errorf("%s does not name its image", file)
		}

		if digests[of[1]] == "" || of[2] == "index" {
			digests[of[1]] = string(digest[1])
		}

		sboms[of[1]+"_"+r.Version+"_"+strings.ReplaceAll(of[2], "-", "_")+".spdx.json"] = content
	}

	return digests, sboms, nil
}

// images lists the images, and copies their SBOMs. In an OCI layout, each gets its name.
func (r *Release) images(digests map[string]string, sboms map[string][]byte) error {
	var list bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(digests)) {
		fmt.Fprintf(&list, "%s/%s@%s\n", r.Repo, name, digests[name])
	}

	if err := r.write("images.txt", list.Bytes()); err != nil {
		return err
	}

	for name, content := range sboms {
		if err := r.write(name, content); err != nil {
			return err
		}
	}

	if r.Layout == "" {
		return nil
	}

	return nameLayout(filepath.Join(r.Layout, "index.json"), digests)
}

// nameLayout writes the name of each image to the index of a layout, as the image specification of the OCI defines it,
// and sorts them.
func nameLayout(file string, digests map[string]string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the layout: %w", err)
	}

	names := map[string]string{}
	for name, digest := range digests {
		names[digest] = name
	}

	var (
		index  map[string]any
		images struct{ Manifests []map[string]any }
	)

	if err := errors.Join(json.Unmarshal(content, &index), json.Unmarshal(content, &images)); err != nil {
		return fmt.Errorf("read the layout: %w", err)
	}

	name := func(image map[string]any) string { return names[fmt.Sprint(image["digest"])] }

	slices.SortFunc(images.Manifests, func(a, b map[string]any) int { return cmp.Compare(name(a), name(b)) })

	for _, image := range images.Manifests {
		if name(image) != "" {
			image["annotations"] = map[string]string{"org.opencontainers.image.ref.name": name(image)}
		}
	}

	index["manifests"] = images.Manifests

	content, err = json.MarshalIndent(index, "", "  ")
	if err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}

	if err := os.WriteFile(file, content, 0o644); err != nil { //nolint:gosec // everybody may read it
		return fmt.Errorf("write the layout: %w", err)
	}

	return nil
}
