package embedded

import (
	"fmt"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

const dryRun = dryRunAll("")

type dryRunAll string

func (dryRunAll) ApplyToCreate(o *client.CreateOptions) { client.DryRunAll.ApplyToCreate(o) }

func keyOf(obj client.Object) client.ObjectKey { return client.ObjectKeyFromObject(obj) }

// specs are changes of a valid ring, about every rule that there is for one.
func specs() map[string]func(*v1alpha1.ClusterRing) {
	all := map[string]func(*v1alpha1.ClusterRing){
		"valid":       func(*v1alpha1.ClusterRing) {},
		"long name":   func(r *v1alpha1.ClusterRing) { r.Name = strings.Repeat("a", 64) },
		"dotted name": func(r *v1alpha1.ClusterRing) { r.Name = "a.b" },
		"none":        func(r *v1alpha1.ClusterRing) { r.Spec.Resources = nil },
		"twice":       func(r *v1alpha1.ClusterRing) { r.Spec.Resources = append(r.Spec.Resources, r.Spec.Resources[0]) },
		"many": func(r *v1alpha1.ClusterRing) {
			for i := range maxResources {
				r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Resource: fmt.Sprintf("r%d", i)})
			}
		},
		"many controlled": func(r *v1alpha1.ClusterRing) {
			for i := range maxControlled {
				c := &r.Spec.Resources[0].ControlledResources
				*c = append(*c, v1alpha1.ControlledResource{Resource: fmt.Sprintf("r%d", i)})
			}
		},
		"main and controlled": func(r *v1alpha1.ClusterRing) {
			r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Resource: "configmaps"})
		},
		"controlled by two": func(r *v1alpha1.ClusterRing) {
			r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{
				Resource: "secrets", ControlledResources: []v1alpha1.ControlledResource{{Resource: "configmaps"}},
			})
		},
		"controlled twice": func(r *v1alpha1.ClusterRing) {
			c := &r.Spec.Resources[0].ControlledResources
			*c = append(*c, (*c)[0])
		},
		"active":    func(r *v1alpha1.ClusterRing) { r.Spec.ActiveShards = new(int32(1)) },
		"no active": func(r *v1alpha1.ClusterRing) { r.Spec.ActiveShards = new(int32(0)) },
		"too many active": func(r *v1alpha1.ClusterRing) {
			r.Spec.ActiveShards = new(int32(maxActive + 1))
		},
		"fence off": func(r *v1alpha1.ClusterRing) { r.Spec.Fence = &v1alpha1.Fence{Mode: v1alpha1.FenceOff} },
		"fence": func(r *v1alpha1.ClusterRing) {
			r.Spec.Fence = &v1alpha1.Fence{Mode: v1alpha1.FenceAudit, ServiceAccounts: []v1alpha1.ServiceAccountReference{{Namespace: "a", Name: "b"}}}
		},
		"two namespaces": func(r *v1alpha1.ClusterRing) { r.Spec.ShardNamespaces = []string{namespace, "other"} },
		"selector":       func(r *v1alpha1.ClusterRing) { r.Spec.NamespaceSelector = &metav1.LabelSelector{} },
		"bad selector": func(r *v1alpha1.ClusterRing) {
			r.Spec.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "In"}}}
		},
		"bad operator": func(r *v1alpha1.ClusterRing) {
			r.Spec.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
		},
	}

	maps.Copy(all, objectSelectors())

	for name, k := range map[string]v1alpha1.ObjectKey{
		"name": {Type: "Name"}, "namespace": {Type: "Namespace"}, "label": {Type: "Label", Label: "example.com/tenant"}, "short label": {Type: "Label", Label: "tenant"},
		"no type": {}, "other type": {Type: "Color"}, "no label": {Type: "Label"}, "label of a name": {Type: "Name", Label: "a"},
		"bad label": {Type: "Label", Label: "a b"}, "large letters": {Type: "Label", Label: "Example.com/a"}, "slashes": {Type: "Label", Label: "a/b/c"},
		"ours": {Type: "Label", Label: "shard.alpha.sharding.timebertt.dev/x"}, "our domain": {Type: "Label", Label: "sharding.timebertt.dev/x"},
		"long": {Type: "Label", Label: "example.com/" + strings.Repeat("a", 64)}, "of the ring": {Type: "Label", Label: "example.com/shard"},
	} {
		all["key "+name] = func(r *v1alpha1.ClusterRing) { r.Spec.Resources[0].Key = &k }
		all["own label, key "+name] = func(r *v1alpha1.ClusterRing) {
			r.Spec.Resources[0].Key, r.Spec.ShardLabel = &k, "example.com/shard"
		}
	}

	all["key is the drain label"] = func(r *v1alpha1.ClusterRing) {
		r.Spec.ShardLabel = "example.com/shard"
		r.Spec.Resources[0].Key = &v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: r.Spec.ShardLabel + contract.DrainSuffix}
	}

	for _, label := range []string{"shard", "example.com/shard", "k8s.io/shard", "example.com/shard-drain", "example.com/" + strings.Repeat("a", 55), "Example.com/a"} {
		all[fmt.Sprintf("label %.30q", label)] = func(r *v1alpha1.ClusterRing) { r.Spec.ShardLabel = label }
	}

	for name, names := range map[string][]string{
		"good": {"a", "b.c"}, "twice": {"a", "a"}, "bad": {"A"}, "long": {strings.Repeat("a", 64)}, "empty": {""}, "the lease monitor's": {"shardlease-controller"},
	} {
		all["names "+name] = func(r *v1alpha1.ClusterRing) { r.Spec.ShardNames = names }
	}

	for _, gr := range [][2]string{
		{"", "events"}, {"", "nodes"}, {"", "pods"}, {"", ""}, {"", "Pods"}, {"", "pods/status"}, {"", strings.Repeat("a", 64)}, {"apps", "deployments"},
		{"coordination.k8s.io", "leases"}, {"coordination.k8s.io", "others"}, {"events.k8s.io", "events"}, {"rbac.authorization.k8s.io", "roles"},
		{"admissionregistration.k8s.io", "x"}, {"sharding.timebertt.dev", "clusterrings"}, {"A", "b"}, {"a..b", "b"}, {strings.Repeat("a", 254), "b"},
	} {
		all[fmt.Sprintf("main %.20q", gr)] = func(r *v1alpha1.ClusterRing) {
			r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: gr[0], Resource: gr[1]})
		}
		all[fmt.Sprintf("controlled %.20q", gr)] = func(r *v1alpha1.ClusterRing) {
			c := &r.Spec.Resources[0].ControlledResources
			*c = append(*c, v1alpha1.ControlledResource{Group: gr[0], Resource: gr[1]})
		}
	}

	return all
}

// objectSelectors are changes of the object selector.
func objectSelectors() map[string]func(*v1alpha1.ClusterRing) {
	many := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := range 17 {
		many.MatchLabels[fmt.Sprint("l", i)] = "a"
	}

	changes := map[string]func(*v1alpha1.ClusterRing){
		"object selector of the own drain label": func(r *v1alpha1.ClusterRing) {
			r.Spec.ShardLabel = "example.com/shard"
			r.Spec.ObjectSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "example.com/shard-drain", Operator: "Exists"}}}
		},
	}

	for name, selector := range map[string]*metav1.LabelSelector{
		"object selector": {MatchLabels: map[string]string{"example.com/operator": "a"}}, "empty object selector": {}, "many objects": many,
		"object selector of a shard label": {MatchLabels: map[string]string{contract.ShardLabel("a"): "a"}},
		"bad object selector":              {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Exists", Values: []string{"a"}}}},
	} {
		changes[name] = func(r *v1alpha1.ClusterRing) { r.Spec.ObjectSelector = selector }
	}

	return changes
}
