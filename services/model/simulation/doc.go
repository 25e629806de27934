// Package simulation lets the rebalancer's engine find and move objects in a small world that goes wrong in every way that a
// seed can draw, and says whether every object came to be where it belongs, and whether nobody claimed so earlier.
//
// A [History] is what happens: shards that join, leave, crash, freeze, hang and return; rings that are edited and deleted; resources
// that change their version or scope, or are away for a while; namespaces that change their labels; users that create, delete,
// relabel, restore and re-parent; requests that are refused, lost, slow or never answered, watches that are cut, expired, late or
// blind. [Draw] makes one from a seed, [Run] lets it happen, [Shrink] leaves out what does not matter for a failure.
//
// # What is real
//
//   - the rebalancer's engine with its client for objects, its guard and its plan, against the API server of package apiserver
//   - the assigner's decisions: admission.Decide, asked about every write by one of two replicas whose knowledge is late
//   - the lease monitor's decisions: lease.Next, with the ages of lease.Observer
//   - which shard owns what: package membership and the hash ring
//
// # What is modelled
//
// The loop that gives the engine its target and keeps the ring's status (steward), the loop around lease.Next (monitor), shards
// as package pkg/shard promises them to be, users, and the garbage collector.
//
// # What is checked
//
// While a history happens: I1, I6, and that no ring is said to have converged while an object has been out of place for longer than an
// audit takes. When it has ended, and the time has passed in which everything should have come right: that every object is
// where it belongs or the report says why not, that the ring is said to have converged, and that from then on nothing is asked
// of the API server but what an audit and a watch need.
//
// # Time and chance
//
// All of it runs in a bubble of testing/synctest, where a quarter of an hour passes in a few milliseconds. Nothing depends on
// the order in which goroutines run, so that a history ends alike each time.
package simulation
