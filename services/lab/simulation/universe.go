package simulation

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
)

// ringName is the name of the ring.
const ringName = "ring"

var (
	labelKeys  = contract.LabelKeysOf(ringName, "")
	shardLabel = labelKeys.Shard
	drainLabel = labelKeys.Drain
)

// The existing resources. Each may be a main or a controlled resource.
var (
	websites   = schema.GroupResource{Group: "example.com", Resource: "websites"}
	databases  = schema.GroupResource{Group: "example.com", Resource: "databases"}
	tenants    = schema.GroupResource{Group: "example.com", Resource: "tenants"}
	configMaps = schema.GroupResource{Resource: "configmaps"}
	secrets    = schema.GroupResource{Resource: "secrets"}
	rings      = schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "clusterrings"}
)

// served is how the resources are served at first.
var served = map[schema.GroupResource]apiserver.Served{
	websites:   {Version: "v1beta1", Kind: "Website", Namespaced: true},
	databases:  {Version: "v1", Others: []string{"v1beta1"}, Kind: "Database", Namespaced: true},
	tenants:    {Version: "v1", Kind: "Tenant"},
	configMaps: {Version: "v1", Kind: "ConfigMap", Namespaced: true},
	secrets:    {Version: "v1", Kind: "Secret", Namespaced: true},
}

func resource(gr schema.GroupResource, controlled ...schema.GroupResource) v1alpha1.RingResource {
	r := v1alpha1.RingResource{Group: gr.Group, Resource: gr.Resource}
	for _, c := range controlled {
		r.ControlledResources = append(r.ControlledResources,
			v1alpha1.ControlledResource{Group: c.Group, Resource: c.Resource})
	}

	return r
}

// specs are the possible specs of a ring. The first is the initial one, unless another is drawn.
var specs = []v1alpha1.ClusterRingSpec{
	{Resources: []v1alpha1.RingResource{resource(websites, configMaps)}},
	{Resources: []v1alpha1.RingResource{resource(websites, configMaps, secrets), resource(databases)}},
	{Resources: []v1alpha1.RingResource{resource(databases, configMaps)}},
	{Resources: []v1alpha1.RingResource{resource(websites, configMaps), resource(tenants, secrets)}},
	{Resources: []v1alpha1.RingResource{resource(websites), resource(databases, configMaps, secrets)}},
	{Resources: []v1alpha1.RingResource{resource(tenants)}},
	{Resources: []v1alpha1.RingResource{resource(configMaps)}},
	{Resources: []v1alpha1.RingResource{resource(websites, configMaps), resource(databases, configMaps)}},
	{Resources: []v1alpha1.RingResource{resource(databases), resource(websites, secrets)}, NamespaceSelector: teamA},
	{Resources: []v1alpha1.RingResource{resource(websites, configMaps)}, NamespaceSelector: teamA},
	// a typo
	{Resources: []v1alpha1.RingResource{resource(websites, configMaps), {Group: websites.Group, Resource: "website"}}},
	{Resources: []v1alpha1.RingResource{resource(websites, configMaps, schema.GroupResource{Resource: "secret"}),
		resource(databases)}},
	{Resources: []v1alpha1.RingResource{resource(schema.GroupResource{Group: databases.Group, Resource: "databasses"},
		configMaps), resource(tenants)}},
}

// keyLabel is the label that may be the key of objects.
const keyLabel = "example.com/customer"

// spec returns the n-th spec of the ring: beyond the number of specs, they begin again. If the history is keyed, its
// main resources have keys, and possibly an object selector, that depend on n, so that an edit of the ring may also
// change them, or change nothing else.
func (h History) spec(n int) v1alpha1.ClusterRingSpec {
	spec := specs[n%len(specs)].DeepCopy()

	for i := range spec.Resources {
		if !h.Keyed {
			break
		}

		switch r := &spec.Resources[i]; chance(h.Seed, "key of "+r.Resource, n) % 5 {
		case 0, 1, 2:
			r.Key = &v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: keyLabel}
		case 3:
			r.Key = &v1alpha1.ObjectKey{Type: v1alpha1.KeyNamespace}
		}
	}

	if chance(h.Seed, "selector", n)%3 == 0 && h.Keyed {
		spec.ObjectSelector = selectors[chance(h.Seed, "which selector", n)%uint64(len(selectors))].DeepCopy()
	}

	return *spec
}

// selectors are object selectors that a keyed ring may have: users change the label of objects.
var selectors = []metav1.LabelSelector{
	{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: keyLabel, Operator: metav1.LabelSelectorOpIn,
		Values: []string{"customer-1", "customer-2"}}}},
	{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: keyLabel, Operator: metav1.LabelSelectorOpDoesNotExist}}},
	{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: keyLabel, Operator: metav1.LabelSelectorOpExists}, {Key: keyLabel, Operator: metav1.LabelSelectorOpNotIn,
			Values: []string{"customer-3"}},
	}},
}

// misspelt are the specs that name a resource which does not exist.
var misspelt = []int{10, 11, 12}

var teamA = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}

// namespaces are the existing namespaces, with the initial team of each.
var namespaces = map[string]string{"n1": "a", "n2": "a", "n3": "b", metav1.NamespaceSystem: "b"}

// namespaceLabels returns the labels of a namespace that belongs to a team.
func namespaceLabels(name, team string) map[string]string {
	return map[string]string{"team": team, corev1.LabelMetadataName: name}
}

// mapperOf returns a mapper for resources that are served in this way.
func mapperOf(all map[schema.GroupResource]apiserver.Served) meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)

	for gr, how := range all {
		scope := meta.RESTScopeRoot
		if how.Namespaced {
			scope = meta.RESTScopeNamespace
		}

		m.Add(schema.GroupVersionKind{Group: gr.Group, Version: how.Version, Kind: how.Kind}, scope)
	}

	return m
}
