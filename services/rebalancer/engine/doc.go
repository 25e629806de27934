// Package engine keeps every object of one ring at the shard to which it belongs.
//
// # The way of one object
//
//	 1 a source shows it         feed.Stream, a list, a pass, or the audit
//	 2 where does it belong?     placement.Target.Assess; in its place, nothing happens
//	 3 it is enqueued            work.Table: an obligation until it was seen in its place
//	 4 its turn                  feed.Client.Enter; then a worker takes it with all that is known: work.Table.Take
//	 5 must it wait?             move.Mover.Move; then it is parked, see 9
//	 6 is that still true?       it is read again if it may have changed, with its owner
//	 7 what is next?             plan.Decide; if its shard is dead, surely? takeover.Guard.MayTake
//	 8 one write                 feed.Client.Label, if the object has not changed
//	 9 the outcome               work.Table.Report: it waits for its shard, is parked by its cause, or is tried again
//	10 it is seen in its place   1, or the answer to the write: the obligation is done
//
// Sources are one watch per resource for objects without an available shard, which lists again when shards are lost,
// and one for objects that are being drained; passes over all labeled objects after a change, until one has found
// nothing; and the audit, which is the same pass, repeated continuously within a budget.
//
// # Where to read
//
//	sources.go      which watches and lists a target needs, and how their results are processed
//	passes.go       when a pass is due, where it has to look, and what it does
//	package work    which objects are out of place, what each waits for, and which are due
//	package move    the steps of one object
//	followers.go    the watches of objects that follow an object and move before it; package work knows what they prove
//	state.go        what the goroutines share, under one lock
//
// # Rejected alternative
//
// The alternative is one controller of controller-runtime per resource, with an informer, a queue of keys, and a
// Reconcile that is called until it returns nil.
//
//   - An informer holds every object. The watches of this package match only objects that are out of place. The cost
//     therefore depends on the work to do, and not on the number of objects. An object in its place causes no event and
//     has no key.
//   - An item leaves such a queue when Reconcile returns without an error. An obligation ends when its object was seen
//     in its place. A successful write may be reverted, a failed write may have been executed, and a change of the ring
//     makes both worthless.
//   - An item that cannot be processed returns after a pause of its own. An obligation is parked by its cause (a shard,
//     an owner, a permit) and costs no request until the cause changes. If no event reports the change, one obligation
//     checks for all others with the same cause.
//   - Such a queue has no order between items. Here, objects that are one write away from their place go first, then
//     objects that no shard works on. An owner and the objects that follow it take turns. The shards of a ring get
//     permits in turn. Rings share the API server equally.
//   - Such a queue grows with the work to do. Here, sources pause while too much work is pending. Beyond a limit, what
//     cannot move is dropped, and searched again when there is room. A million objects of a lost shard take the memory
//     of twenty thousand.
//   - Such a queue does not show convergence when it is empty. A ring has converged only if there is no obligation, no
//     source fails, and a pass over all objects has found nothing since the last change. This can be determined only
//     because all of it is in one state.
//
// The rings themselves are few. Such a controller reconciles them: see package rings.
package engine
