// Package ordinal shares the objects of a controller between the Pods of a StatefulSet by their ordinals, without a service, a label, or a write to an
// object: an object belongs to the Pod whose ordinal is the hash of the object modulo the number of replicas.
//
// The package reads the StatefulSet, and the metadata of objects. It decides whether this process may work on an object. It writes nothing, or, with
// [Options].StopTheWorld, one Lease.
//
//	p, err := ordinal.New(ctx, config, ordinal.Options{})            // which ordinal am I, of how many?
//	err = p.ConfigureManager(&options, &v1.Website{})                // stubs of foreign objects
//	err = mgr.Add(p)                                                 // follow the number of replicas
//	builder.For(&v1.Website{}, builder.WithPredicates(p.Predicate(...))).
//		WatchesRawSource(p.Source(mgr.GetCache(), &v1.Website{})).   // what I gain
//		Complete(p.Reconciler(mgr.GetClient(), &v1.Website{}, inner))
//
// Package shard is the alternative, with a ring: objects that move are handed over one by one, only a part of them moves when a replica joins or leaves,
// and each replica receives only its own objects. [Process.AddClaims] leads from ordinals to a ring.
//
// # What it promises
//
//  1. While all processes know the same number of replicas, each object has one process, or none if the Pod of its ordinal does not run. Nobody takes
//     over the objects of a Pod that does not run.
//  2. When a process learns a new number, it enqueues all objects that it has then.
//
// # What it does not promise
//
// While the number of replicas changes, processes learn the new number at different times. An object then may have two processes: that which has it
// by the new number, and that which has it by the old number and does not know better, or still runs a reconcile that began before. Or it has none. This
// lasts as long as the slowest process takes to see the change: usually far below a second, and as long as it likes while it is cut off. When the number
// changes from n to n+1, n of n+1 objects change their process.
//
// # Stop the world
//
// With [Options].StopTheWorld, no object ever has two processes. Nobody works from the moment at which a new number is proposed until all processes have
// acknowledged it. Processes acknowledge in the annotations of one Lease, [LeaseName]. It contains a plan, which is a numbered number of replicas, and an
// entry for each ordinal whose process takes part. Each write replaces the whole Lease on the condition that it has not changed since it was read, so the
// states of the Lease are one sequence. T is [Options].TermDuration.
//
//  1. A process works by a plan only after a state of the Lease in which the plan is not in doubt, its own entry names the plan, and so does every other
//     entry.
//  2. An entry that is written names the latest plan, unless it is a renewal by a process that still has workers of an earlier plan.
//  3. A process acknowledges a plan, or removes its entry, only when it has no worker that began under an earlier plan, and none can begin.
//  4. A process renews its entry five times per T. It stops for ever when 2/3 T have passed, by its own monotonic clock, since it sent the last renewal
//     that succeeded. No worker begins then, and the contexts of workers are cancelled. If workers still run at T, the process ends.
//  5. Others remove an entry only if it has not changed for 5/4 T since they have first seen it so, by their own clocks, in a write on the condition that
//     it still has not changed. A process whose entry was removed or replaced never works again, even if a request that it has sent before succeeds.
//  6. An ordinal has one entry. Another process with the same ordinal joins when the entry is gone, or after 5. A process that stops removes its entry
//     when its workers have ended; one that is killed keeps its successor waiting.
//  7. A new Lease is in doubt: an earlier one may have been deleted while processes worked by it. Some process takes the doubt back after it has seen the
//     Lease for 5/4 T. A process whose Lease was deleted stops as in 4.
//
// Two processes p and q therefore never work on the same object. By the same plan, they would have the same ordinal, which 6 excludes. If the plan of p is
// older, then q has seen a state in which p's entry was gone or named the plan of q (1). It cannot name an older one later (2). p had no worker any more if it
// wrote this itself (3), and if others removed it, p had stopped (4, 5), as long as clocks run equally fast within a quarter.
//
// All waiting is bounded. A plan waits for reconciles that run at most [Options].Patience and a third of T, and for a process that has vanished 5/4 T. A
// process that hangs before it acknowledges does not work when it resumes (4): what ends then is its process.
//
// It does not promise that a cache shows what the previous process of an object has written last, as it is in any controller after a restart. A process
// that was frozen in the middle of a reconcile may continue for a moment before it notices; only the resource versions in its writes protect the
// objects then, as in leader election.
//
// # Cost
//
// A hash cannot be a selector. Each replica therefore receives and decodes every event of every object, as many times as there are replicas; only its
// memory is saved, by stubs ([Process.ConfigureManager]). When the number of replicas changes, each replica lists its cache and enqueues its objects, and each
// object of which the cache has a stub costs one read until its next event. The watch of the StatefulSet is one object by a field selector. StopTheWorld
// adds five updates of the Lease per T and process, each of which all processes receive: it is meant for tens of replicas.
//
// # Permissions
//
//   - statefulsets (apps): get, list, watch on the name of the StatefulSet
//   - with StopTheWorld: leases (coordination.k8s.io): create, and get, list, watch, update on the name ordinals-<StatefulSet>
//   - optional, for better errors: pods: get
package ordinal
