package controller

import (
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// Predicate returns a predicate that passes every event of an object that carries the drain label of the ring. It passes an event of
// another object if the object carries the label of the shard, and all given predicates pass the event. Use it for the kind of a
// [Reconciler]: a predicate like GenerationChangedPredicate would hide drains.
func Predicate(clusterRingName, shardName string, predicates ...predicate.Predicate) predicate.Predicate {
	keys := contract.LabelKeysOf(clusterRingName, "")

	drained := predicate.NewPredicateFuncs(func(obj client.Object) bool {
		_, drained := obj.GetLabels()[keys.Drain]
		return drained
	})
	assigned := predicate.NewPredicateFuncs(func(obj client.Object) bool { return obj.GetLabels()[keys.Shard] == shardName })

	return predicate.Or(drained, predicate.And(assigned, predicate.And(predicates...)))
}
