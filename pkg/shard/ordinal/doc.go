// Package ordinal shares the objects of a controller between the Pods of a StatefulSet by their ordinals, without a service, a label, or a write to an
// object: an object belongs to the Pod whose ordinal is the hash of the object's name modulo the number of replicas.
//
// The package reads the StatefulSet, and the metadata of objects. It decides whether this process may work on an object. It writes nothing but the
// labels that [Process.AddClaims] gives.
//
//	p, err := ordinal.New(ctx, config, ordinal.Options{})            // which ordinal am I, of how many?
//	err = p.ConfigureManager(&options, &v1.Website{})                // stubs of foreign objects
//	err = mgr.Add(p)                                                 // follow the number of replicas
//	builder.For(&v1.Website{}, builder.WithPredicates(p.Predicate(...))).
//		WatchesRawSource(p.Source(mgr.GetCache(), &v1.Website{})).   // what I gain
//		Complete(p.Reconciler(mgr.GetClient(), &v1.Website{}, inner))
//
// Package shard is the alternative, with a ring: no object ever has two processes, objects that move are handed over one by one, only a part of them
// moves when a replica joins or leaves, and each replica receives only its own objects. [Process.AddClaims] leads from ordinals to a ring.
//
// # What it promises
//
//  1. While all processes know the same number of replicas, each object has one process, or none if the Pod of its ordinal does not run. Nobody takes
//     over the objects of a Pod that does not run.
//  2. An object that is deleted and made anew with the same name keeps its process. A reconcile of the old object may still run there, and read or
//     patch the new one; the process begins no other reconcile of this name beside it. A hash of the uid would give the new object to another process.
//  3. When a process learns a new number, it enqueues all objects that it has then.
//  4. What a reconcile lists follows the number that was known when it began. So a reconciler that counts what it lists misses nothing.
//
// # What it does not promise
//
// While the number of replicas changes, processes learn the new number at different times. An object then may have two processes: that which has it
// by the new number, and that which has it by the old number and does not know better, or still runs a reconcile that began before. Or it has none. This
// lasts as long as the slowest process takes to see the change: usually far below a second, and as long as it likes while it is cut off. When the number
// changes from n to n+1, n of n+1 objects change their process.
//
// # Cost
//
// A hash cannot be a selector. Each replica therefore receives and decodes every event of every object, as many times as there are replicas; only its
// memory is saved, by stubs ([Process.ConfigureManager]). When the number of replicas changes, each replica lists its cache and enqueues its objects, and each
// object of which the cache has a stub costs one read until its next event. The watch of the StatefulSet is one object by a field selector.
//
// # Permissions
//
// statefulsets (apps): get, list, and watch on the name of the StatefulSet.
package ordinal
