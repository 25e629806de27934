// Package simulation runs the rebalancer's engine in a small simulated cluster in which everything fails that a seed
// can draw. It checks whether every object reaches its place, and whether the ring never claims convergence too early.
//
// A [History] lists what happens: shards join, leave, crash, freeze, hang and return, and users tamper with their
// Leases. Rings are edited, also wrongly, and deleted. Resources change their version or scope, or disappear for a
// while. Namespaces change their labels. Users create, delete, relabel, restore and re-parent objects. Requests are
// refused, lost, slow or never answered. Watches are cut, expired, late or blind. There are outages. A fault may also
// last forever, see [Condition]. [Draw] draws a history from a seed, with random disturbances and combined ones. The
// tests run it. [Shrink] removes the steps that are irrelevant for a failure.
//
// # What is real
//
//   - the rebalancer's engine with its client for objects, its guard and its plan, against the API server of package
//     apiserver
//   - the resources of the ring: resources.Resolver, for the rebalancer and for the assigner
//   - the decisions of the assigner: admission.Decide decides about every write, in one of two replicas whose knowledge
//     is late
//   - the decisions of the lease monitor: lease.Next and lease.Together, with the ages of lease.Observer and
//     lease.Sight
//   - the ownership of keys: package membership and the hash ring
//
// # What is modelled
//
// The loop that gives the engine its target and writes the ring's status (steward), the loop around lease.Next
// (monitor), shards that keep the promises of package pkg/shard, users, and the garbage collector.
//
// # What is checked
//
// While a history runs:
//
//   - I1 and I6 hold.
//   - No live shard loses its Lease, even after an outage of the API server.
//   - Objects move promptly while nothing fails, or while only a shard hangs that does not have them.
//   - Audits find only objects that somebody has put into a wrong place.
//   - No ring claims convergence while an object has been out of place for longer than an audit takes.
//
// When it has ended, and the time for recovery has passed:
//
//   - Every object is in its place, or the report explains why not.
//   - The ring's status shows convergence, and remembers no resource that never existed.
//   - No dead shard holds its Lease.
//   - From then on, only audits and watches send requests to the API server.
//
// # What is excused
//
// Users follow no protocol: a shard may continue to work on an object that a user has given to another shard, until it
// has seen that. The same applies to objects that an edit of the ring has made controlled objects. Until the rebalancer
// knows that an edit has made a resource a main resource, it moves objects of the resource without a drain. A label
// that somebody writes on an object of a resource that the ring does not know does not concern the ring. Users delete
// no Lease before the rebalancer has seen it held.
//
// # Mutations
//
// TestMutations puts known faults back into the source, one at a time, and reports how many seeds each takes to be
// found. If another mechanism repairs a fault in time, the mutation removes that mechanism too. The removal alone must
// not make the seed fail.
//
// # Time and chance
//
// Everything runs in a bubble of testing/synctest, where a quarter of an hour passes in a few milliseconds. Nothing may
// depend on the order in which goroutines run: TestReplay runs histories twice.
package simulation
