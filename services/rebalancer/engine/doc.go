// Package engine keeps every object of one ring at the shard it belongs to. It wires the parts of which each knows one thing:
//
//	source → obligation → plan → move → source
//
// Sources find objects that may be misplaced: a watch per resource for those without an available shard, one for those that are
// being drained; a list of the objects of lost shards, when the set of shards has changed; a pass over all that is labelled after any
// change, until one has found nothing; and the audit, which is the same pass, all the time and within a budget. What they find is an
// obligation until it was seen in its place. Workers take what is due and move it one step.
//
// # Where to read
//
//	sources.go, sinks.go   which watches and lists a target needs, and what becomes of what they see
//	passes.go, extent.go   when a pass is due, and where it has to look
//	package obligation     what is out of place, what it waits for, and what is due
//	package move           the way of one object, in three files
//	obligations.go         what the way asks the engine
//	families.go, gather.go what follows an object goes before it: who that is, and how it is looked for
//	state.go               what the goroutines share, under one lock
//
// # What was refused
//
// A controller of controller-runtime per resource, with an informer, a queue of keys and a Reconcile that is called until it returns nil.
//
//   - An informer holds every object. The watches here match only what is out of place, so that cost follows what is to be done and not what
//     there is. An object in its place has no event and no key.
//   - An item leaves such a queue when Reconcile returns without an error. An obligation ends when its object was seen in its place. A write
//     that succeeded may be taken back, one that failed may have been carried out, and a change of the ring makes either worth nothing.
//   - An item that cannot be dealt with comes back after a pause of its own. An obligation is parked by its cause (a shard, an owner, a slot)
//     and costs no request until the cause changes. Where nothing would tell, one of all that wait for the cause tries.
//   - Such a queue knows no order between items. Here what is one write away from its place goes first, then what nobody works on; an owner and
//     what follows it take turns; the shards of a ring get slots in turn; and rings share the API server in equal parts.
//   - Such a queue grows with what is to be done. Here sources are held back by what is still to be dealt with, and of what waits beyond a bound
//     the cause alone is kept. A million objects of a lost shard take the memory of twenty thousand.
//   - Such a queue that is empty means nothing. A ring has converged only if nothing is owed, no source fails and a pass over all objects found
//     nothing since the last change. That can be known only where all of these are in one state.
//
// The rings themselves, of which there are few, are reconciled by such a controller: see package rebalancer.
package engine
