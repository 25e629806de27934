// Package simulation lets the rebalancer's engine find and move objects in a small world that goes wrong in every way that a
// seed can draw, and reports whether every object came to be where it belongs, and whether nobody claimed so earlier.
//
// A [History] is what happens: shards that join, leave, crash, freeze, hang and return, and Leases that somebody tampers with; rings that
// are edited, wrongly as well, and deleted; resources that change their version or scope, or are away for a while; namespaces that change
// their labels; users that create, delete, relabel, restore and re-parent; requests that are refused, lost, slow or never answered, watches
// that are cut, expired, late or blind; outages. Something may go wrong for ever, a [Condition]. [Draw] makes a history from a seed, of
// disturbances by chance and of some that go together; the tests let it happen, [Shrink] leaves out what does not matter for a failure.
//
// # What is real
//
//   - the rebalancer's engine with its client for objects, its guard and its plan, against the API server of package apiserver
//   - what the ring's resources are: resources.Resolver, for the rebalancer and for the assigner
//   - the assigner's decisions: admission.Decide, asked about every write by one of two replicas whose knowledge is late
//   - the lease monitor's decisions: lease.Next and lease.Together, with the ages of lease.Observer and lease.Sight
//   - which shard owns what: package membership and the hash ring
//
// # What is modelled
//
// The loop that gives the engine its target and keeps the ring's status (steward), the loop around lease.Next (monitor), shards
// as package pkg/shard promises them to be, users, and the garbage collector.
//
// # What is checked
//
// While a history happens: I1, I6, that no shard loses its Lease that lives, also after an outage of the API server; that objects move promptly
// while nothing goes wrong, or nothing but a shard that hangs and does not have them; that audits find nothing but what somebody has put in a
// wrong place; and that no ring is said to have converged while an object has been out of place for longer than an audit takes. When it has
// ended, and the time has passed in which everything should have come right: that every object is where it belongs, or that the report says
// why not; that the ring's status says that it has converged, and remembers no resource that never was; that no dead shard holds its Lease;
// and that from then on nothing is asked of the API server but what audits and watches need.
//
// # What is excused
//
// Users are bound to no protocol: a shard may go on with an object that a user has given to another until it has seen that, and likewise with
// objects that an edit of the ring has made controlled ones. A label that
// somebody writes on an object of a resource that the ring does not know is none of its business. Users delete no Lease that the rebalancer
// has yet to see held.
//
// # Mutations
//
// TestMutations puts faults back into the source, one at a time, and says how many seeds find each. What something else repairs in time is
// put back together with the lack of that other; it is found by a seed that does not notice that lack alone.
//
// # Time and chance
//
// All of it runs in a bubble of testing/synctest, where a quarter of an hour passes in a few milliseconds. Nothing may depend on the order in
// which goroutines run: TestReplay lets histories happen twice.
package simulation
