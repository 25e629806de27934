// Package chart generates the Helm chart of charts/clusterring from deploy/base and deploy/components, so that both
// install the same.
//
// [Generate] builds the base, and the base with each component. In the objects, it replaces what values.yaml of this
// package names by expressions of values, and keeps what was there as the default. What a component adds to the base or
// takes away becomes conditional on the value enabled of the component: line by line, as diff --ifdef merges two files.
// Two components may add to the same place, in alphabetical order, but may not change the same line. A new component
// needs a value enabled in values.yaml.
//
// The tests render the chart with Helm, and compare the result with what kustomize builds. They install, upgrade, and
// remove the chart on a control plane.
package chart

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/kyaml/yaml"
	sigsyaml "sigs.k8s.io/yaml"

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

// Generate returns the generated files of the chart, by their paths in it. The README is the present one with a new
// table.
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

// generator replaces parts of objects by tokens, which are lines of their own when the objects are printed, and these
// by templates.
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
	content, err := sigsyaml.Marshal(o.Object)
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
		// it is part of base/crd, which may be installed without the chart
		return "crds", "and .Values.crds.enabled .Values.policies.services"
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

// expand replaces tokens by their templates. In a template, <in> is the indentation of the line, <at> its number of
// spaces, and <below> two more.
func (g *generator) expand(text string) string {
	templates := map[string]string{}
	for template, token := range g.tokens {
		templates[token] = template
	}

	return tokenLine.ReplaceAllStringFunc(text, func(line string) string {
		m := tokenLine.FindStringSubmatch(line)
		before, at := m[1]+m[2], len(m[1])

		template := strings.NewReplacer("<in>", m[1], "<at>", strconv.Itoa(at), "<below>",
			strconv.Itoa(at+2)).Replace(templates[m[3]])
		if ownLines.MatchString(template) {
			before = m[1]
		}

		return before + template
	})
}

// merge returns a template of the base and its variants, as diff --ifdef does of two files.
func merge(base []string, variants []variant) (string, error) {
	added, lacks := make([]string, len(base)+1), make([]string, len(base)) // lacks: the condition on which a line is there

	for _, v := range variants {
		adds, missing := diff(base, v.lines)
		for i, lines := range adds {
			added[i] += guarded(v.condition, lines)
		}

		for i := range missing {
			if missing[i] && lacks[i] != "" {
				return "", fmt.Errorf("%s and %s change the same line: %s", strings.TrimPrefix(lacks[i], "not "),
					v.condition, base[i])
			}

			if missing[i] {
				lacks[i] = "not " + v.condition
			}
		}
	}

	var (
		b    strings.Builder
		open string // the condition whose lines are pending
		held string // these lines
	)

	flush := func() {
		b.WriteString(guarded(open, held))

		open, held = "", ""
	}

	for i, line := range base {
		if added[i] != "" || lacks[i] != open {
			flush()
			b.WriteString(added[i])
		}

		if lacks[i] == "" {
			b.WriteString(line)
			continue
		}

		open, held = lacks[i], held+line
	}

	flush()
	b.WriteString(added[len(base)])

	return b.String(), nil
}

// diff returns the lines that a variant has before each line of the base and at its end, and which lines of the base
// the variant lacks.
func diff(base, variant []string) (added []string, lacks []bool) {
	added, lacks = make([]string, len(base)+1), make([]bool, len(base))

	for _, op := range difflib.NewMatcherWithJunk(base, variant, false, nil).GetOpCodes() {
		if op.Tag == 'e' {
			continue
		}

		added[op.I2] += strings.Join(variant[op.J1:op.J2], "")
		for i := op.I1; i < op.I2; i++ {
			lacks[i] = true
		}
	}

	return added, lacks
}

// node is a part of an object: a map, and where it is.
type node map[string]any

// at returns the map at a path of keys and of indices in lists. It creates what is missing.
func (n node) at(path ...any) node {
	current := any(map[string]any(n))

	for _, step := range path {
		if i, ok := step.(int); ok {
			current = current.([]any)[i] //nolint:forcetypeassert // a manifest without this list has changed too much
			continue
		}

		in, key := current.(map[string]any), step.(string) //nolint:forcetypeassert // the same
		if in[key] == nil {
			in[key] = map[string]any{}
		}

		current = in[key]
	}

	return current.(map[string]any) //nolint:forcetypeassert // the same
}

// set replaces a field by a value of the chart, whose default is what the field was. A field that a component has
// removed stays so.
func (g *generator) set(in node, key, path string) {
	was, ok := in[key]
	if !ok {
		return
	}

	if _, known := g.defaults[path]; !known {
		g.defaults[path] = was
	}

	switch was.(type) {
	case map[string]any, []any:
		in[key] = g.token("{{- toYaml .Values." + path + " | nindent <below> }}")
	default:
		in[key] = g.token("{{ toJson .Values." + path + " }}")
	}
}

// more adds the entries of an expression to a map.
func (g *generator) more(in node, expression string) {
	in[g.token("{{- with "+expression+" }}{{ toYaml . | nindent <at> }}{{- end }}")] = ""
}

// add adds a field that exists only if the expression is not empty.
func (g *generator) add(in node, key, expression string) {
	in[g.token("{{- with "+expression+" }}\n<in>"+key+": {{- toYaml . | nindent <below> }}\n<in>{{- end }}")] = ""
}

// append adds a token to a list.
func (g *generator) append(in node, key, template string) {
	list, _ := in[key].([]any)
	in[key] = append(list, g.token(template))
}

// parametrize replaces what depends on values by tokens.
func (g *generator) parametrize(o *unstructured.Unstructured) {
	object, spec := node(o.Object), node(o.Object).at("spec")
	service := o.GetLabels()["app.kubernetes.io/name"]
	annotations := []string{".Values.commonAnnotations"}

	switch o.GetKind() {
	case "CustomResourceDefinition":
		annotations = append(annotations, `(ternary (dict "helm.sh/resource-policy" "keep") dict .Values.crds.keep)`)
	case "Namespace": // it contains the release
		annotations = append(annotations, `(dict "helm.sh/resource-policy" "keep")`)
	case "Service":
		annotations = append(annotations, ".Values."+service+".serviceAnnotations")
	case "ServiceAccount":
		annotations = append(annotations, ".Values."+service+".serviceAccountAnnotations")
	case "ResourceQuota":
		g.set(spec.at("hard"), "pods", "quota.pods")

		scope := spec.at("scopeSelector", "matchExpressions", 0)
		scope["values"] = []any{g.token("{{ toJson .Values.priorityClassName }}")}
	case "PodDisruptionBudget":
		g.set(spec, "maxUnavailable", service+".podDisruptionBudget.maxUnavailable")
	case "Deployment":
		g.deployment(spec, service)
	case "ValidatingAdmissionPolicy":
		g.webhookURLs(spec)
	case "HorizontalPodAutoscaler":
		g.set(spec, "minReplicas", "autoscaling.minReplicas")
		g.set(spec, "maxReplicas", "autoscaling.maxReplicas")
		g.set(spec.at("metrics", 0, "resource", "target"), "averageUtilization", "autoscaling.targetCPUUtilizationPercentage")
	case "ServiceMonitor":
		g.set(spec.at("endpoints", 0), "interval", "monitoring.interval")
		g.more(object.at("metadata", "labels"), ".Values.monitoring.labels")
	case "NetworkPolicy":
		g.networkPolicy(o.GetName(), spec)
	case "Certificate":
		if ref := spec.at("issuerRef"); service != "" {
			for key, own := range ref {
				ref[key] = g.token(fmt.Sprintf("{{ toJson (.Values.certManager.issuerRef.%s | default %q) }}", key, own))
			}

			g.more(ref, `pick .Values.certManager.issuerRef "group"`)
		}
	}

	if len(spec) == 0 {
		delete(object, "spec") // it has none
	}

	metadata := object.at("metadata")
	g.more(metadata.at("labels"), ".Values.commonLabels")

	merged := "merge dict " + strings.Join(annotations, " ")
	if o.GetAnnotations() == nil {
		g.add(metadata, "annotations", merged)
	} else {
		g.more(metadata.at("annotations"), merged)
	}
}

// elsewhere are the arguments of a service that is in another namespace than that of the base.
const elsewhere = `{{- if ne .Release.Namespace "` + namespace + `" }}
<in>- --namespace={{ .Release.Namespace }}
<in>- --default-namespace-selector=kubernetes.io/metadata.name notin (kube-node-lease,kube-public,kube-system,{{ .Release.Namespace }})
<in>{{- end }}`

// deployment replaces what depends on the values of a service.
func (g *generator) deployment(spec node, service string) {
	values := ".Values." + service + "."
	pod, metadata := spec.at("template", "spec"), spec.at("template", "metadata")
	container := pod.at("containers", 0)

	g.set(spec, "replicas", service+".replicas")
	g.set(pod, "priorityClassName", "priorityClassName")
	g.set(pod, "topologySpreadConstraints", service+".topologySpreadConstraints")
	g.add(pod, "imagePullSecrets", ".Values.imagePullSecrets")

	for _, field := range []string{"nodeSelector", "tolerations", "affinity"} {
		g.add(pod, field, values+field+" | default .Values."+field)
	}

	g.more(metadata.at("labels"), "merge dict "+values+"podLabels .Values.podLabels .Values.commonLabels")
	g.more(metadata.at("annotations"),
		"merge dict "+values+"podAnnotations .Values.podAnnotations .Values.commonAnnotations")

	g.defaults[service+".image.repository"] = container["image"]
	container["image"] = g.token(fmt.Sprintf("{{ include %q (list . .Values.%s.image) | toJson }}",
		"clusterring.image", service))

	g.set(container, "imagePullPolicy", "image.pullPolicy")
	g.set(container, "resources", service+".resources")
	g.append(container, "args", elsewhere)

	for _, field := range []string{"args", "env"} {
		g.append(container, field, "{{- with "+values+field+" }}{{ toYaml . | nindent <at> }}{{- end }}")
	}
}

// webhookURLs replaces the URLs that a policy allows the assigner.
func (g *generator) webhookURLs(spec node) {
	variables, _ := spec["variables"].([]any)
	for i := range variables {
		if v := spec.at("variables", i); v["name"] == "urls" {
			g.defaults["policies.webhookURLs"] = []any{}
			v["expression"] = g.token("{{ toJson .Values.policies.webhookURLs | quote }}") // JSON is CEL
		}
	}
}

// networkPolicy replaces what clusters differ in.
func (g *generator) networkPolicy(name string, spec node) {
	switch name {
	case "to-api-server":
		to := spec.at("egress", 0)
		to["ports"] = []any{g.token("{{- range .Values.networkPolicies.apiServerPorts }}\n<in>- port: {{ . }}\n<in>  protocol: TCP\n<in>{{- end }}")}
		to[g.token("{{- with .Values.networkPolicies.apiServerCIDRs }}\n<in>to:\n<in>{{- range . }}\n<in>- ipBlock:\n<in>    cidr: {{ . | quote }}\n"+
			"<in>{{- end }}\n<in>{{- end }}")] = ""
	case "to-metrics":
		g.set(spec.at("ingress", 0, "from", 0, "namespaceSelector"), "matchLabels", "networkPolicies.metricsNamespaceLabels")
	}
}

// values returns values.yaml and values.schema.json of the chart, and the table for its README, from the schema in a
// file.
func (g *generator) values(file string) (map[string]string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the schema of the values: %w", err)
	}

	var (
		ordered yaml.Node
		schema  map[string]any
		w       writer
	)

	for _, into := range []any{&ordered, &schema} {
		if err := yaml.Unmarshal(content, into); err != nil {
			return nil, fmt.Errorf("read the schema of the values: %w", err)
		}
	}

	if err := g.complete("", schema); err != nil {
		return nil, err
	}

	if len(g.defaults) > 0 {
		return nil, fmt.Errorf("the schema of the values has no %v", g.defaults)
	}

	w.walk("", ordered.Content[0], schema)

	if w.err != nil {
		return nil, w.err
	}

	var printed bytes.Buffer

	encoder := json.NewEncoder(&printed)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")

	if err := encoder.Encode(schema); err != nil {
		return nil, fmt.Errorf("print the schema of the values: %w", err)
	}

	return map[string]string{
		"values.yaml": "# Generated by make generate-chart. README.md describes the values in a table.\n" +
			w.values.String(), "values.schema.json": printed.String(),
		"README.md": "| value | default | description |\n|---|---|---|\n" + w.table.String(),
	}, nil
}

// complete adds the defaults that manifests have, and closes objects.
func (g *generator) complete(path string, schema map[string]any) error {
	if value, ok := g.defaults[path]; ok {
		schema["default"] = value
		delete(g.defaults, path)
	}

	properties, ok := schema["properties"].(map[string]any)
	if !ok && path != "" && schema["default"] == nil {
		return fmt.Errorf("value %s has no default", path)
	}

	if items, _ := schema["items"].(map[string]any); items["properties"] != nil {
		items["additionalProperties"] = false
	}

	if !ok {
		return nil
	}

	if schema["additionalProperties"] == nil {
		schema["additionalProperties"] = false
	}

	if schema["default"] != nil {
		return nil
	}

	for name, property := range properties {
		child, _ := property.(map[string]any)
		if err := g.complete(strings.TrimPrefix(path+"."+name, "."), child); err != nil {
			return err
		}
	}

	return nil
}

// writer writes the values and their table in the order of the schema.
type writer struct {
	values, table strings.Builder
	err           error
}

// walk writes the properties of a schema, whose order is that of the node.
func (w *writer) walk(path string, n *yaml.Node, schema map[string]any) {
	properties, _ := schema["properties"].(map[string]any)
	in := strings.Repeat("  ", strings.Count(path, "."))

	names := field(n, "properties")
	for i := 0; i < len(names.Content); i += 2 {
		name := names.Content[i].Value
		child, _ := properties[name].(map[string]any)

		does, _ := child["description"].(string)
		if does == "" {
			w.err = errors.Join(w.err, fmt.Errorf("value %s has no description", path+name))
			continue
		}

		if path == "" {
			w.values.WriteString("\n")
		}

		end := "."
		if strings.HasSuffix(does, "?") {
			end = ""
		}

		fmt.Fprintf(&w.values, "%s# %s%s%s\n%s%s:", in, strings.ToUpper(does[:1]), does[1:], end, in, name)

		value, leaf := child["default"]
		if !leaf {
			w.values.WriteString("\n")
			w.walk(path+name+".", names.Content[i+1], child)

			continue
		}

		block, err := sigsyaml.Marshal(value)
		w.err = errors.Join(w.err, err)
		text, in, nested := strings.TrimSpace(string(block)), "\n"+in+"  ", false
		shown := "`" + text + "`"

		switch value.(type) {
		case map[string]any, []any:
			nested = text != "{}" && text != "[]"
		}

		if nested {
			text = in + strings.ReplaceAll(text, "\n", in)
			shown = "as in [values.yaml](values.yaml)"
		} else {
			text = " " + text
		}

		w.values.WriteString(text + "\n")
		fmt.Fprintf(&w.table, "| `%s` | %s | %s |\n", path+name, shown, does)
	}
}

// field returns the value of a key in a mapping.
func field(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; i < len(mapping.Content); i += 2 {
		if value := mapping.Content[i+1]; mapping.Content[i].Value == key && value.Kind == yaml.AliasNode {
			return value.Alias
		} else if mapping.Content[i].Value == key {
			return value
		}
	}

	return &yaml.Node{}
}
