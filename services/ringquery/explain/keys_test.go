package explain

import (
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// keyed gives the Websites of the ring a key.
func (r *Ring) keyed(k v1alpha1.ObjectKey) {
	r.Spec.Resources[0].Key = &k
	r.Resources = resources.Resolve(mapper(), r.Spec)
}

// tenantOf returns a tenant that belongs to the shard.
func (r *Ring) tenantOf(shard string) string {
	for i := 0; ; i++ {
		name := fmt.Sprint("tenant-", i)
		if owner, _ := r.View.Owner(key.OfLabel(tenant, name)); owner == shard {
			return name
		}
	}
}

// byTenant is the key of objects with a tenant.
var byTenant = v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant}

func init() {
	maps.Copy(mains, map[string]func(r *Ring, o *Object, f *Facts){
		"keyed by namespace": func(r *Ring, o *Object, _ *Facts) {
			r.keyed(v1alpha1.ObjectKey{Type: v1alpha1.KeyNamespace})

			o.Meta.Labels = at("shard-a")
		},
		"keyed by label": func(r *Ring, o *Object, _ *Facts) {
			r.keyed(byTenant)

			o.Meta.Labels = at("shard-b")
			metav1.SetMetaDataLabel(&o.Meta.ObjectMeta, tenant, r.tenantOf("shard-b"))
		},
		"keyed by label, draining to the shard of another label": func(r *Ring, o *Object, _ *Facts) {
			r.keyed(byTenant)

			o.Meta.Labels = drained(at("shard-a"))
			metav1.SetMetaDataLabel(&o.Meta.ObjectMeta, tenant, r.tenantOf("shard-b"))
		},
		"keyed by a label that it lacks": func(r *Ring, o *Object, _ *Facts) {
			r.keyed(byTenant)

			o.Meta.Labels = at("shard-b")
		},
		"keyed by label, forbidden": func(r *Ring, o *Object, _ *Facts) {
			r.keyed(byTenant)

			o.Meta = nil
		},
	})

	maps.Copy(children, map[string]func(r *Ring, o *Object, f *Facts){
		"child keyed by the label of its owner": func(r *Ring, o *Object, _ *Facts) {
			r.keyed(byTenant)

			o.Meta.Labels = at("shard-b")
			r.Kin = kinOf(*r, *o)
		},
	})
}
