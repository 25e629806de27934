// Package chart generates the Helm chart of charts/clusterring from deploy/base and deploy/components, so that both install the same.
//
// [Generate] builds the base, and the base with each component. In the objects, it replaces what values.yaml of this package names by
// expressions of values, and keeps what was there as the default. What a component adds to the base or takes away becomes conditional on the
// value enabled of the component: line by line, as diff --ifdef merges two files. Two components may add to the same place, in alphabetical
// order, but may not change the same line. A new component needs a value enabled in values.yaml.
//
// The tests render the chart with Helm, and compare the result with what kustomize builds. They install, upgrade, and remove the chart on a
// control plane.
package chart

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/clusterring/clusterring/tools/manifests"
)

// namespace is that of deploy/base. In the chart, the namespace of the release replaces it.
const namespace = "sharding-system"

// Generated begins each generated template.
const Generated = "# Generated from deploy/ by make generate-chart.\n"

// Components returns the names of the optional parts in deploy/components, sorted.
func Components(root string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(root, "deploy/components"))
	if err != nil {
		return nil, fmt.Errorf("list components: %w", err)
	}

	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}

	return names, nil
}

// Value returns the name of the value of a component: networkPolicies for network-policies.
func Value(component string) string {
	words := strings.Split(component, "-")
	for i := 1; i < len(words); i++ {
		words[i] = strings.ToUpper(words[i][:1]) + words[i][1:]
	}

	return strings.Join(words, "")
}

// Generate returns the generated files of the chart, by their paths in it. The README is the present one with a new table.
func Generate(root string) (map[string]string, error) {
	g := &generator{defaults: map[string]any{}, tokens: map[string]string{}}

	templates, err := g.templates(root)
	if err != nil {
		return nil, err
	}

	files, err := g.values(filepath.Join(root, "tools/chart/values.yaml"))
	if err != nil {
		return nil, err
	}

	for name, content := range templates {
		files["templates/"+name+".yaml"] = Generated + content
	}

	readme, err := os.ReadFile(filepath.Join(root, "charts/clusterring/README.md"))
	if err != nil {
		return nil, fmt.Errorf("read the README of the chart: %w", err)
	}

	const begin, end = "<!-- values -->\n", "<!-- end of values -->\n"

	before, rest, found := strings.Cut(string(readme), begin)

	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		return nil, fmt.Errorf("the README of the chart has no %q and %q", begin, end)
	}

	files["README.md"] = before + begin + files["README.md"] + end + after

	return files, nil
}

// generator replaces parts of objects by tokens, which are lines of their own when the objects are printed, and these by templates.
type generator struct {
	// defaults contains what was in the objects, by the path of the value that replaced it.
	defaults map[string]any
	// tokens contains the token of each template.
	tokens map[string]string
}

// document is one object as the base has it, or the component that adds it, and what components make of it.
type document struct {
	file, condition string
	lines           []string
	variants        []variant
}

// variant is what an object looks like under a condition.
type variant struct {
	condition string
	lines     []string
}

func (g *generator) templates(root string) (map[string]string, error) {
	components, err := Components(root)
	if err != nil {
		return nil, err
	}

	var documents []*document

	index := map[string]*document{}

	for i, component := range append([]string{""}, components...) {
		objects, err := manifests.Combine(root, nil, components[max(0, i-1):i]...)
		if err != nil {
			return nil, err
		}

		for _, o := range objects {
			key := o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()

			file, condition := place(o, component)
			g.parametrize(o)

			lines, err := lines(o)
			if err != nil {
				return nil, err
			}

			if d := index[key]; d != nil {
				d.variants = append(d.variants, variant{enabled(component), lines})
				continue
			}

			index[key] = &document{file: file, condition: condition, lines: lines}
			documents = append(documents, index[key])
		}
	}

	files := map[string]string{}

	for _, d := range documents {
		text, err := merge(d.lines, d.variants)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.file, err)
		}

		files[d.file] += "---\n" + guarded(d.condition, g.expand(text))
	}

	return files, nil
}

// lines prints an object as lines of a template.
func lines(o *unstructured.Unstructured) ([]string, error) {
	content, err := yaml.Marshal(o.Object)
	if err != nil {
		return nil, fmt.Errorf("print %s %s: %w", o.GetKind(), o.GetName(), err)
	}

	text := strings.ReplaceAll(string(content), "{{", `{{ "{{" }}`)
	if o.GetKind() != "CustomResourceDefinition" { // its descriptions are those of the API
		text = strings.ReplaceAll(text, ": "+namespace+"\n", ": {{ .Release.Namespace | quote }}\n")
		text = strings.ReplaceAll(text, namespace, "{{ .Release.Namespace }}")
	}

	return slices.Collect(strings.Lines(text)), nil
}

// enabled is the condition of a component.
func enabled(component string) string { return ".Values." + Value(component) + ".enabled" }

// guarded returns text that exists if the condition holds.
func guarded(condition, text string) string {
	if condition == "" || text == "" {
		return text
	}

	return "{{- if " + condition + " }}\n" + text + "{{- end }}\n"
}

// place returns the file of an object of the base or of a component, and the condition on which it exists.
func place(o *unstructured.Unstructured, component string) (file, condition string) {
	service := o.GetLabels()["app.kubernetes.io/name"]

	switch kind := o.GetKind(); {
	case kind == "CustomResourceDefinition":
		return "crds", ".Values.crds.enabled"
	case kind == "Namespace":
		return "namespace", ".Values.namespace.create"
	case kind == "ResourceQuota":
		return "namespace", "and .Values.quota.enabled .Values.priorityClassName"
	case strings.HasPrefix(kind, "ValidatingAdmissionPolicy") && strings.HasPrefix(o.GetName(), "rings."):
		return "crds", "and .Values.crds.enabled .Values.policies.services" // it is part of base/crd, which may be installed without the chart
	case strings.HasPrefix(kind, "ValidatingAdmissionPolicy"):
		name, _, _ := strings.Cut(o.GetName(), ".")
		return "policies", ".Values.policies." + policyValue(name)
	case kind == "FlowSchema":
		return "flow-schemas", ""
	case kind == "PodDisruptionBudget":
		return service, ".Values." + service + ".podDisruptionBudget.enabled"
	case component == "":
		return service, ""
	case kind == "Issuer" || kind == "Certificate" && service == "":
		return component, "and " + enabled(component) + " (not .Values.certManager.issuerRef)" // the CA
	default:
		return component, enabled(component)
	}
}

// policyValue returns the value that switches a policy.
func policyValue(name string) string {
	switch name {
	case "fence", "removal":
		return name
	case "ring-rights":
		return "removal"
	case "ring-shards", "shard-leases":
		return "shardLeases"
	default:
		return "services"
	}
}

// tokenLine matches a line with a token: as a value, as an item, or as a key.
var tokenLine = regexp.MustCompile(`(?m)^( *)(.*?)(zz\d+zz)(?:: "")?$`)

// ownLines matches templates that bring their own lines.
var ownLines = regexp.MustCompile(`^{{- (if|range|with) `)

// token returns a string that stands for a template. As a key, it is the last one of a map.
func (g *generator) token(template string) string {
	if g.tokens[template] == "" {
		g.tokens[template] = "zz" + strconv.Itoa(len(g.tokens)) + "zz"
	}

	return g.tokens[template]
}

// expand replaces tokens by their templates. In a template, <in> is the indentation of the line, <at> its number of spaces, and <below> two more.
func (g *generator) expand(text string) string {
	templates := map[string]string{}
	for template, token := range g.tokens {
		templates[token] = template
	}

	return tokenLine.ReplaceAllStringFunc(text, func(line string) string {
		m := tokenLine.FindStringSubmatch(line)
		before, at := m[1]+m[2], len(m[1])

		template := strings.NewReplacer("<in>", m[1], "<at>", strconv.Itoa(at), "<below>", strconv.Itoa(at+2)).Replace(templates[m[3]])
		if ownLines.MatchString(template) {
			before = m[1]
		}

		return before + template
	})
}
