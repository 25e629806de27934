// Package chart generates the templates of the Helm chart of charts/clusterring from deploy/base and deploy/components,
// so that both install the same.
//
// [Generate] builds the base, and the base with each component. In the objects, it replaces what users may change by
// expressions of values. What a component adds to the base or takes away becomes conditional on the value enabled of
// the component: line by line, as diff --ifdef merges two files. Two components may add to the same place, in
// alphabetical order, but may not change the same line.
//
// values.yaml and values.schema.json of the chart are written by hand: a new component needs a value enabled in both,
// and the default of a value is what the manifests have. The tests render the chart with Helm, and compare the result
// with what kustomize builds. They install, upgrade, and remove the chart on a control plane.
package chart

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
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

// generator replaces parts of objects by tokens, which are lines of their own when the objects are printed, and these
// by templates.
type generator struct {
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

// Generate returns the generated templates of the chart, by the names of their files.
func Generate(root string) (map[string]string, error) {
	g := &generator{tokens: map[string]string{}}

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

		name := d.file + ".yaml"
		files[name] = cmp.Or(files[name], Generated) + "---\n" + guarded(d.condition, g.expand(text))
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

// set replaces a field by a value of the chart. A field that a component has removed stays so.
func (g *generator) set(in node, key, path string) {
	switch in[key].(type) {
	case nil:
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
