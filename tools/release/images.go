package release

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

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
