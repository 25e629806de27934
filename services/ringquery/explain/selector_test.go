package explain

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/services/internal/resources"
)

// selecting lets the ring shard only the Websites of one tenant.
func (r *Ring) selecting() {
	r.Spec.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{tenant: "ours"}}
	r.Resources = resources.Resolve(mapper(), r.Spec)
}

func init() {
	maps.Copy(mains, map[string]func(r *Ring, o *Object, f *Facts){
		"selected": func(r *Ring, o *Object, _ *Facts) {
			r.selecting()

			o.Meta.Labels = at("shard-b")
			metav1.SetMetaDataLabel(&o.Meta.ObjectMeta, tenant, "ours")
		},
		"not selected": func(r *Ring, o *Object, _ *Facts) {
			r.selecting()
			metav1.SetMetaDataLabel(&o.Meta.ObjectMeta, tenant, "theirs")
		},
		"not selected any more": func(r *Ring, o *Object, _ *Facts) {
			r.selecting()

			o.Meta.Labels = at("shard-a")
		},
		"selected or not, forbidden": func(r *Ring, o *Object, _ *Facts) {
			r.selecting()

			o.Meta = nil
		},
	})

	maps.Copy(children, map[string]func(r *Ring, o *Object, f *Facts){
		"child of an owner that is not selected": func(r *Ring, o *Object, _ *Facts) {
			r.selecting()

			r.Owner.Meta.Labels = nil
			r.Kin = kinOf(*r, *o)
		},
		"child of an owner that is not selected any more": func(r *Ring, o *Object, _ *Facts) {
			r.selecting()

			o.Meta.Labels = at("shard-b")
			r.Kin = kinOf(*r, *o)
		},
	})
}
