// Package engine keeps every object of one ring at the shard to which it belongs.
//
// # The way of one object
//
//	 1 a source shows it         feed.Stream, a list, a pass, or the audit
//	 2 where does it belong?     move.Target.Assess; in its place, nothing happens
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
//	state.go        how the goroutines change what they share, under one lock
//
// # Rejected alternative
//
// The alternative is one controller of controller-runtime per resource, with an informer, a queue of keys, and a
// Reconcile that is called until it returns nil. Its informers hold every object, and its queue grows with the work to
// do; here, the cost depends only on what is out of place, and sources pause while too much of it is pending. Its items
// leave the queue when a write succeeds; here, an obligation ends when its object was seen in its place. Its items
// return after pauses of their own; here, one of all that wait for the same cause checks for the others. Its queue has
// no order: owners and what follows them could not take turns. An empty queue shows no convergence; here, it also takes
// healthy sources and a pass that has found nothing, and one state knows all of this.
//
// The rings themselves are few. Such a controller reconciles them: see package rings.
package engine
