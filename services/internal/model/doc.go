// Package model goes through everything that can happen to one object, its shards and the services within a small world, and
// checks in every state that the object is never worked on twice, never taken from a live shard, and never left alone.
//
// [Explore] starts from a state in which nothing has a shard, and visits, nearest first, every state that some order of
// events leads to, in the faults of a [Scope]. Equal states are visited once; a state is two machine words. The first
// violation is therefore on a shortest way, which is returned as a trace. The package writes nothing and waits for nothing;
// its tests are what it is for.
//
// # What is real
//
// The decisions are those of the services, made by their own code, asked about every case that the scope has:
//
//   - plan.Decide, for the main object and the child
//   - admission.Decide, with membership.NewView and the hash ring for who owns what
//   - lease.Next, for what the lease monitor does to a Lease
//   - takeover.Guard, with a clock and an API server that the model sets; what it remembers between questions is kept as one
//     of nine states, and a test shows that this makes no difference
//
// # What is modelled
//
// Two or three shards, one main object, and one child that it controls. Each shard has a process (down, holding off, running,
// stopping, or frozen in one of these), its Lease on the API server, a worker for each object, and caches that may be as old
// as they like. One wrapper, as package pkg/shard promises it, lets workers in and acknowledges drains. The rebalancer works
// on both objects, in turns; what it believes of the Leases when it decides may be from any time, and the write comes at any
// time later, or never, or after the rebalancer has restarted. It fails if the object has changed since. The same goes for
// the answers of any number of assigners, any of which may also not be reached. Users update objects, create the child, write
// objects without their labels and delete the ring, people delete Leases, services lose their memory, processes start, stop,
// crash and freeze: each as often as can be, at any moment.
//
// Time, where a scope has it, passes in steps of D. A process stops working before D has passed since its last renewal,
// unless it is frozen; the lease monitor counts D as soon as it has begun. Both are rounded against the protocol.
//
// # What is checked
//
// The values of [Property]. I1, I6 and I8 are checked in every step. For I2 the explorer looks, from every state, only at what
// must happen sooner or later (fair services that know the present, no faults, no users): every way must end where all is
// settled, and may not write anything in a circle before.
//
// I1 does not count a shard that was frozen beyond its deadline, until it has ended or renewed its Lease: it cannot keep to its
// Lease. All else does count, before and after.
//
// # What is not modelled
//
//   - how the rebalancer finds objects, and how many it moves at a time: here it looks at each again and again. The tests of package
//     obligation go through every history of one object, its sources and a worker; package simulation goes on from there
//   - deletion of objects, and new ones of the same name; a child may be in deletion, but its owner is always there
//   - two processes of one name, one name in two namespaces, several rings, weights of the hash ring
//   - shards that are not made with pkg/shard
//   - clocks that do not run at the same speed
//
// What is taken for granted of time, because nothing else could show it: a write that takes an object from a shard is carried
// out before a hold-off ends; what a rebalancer has sent is carried out, or never, before its successor decides about the same
// object, its owner or its child; a deleted ring's last look comes later than the news of the deletion. The values of
// [Exposure] leave out such assumptions one by one. The tests show what each would lead to: they are the limits of the
// promises. Where an exposure breaks one property alone, a scope of the tests shows that the others hold with it.
//
// Nothing is taken for granted of a shard's caches. That they show the present when a shard begins to work is what package
// pkg/shard does: it lists its objects after the hold-off, and works on, or gives up, only what a cache shows as it was then,
// or later. The model reads at the moment in which the hold-off ends; the code, object by object, at that moment or later.
// A shard that makes its Lease anew begins in the same way there; the model lets it carry on with what it has.
//
// # How a trace is read
//
// Numbered lines say who does what; the lines below them what has changed, if anything that can be seen. This is how two
// shards come to work on one object if a worker does not keep its shard from acknowledging a drain:
//
//	I1: two shards work on one object, or on an owner and its child
//	  ...
//	  6  rebalancer     writes the object: ask for it
//	                    the object's shard: b, draining
//	  7  shard b        sees the object as it is
//	                    b's cache of the object: draining
//
// "The assigner believes" gives the view with which an assigner has answered; it may be an old one. A write without that was
// not seen by an assigner.
//
// # Mutations
//
// A checker that finds nothing may be blind. Each [Mutation] leaves one guard of the protocol out, and a test requires that a
// violation is found then.
package model
