package explain

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// watching is the Lease of a shard that watches these namespaces only.
func watching(name, namespaces string) holding {
	h := alive(name)
	h.watches = namespaces

	return h
}

func init() {
	unwatched := condition(v1alpha1.ConditionAssigned, metav1.ConditionFalse, v1alpha1.ReasonNamespacesNotWatched, "nobody works on objects in the namespaces default")

	maps.Copy(mains, map[string]func(r *Ring, o *Object, f *Facts){
		"not watched, without a shard": func(r *Ring, _ *Object, _ *Facts) {
			r.has(watching("shard-a", "team-a,team-b"), watching("shard-b", "team-b"))
			r.says(unwatched)
		},
		"not watched, with a shard": func(r *Ring, o *Object, _ *Facts) {
			r.has(watching("shard-a", "team-a"), watching("shard-b", "team-a"))
			r.says(unwatched)

			o.Meta.Labels = at("shard-b")
		},
		"not watched by its shard": func(r *Ring, o *Object, _ *Facts) {
			r.has(watching("shard-a", "team-a"), alive("shard-b"))

			o.Meta.Labels = at("shard-a")
		},
		"watched by its shard only": func(r *Ring, o *Object, _ *Facts) {
			r.has(watching("shard-a", "default"), watching("shard-b", "team-b"))
			r.says(unwatched)

			o.Meta.Labels = at("shard-a")
		},
		"not watched, ring in deletion": func(r *Ring, o *Object, _ *Facts) {
			r.has(watching("shard-a", "team-a"))
			r.DeletionTimestamp = new(metav1.NewTime(now))

			o.Meta.Labels = at("shard-a")
		},
	})
}
