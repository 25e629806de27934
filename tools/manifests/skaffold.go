package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Config contains the fields of a skaffold.yaml document that define artifacts, their files, and the deployed directories.
type Config struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Build struct {
		Artifacts []Artifact `json:"artifacts"`
	} `json:"build"`
	Manifests ManifestPaths `json:"manifests"`
	Profiles  []struct {
		Name      string        `json:"name"`
		Manifests ManifestPaths `json:"manifests"`
		Patches   []struct {
			Op    string   `json:"op"`
			Path  string   `json:"path"`
			Value Artifact `json:"value"`
		} `json:"patches"`
	} `json:"profiles"`
}

// ManifestPaths lists the directories of kustomizations.
type ManifestPaths struct {
	Kustomize struct {
		Paths []string `json:"paths"`
	} `json:"kustomize"`
}

// Artifact is an image with its sources.
type Artifact struct {
	Image string `json:"image"`
	Ko    struct {
		Main         string `json:"main"`
		Dependencies struct {
			Paths  []string `json:"paths"`
			Ignore []string `json:"ignore"`
		} `json:"dependencies"`
	} `json:"ko"`
}

// ReadSkaffold returns the documents of a skaffold.yaml.
func ReadSkaffold(content []byte) ([]Config, error) {
	var configs []Config

	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return configs, nil
		}

		if err != nil {
			return nil, fmt.Errorf("read skaffold.yaml: %w", err)
		}

		var c Config
		if err := yaml.Unmarshal(document, &c); err != nil {
			return nil, fmt.Errorf("read skaffold.yaml: %w", err)
		}

		configs = append(configs, c)
	}
}

// Watches reports whether skaffold rebuilds the image after a change of the file. The path is relative to the root of the repository.
func (a *Artifact) Watches(file string) bool {
	match := func(pattern string) bool { return glob(pattern).MatchString(file) }
	return slices.ContainsFunc(a.Ko.Dependencies.Paths, match) && !slices.ContainsFunc(a.Ko.Dependencies.Ignore, match)
}

// glob translates a pattern to a regular expression: ** matches any number of directories, * anything within a name.
func glob(pattern string) *regexp.Regexp {
	quoted := regexp.QuoteMeta(pattern)
	quoted = strings.ReplaceAll(quoted, `\*\*/`, `(.*/)?`)
	quoted = strings.ReplaceAll(quoted, `\*\*`, `.*`)
	quoted = strings.ReplaceAll(quoted, `\*`, `[^/]*`)

	return regexp.MustCompile("^" + quoted + "$")
}
