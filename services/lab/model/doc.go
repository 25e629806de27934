// Package model explores everything that can happen to one object, its shards, and the services in a small world, and
// checks in every state that no two shards work on the object, that it is never taken from a live shard, and that it is
// never left alone.
//
// The explorer starts from a state in which nothing has a shard, and visits every state that some order of events leads
// to, with the faults of a [Scope], nearest first. Equal states are visited once. The first violation is therefore on a
// shortest path, which is returned as a trace. The package writes nothing and waits for nothing. It exists for its
// tests.
//
// # What is real
//
// The code of the services makes the decisions. It is asked about every case in the scope:
//
//   - plan.Decide, for the main object and the child
//   - admission.Decide, with membership.NewView and the table of owners
//   - lease.Next, for what the lease monitor does to a Lease
//   - takeover.Guard, with a clock and an API server that the model controls; what it remembers between queries is
//     stored as one of nine states, and a test shows that this makes no difference
//
// # What is modelled
//
// There are two or three shards, one main object, and one child that it controls. Each shard has a process (down,
// holding off, running, stopping, or frozen in one of these), its Lease on the API server, a worker for each object,
// and caches of any age. One wrapper, as promised by pkg/shard, lets workers in and acknowledges drains. The rebalancer
// works on both objects, in turns. What it believes about the Leases when it decides may be from any time. The write
// comes at any later time, or never, or after the rebalancer has restarted. The write fails if the object has changed
// since. The same applies to the answers of any number of assigners, any of which may also be unreachable. A shard that
// works on the object creates the child. Users update objects, create the child, write objects without their labels,
// and delete the ring. People delete Leases. Services lose their memory. Processes start, stop, crash, and freeze.
// Shards announce that they stop, and work on. The kubelet reports processes that have ended, at any time after that,
// or never. Another process takes over a slot. All of this can happen any number of times, at any moment.
//
// If a scope has time, it passes in steps of D. A process stops working before D has passed since its last renewal,
// unless it is frozen. The lease monitor counts D as soon as it has begun. Both are rounded to the disadvantage of the
// protocol.
//
// # What is checked
//
// The values of [Property] are checked: I1, I6, and I8 in every step. For I2, the explorer considers, from every state,
// only what must happen sooner or later (fair services that know the present, no faults, no users): every path must end
// where everything is settled, and must not write anything in a circle before.
//
// I1 does not count a shard that was frozen beyond its deadline, until it has ended or renewed its Lease: it cannot
// honor its Lease. Everything else counts, before and after. The fence of a ring is for these shards: the model also
// checks that the API server, which accepts only writes of the shard that the stored object names, accepts none of
// theirs while another shard works on the object.
//
// # What is not modelled
//
//   - how the rebalancer finds objects, and how many it moves at a time: here, it checks each object repeatedly. The
//     tests of package work explore every history of one object, its sources, and a worker; package simulation
//     continues from there
//   - deletion of objects, and new objects of the same name; a child may be in deletion, but its owner always exists
//   - two processes with one name, except one after the other with a slot, one name in two namespaces, several rings,
//     how the hash space is divided
//   - shards that do not use pkg/shard
//   - clocks that do not run at the same speed
//
// The model assumes some facts about time, because nothing else could show them: a write that takes an object from a
// shard is executed before a hold-off ends; what a rebalancer has sent is executed before its successor decides about
// the same object, its owner, or its child, or never; the last look of a deleted ring comes later than the news of the
// deletion. The values of [Exposure] drop these assumptions one by one. The tests show the consequences: they are the
// limits of the guarantees. If an exposure breaks only one property, a scope of the tests shows that the others hold
// with it.
//
// The model assumes nothing about a shard's caches. Package pkg/shard ensures that they show the present when a shard
// begins to work: it lists its objects after the hold-off, and works on an object, or releases it, only when a cache
// shows it as it was then, or later. The model reads at the moment when the hold-off ends; the code does so object by
// object, at that moment or later. A shard that recreates its Lease begins in the same way in the code; the model lets
// it continue with what it has.
//
// # How to read a trace
//
// Numbered lines show who does what. The lines below them show what has changed, if anything visible has. This trace
// shows how two shards come to work on one object if a worker does not keep its shard from acknowledging a drain:
//
//	I1: two shards work on one object, or on an owner and its child
//	  ...
//	  6  rebalancer     writes the object: drain it
//	                    the object's shard: b, draining
//	  7  shard b        sees the object as it is
//	                    b's cache of the object: draining
//
// "The assigner believes" shows the view with which an assigner has answered, which may be old. If it is missing, no
// assigner saw the write.
//
// # Mutations
//
// A checker that finds nothing may be blind. Each [Mutation] removes one guard of the protocol, and a test requires
// that the explorer then finds a violation.
package model
