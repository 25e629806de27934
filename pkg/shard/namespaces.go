package shard

import (
	"maps"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// watchedNamespaces returns the namespaces in which a manager with these options, which checkCache has accepted, watches any of the kinds, sorted; none if it
// watches one of them everywhere.
func watchedNamespaces(o manager.Options, kinds declared) []string {
	keys, err := keysOf(o.Scheme, o.Cache.ByObject)
	all := sets.New[string]()

	for _, kind := range kinds {
		gvk, unknown := apiutil.GVKForObject(kind.object, o.Scheme)
		in := namespacesOf(o.Cache.ByObject[keys[gvk]], o.Cache)

		if _, everywhere := in[metav1.NamespaceAll]; everywhere || len(in) == 0 || err != nil || unknown != nil {
			return nil
		}

		all.Insert(slices.Collect(maps.Keys(in))...)
	}

	return sets.List(all)
}

// watchedBy returns the namespaces that a Lease announces, separated by commas; empty for all.
func watchedBy(lease *coordinationv1.Lease) string {
	if lease.Spec.RenewTime == nil {
		return ""
	}

	return contract.Namespaces(lease.Annotations, lease.Spec.RenewTime.Time)
}
