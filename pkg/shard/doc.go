// Package shard makes a controller one shard of a ClusterRing: it keeps the shard's Lease, watches only the objects that
// carry the shard's label, and gives an object up when it is asked to.
//
// It reads the labels of objects and decides from them whether this process may work on an object. It writes the shard's
// own Lease and, to acknowledge a drain, removes the shard and drain labels of an object. It never decides which shard owns
// what: it learns that from the label.
//
// A controller-runtime main becomes a shard by four steps; see the example of the package:
//
//	s, err := shard.New(shard.Options{Ring: "example"})                          // who am I?
//	err = s.ConfigureManager(config, &options, &v1.Website{}, &v1.ConfigMap{})   // my Lease, my objects
//	builder.For(&v1.Website{}, builder.WithPredicates(s.Predicate(...)))         // drains always come through
//	builder.Complete(s.Reconciler(client, &v1.Website{}, reconciler))            // drains are acknowledged
//
// A controller that is made of client-go alone uses [Shard.Run], [Shard.TweakListOptions] and [Shard.Handler] in their place;
// the tests of the package have one. Promises about reconcilers and managers hold for handlers and Run just as well.
//
// # What it promises
//
//  1. A reconciler wrapped by [Shard.Reconciler] runs only while this process holds the shard's Lease, and only for objects
//     that carry the shard's label, are not draining, and have not been given up already, however stale the cache is. A
//     controlled object is worked on only where its owner is, or, if it is being deleted, once the API server says that its
//     owner is no more.
//  2. A drain is acknowledged only while no wrapped reconciler of the process is inside that object, or inside an object
//     that it controls. The worker that leaves last acknowledges at once; until then nobody else starts.
//  3. The Lease is given back only after every worker has stopped. A worker that ignores its context keeps the Lease until
//     the process ends; then the Lease runs out.
//  4. A Lease that somebody else has taken, or that a second process renews under the same name, is not taken back: the
//     manager ends with an error.
//  5. When Options.RenewDeadline has passed since the last successful renewal was sent, or the Lease is found to be lost, the
//     contexts of wrapped reconcilers are cancelled and none begins any more, even if leader election is stuck in a
//     request, and first of all in a process that was frozen. If a worker has not stopped when Options.LeaseDuration has
//     passed, the process ends ([Options].Exit). Nobody takes the Lease before twice that time.
//  6. A Lease that may have been free is used only after [Options].HoldOff, so that moves of objects that began while it was
//     free have ended. The Lease says how long that is. A process that is restarted while its Lease still names it carries
//     on at once. If the Lease was deleted and is made anew, nothing begins before another hold-off has passed.
//  7. However old its cache is when the term begins, a wrapped reconciler runs for an object, and a drain is acknowledged,
//     only once the cache shows the object as the API server has listed it after the hold-off, or later.
//  8. A client from [Shard.Client], for those who want it, writes nothing outside the term of promises 5 and 6, and patches a
//     sharded object only as long as it has not changed since it was read, be it by a move.
//
// Wrap every reconciler of the process that works on sharded objects, also those of controlled kinds. What bypasses the
// wrapper is protected by the manager's orderly stop alone.
//
// # Writing the reconciler
//
// NotFound means that the object is no longer this shard's: usually it was deleted, but it may have moved to another shard.
// A reconciler must therefore not destroy anything outside the cluster because of NotFound; use a finalizer, as in any
// controller. Owned objects carry a controller owner reference of their main object, so that they are assigned with it.
//
// # Losing the Lease
//
// Then the contexts of the workers are cancelled, the manager's Start returns an error, and the process must end at once
// with a non-zero exit code, because its workers may still be running. Its successor begins afresh. What the process has
// sent before may still be carried out; and a machine that was suspended as a whole may not count that time, so that its
// process goes on for a moment. The resource versions in its writes are the protection that remains; see [Shard.Client].
//
// # Restart and rolling update
//
// A shard that is told to stop finishes the reconciles in flight, gives its Lease back, and its objects move at once. A
// shard that is killed keeps its objects until its Lease has run out and was taken from it; if a process of the same name
// comes back before that, it carries on with its objects at once; later, it works after the hold-off. Shards of a Deployment get new names in a rolling update, so
// each replaced replica moves its objects twice; shards of a StatefulSet keep their names. Any number of shards may stop
// or start at once, in any order, also while drains are pending. Give Pods a terminationGracePeriodSeconds longer than the
// longest reconcile.
//
// # What it asks of the API server
//
// Besides the cache's lists and watches: one update of the Lease per [Options].RetryPeriod; at the begin of the term, and again
// if the Lease had to be made anew, a list of the metadata of the shard's own objects, 500 a request, for each kind that is
// worked on (promise 7); and a patch for each drain. Nothing of that grows with the number of objects at rest. While the API
// server does not answer the list, the shard keeps its Lease, works on nothing that was not confirmed, logs why, and tries
// again after at most 30 seconds.
//
// If it may not list, for example because it watches a namespace that nobody has told it of ([Resource].Namespace), it logs
// what to grant and reads each object once before it is first worked on. Aggregated API servers whose resource versions are
// no numbers cost a read for each object whose version is not the listed one.
//
// # Rights that a shard needs
//
//   - leases (coordination.k8s.io) in the shard's namespace: get, create, update
//   - main kinds: get, list, watch, patch, besides what the controller itself needs; get also serves to find out whether the
//     owner of a controlled object in deletion still exists, and list to find out whether the cache is up to date, in the
//     namespaces that are cached
//   - controlled kinds: get, list, watch, patch, besides what the controller itself needs
package shard
