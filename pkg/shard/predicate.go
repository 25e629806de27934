package shard

import (
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// Predicate returns a predicate that passes an event if all given predicates pass it. It also passes an event, regardless of
// them, if the object is draining or its shard or drain label has changed. Use it instead of the given predicates on the watch of
// every sharded kind: a predicate like GenerationChangedPredicate would hide drains. Without arguments, it passes everything.
func (s *Shard) Predicate(inner ...predicate.Predicate) predicate.Predicate {
	all := predicate.And(inner...)

	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return s.Draining(e.Object) || all.Create(e) },
		GenericFunc: func(e event.GenericEvent) bool { return s.Draining(e.Object) || all.Generic(e) },
		DeleteFunc:  all.Delete,
		UpdateFunc: func(e event.UpdateEvent) bool {
			return s.Draining(e.ObjectNew) || s.reassigned(e.ObjectOld, e.ObjectNew) || all.Update(e)
		},
	}
}

// reassigned reports whether an update changed a label of the ring.
func (s *Shard) reassigned(before, after client.Object) bool {
	for _, key := range []string{s.shardKey, s.drainKey} {
		was, had := before.GetLabels()[key]

		is, has := after.GetLabels()[key]
		if was != is || had != has {
			return true
		}
	}

	return false
}
