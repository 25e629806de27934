package release

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The fields of SPDX 2.3 that describe the modules of a program.
type (
	spdx struct {
		Version       string           `json:"spdxVersion"`
		License       string           `json:"dataLicense"`
		ID            string           `json:"SPDXID"`
		Name          string           `json:"name"`
		Namespace     string           `json:"documentNamespace"`
		Creation      map[string]any   `json:"creationInfo"`
		Packages      []spdxPackage    `json:"packages"`
		Relationships []spdxRelationOf `json:"relationships"`
	}
	spdxPackage struct {
		ID       string              `json:"SPDXID"`
		Name     string              `json:"name"`
		Version  string              `json:"versionInfo"`
		Download string              `json:"downloadLocation"`
		Analyzed bool                `json:"filesAnalyzed"`
		Refs     []map[string]string `json:"externalRefs"`
	}
	spdxRelationOf struct {
		From string `json:"spdxElementId"`
		Type string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	}
)

// sbom returns the SBOM of a program: the Go release and the modules that it was built from, as the program says itself.
func (r *Release) sbom(name, program string) ([]byte, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("read the modules of %s: %w", program, err)
	}

	const document, none = "SPDXRef-DOCUMENT", "NOASSERTION"

	sbom := spdx{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: document, Name: name,
		Namespace: r.Downloads + "/" + r.Version + "/" + name + ".spdx.json",
		Creation:  map[string]any{"created": r.Time.UTC().Format(time.RFC3339), "creators": []string{"Tool: make release"}},
	}
	add := func(module, version string) {
		p := spdxPackage{ID: "SPDXRef-Package-" + strconv.Itoa(len(sbom.Packages)), Name: module, Version: version, Download: none}
		p.Refs = []map[string]string{{
			"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": "pkg:golang/" + module + "@" + version,
		}}
		relation := spdxRelationOf{"SPDXRef-Package-0", "DEPENDS_ON", p.ID}

		if len(sbom.Packages) == 0 {
			relation = spdxRelationOf{document, "DESCRIBES", p.ID}
		}

		sbom.Packages, sbom.Relationships = append(sbom.Packages, p), append(sbom.Relationships, relation)
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

	content, err := json.MarshalIndent(sbom, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the SBOM of %s: %w", name, err)
	}

	return content, nil
}
