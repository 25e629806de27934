package chart

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

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

// set replaces a field by a value of the chart, whose default is what the field was. A field that a component has removed stays so.
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
	g.more(metadata.at("annotations"), "merge dict "+values+"podAnnotations .Values.podAnnotations .Values.commonAnnotations")

	g.defaults[service+".image.repository"] = container["image"]
	container["image"] = g.token(fmt.Sprintf("{{ include %q (list . .Values.%s.image) | toJson }}", "clusterring.image", service))

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
