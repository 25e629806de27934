// Package shard turns a controller into one shard of a ClusterRing: the controller works only on the objects that carry
// the shard's label, and only while it holds the shard's Lease.
//
// The package reads the labels of objects to decide whether this process may work on an object. It writes the shard's
// own Lease. To acknowledge a drain, it removes the shard label and the drain label of an object. It never decides
// which shard owns an object: the label tells it.
//
// One call makes a controller of controller-runtime a shard; [NewManager] replaces ctrl.NewManager:
//
//	mgr, err := shard.NewManager(config, ctrl.Options{}, shard.Options{
//		Ring:  "example",
//		Slots: shard.Scale(), // as many names as the Deployment has replicas
//		Kinds: shard.Kinds{shard.Main(&v1.Website{}), shard.Controlled(&corev1.ConfigMap{})},
//	})
//
// A controller that uses only client-go uses [Shard.Run], [Shard.TweakListOptions], and [Shard.Handler] instead; the
// tests of the package contain an example. The promises also hold for handlers and Run, except 10.
//
// # What it promises
//
//  1. A reconciler of a sharded controller runs only while this process holds the shard's Lease. It runs only for
//     objects that carry the shard's label, are not draining, and have not been released, however stale the cache is.
//     It runs for a controlled object only on the shard of its owner. If the controlled object is being deleted, it
//     also runs after the API server has confirmed that the owner no longer exists.
//
//  2. A drain is acknowledged only while no wrapped reconciler of the process works on the object, or on an object that
//     it controls. The last worker to leave acknowledges immediately; until then, no other worker starts. An object
//     that nobody works on is released at once, whatever is queued, and whatever events the controllers filter: an
//     event handler at the informer does it, with a client of its own. The timeout of a reconcile does not break it
//     off. If the answer of the API server is lost, no worker starts until it has told whether the object was released.
//
//  3. The Lease is released only after every worker has stopped. If a worker ignores its context, the process keeps the
//     Lease until it ends; then the Lease expires.
//
//  4. A Lease that another holder has taken, or that a second process renews under the same name, is not taken back:
//     the manager returns an error. The same holds for the Lease of a slot that another Pod has taken.
//
//  5. When Options.RenewDeadline has passed since the last successful renewal was sent, or when the Lease is lost, the
//     contexts of wrapped reconcilers are cancelled and no wrapped reconciler starts. This holds even if leader
//     election is stuck in a request, and in particular for a process that was frozen. If a worker has not stopped when
//     Options.LeaseDuration has passed, the process ends ([Options].Exit). Nobody takes the Lease before twice that
//     time, or that of a slot before one and a half times that time.
//
//  6. After the Lease may have been free, the shard starts work only after [Options].HoldOff. By then, all moves of
//     objects that began while the Lease was free have ended. The Lease contains the hold-off. A process that restarts
//     while its Lease still names it continues immediately. If the Lease is recreated, no work starts before a hold-off
//     has passed.
//
//  7. However old the cache is when the term begins, a wrapped reconciler runs for an object, and a drain is
//     acknowledged, only after the cache shows the object as the API server listed it after the hold-off, or later.
//
//  8. A client from [Shard.CheckWrites], which is optional, writes nothing outside the term of promises 5 and 6. It
//     patches a sharded object only if the object has not changed, for example by a move, since it was read.
//
//  9. What a reconciler holds for an object beside its queue ends with the object's stay in the shard, if the
//     reconciler implements [Releaser]: before a drain is acknowledged, and before the Lease is released. If the Lease
//     is lost, it ends within the time of promise 5, or the process does.
//
//  10. The manager refuses, by name, a controller or leader runnable that is neither sharded nor declared to run in one
//     replica or in every one, and a reconcile of a sharded kind that bypasses it. What its clients and caches show of
//     an object has neither labels nor annotations of the ring, and what is written with them keeps these. A controlled
//     object that is created with a controller reference to an object of this shard is this shard's from the start.
//
//  11. A process takes no Lease before it could work: the caches of other kinds are full, and it may list the sharded
//     kinds. It renews the Lease from then on. If its own caches are not full in time, it gives the Lease back.
//
//  12. An object whose reconcile was under way when a process ended by itself, and again when its successor in the same
//     Pod did, is not reconciled by any shard of this package until it changes, or the annotation
//     contract.LabelKeys.Held is removed.
//
// Work that bypasses the manager is protected only by its orderly shutdown.
//
// # Writing the reconciler
//
// NotFound means that the object was deleted: the shard has last seen it in deletion, or the API server has just
// confirmed that it does not exist. An object that has moved to another shard, or whose label somebody has changed, is
// not reported. A reconciler may still miss a deletion, for example while the process does not run; to be sure, use a
// finalizer, as in any controller. A reconciler is called for an absent object only if it has run for that object
// before: any other absent object may belong to another shard, or be on its way to this one. Owned objects carry a
// controller owner reference to their main object, so that they are assigned with it.
//
// # Losing the Lease
//
// If the Lease is lost, the contexts of the workers are cancelled and the manager's Start returns an error. The process
// must then end immediately with a non-zero exit code, because its workers may still be running. Its successor starts
// from scratch. The API server may still execute requests that the process has sent. If a whole machine was suspended,
// its clock may not count that time, so the process may continue for a moment. In both cases, only the resource
// versions in the writes still protect the objects; see [Shard.CheckWrites].
//
// # Restart and rolling update
//
// A shard that is told to stop hands its objects over, finishes the reconciles in flight, and releases its Lease. A
// shard that is killed keeps its objects until its Lease has expired and was taken from it; a process of the same name
// that comes back before that continues with them. With [Options].Slots, a Pod that waits takes over the name, so that
// no object moves. Give Pods a terminationGracePeriodSeconds above Options.DrainTimeout and the longest reconcile.
//
// # Load on the API server
//
// In addition to the lists and watches of the cache, a shard sends the following requests:
//
//   - one update of the Lease per [Options].RetryPeriod
//   - at the start of the term, and again if the Lease had to be recreated: a list of the metadata of the shard's own
//     objects, 500 per request, for each kind that the shard works on (promise 7)
//   - one patch for each drain, and one read if its answer is lost or the object has changed
//   - one read of the metadata of each deleted object that was reconciled and not seen in deletion. With [Releaser], or
//     if several reconcilers work on the object, one for each
//   - when objects have waited for more than two seconds until the cache shows what follows them: a list of one object
//     per resource, at most once in two seconds for all of them
//   - with slots, while the shard stops: a list of all Leases of its namespace per second, and reads of its Lease for
//     at most five seconds; while a Pod waits: an update of its own Lease per ten seconds, with [Scale] a read per five
//
// At rest, none of these costs grows with the number of objects. While the API server does not answer the list, the
// shard keeps its Lease, works on nothing that has not been confirmed, logs the reason, and retries at least every 30
// seconds. If the resource versions of an aggregated API server are not numbers, it reads each object whose version
// differs from the listed one.
//
// # Permissions that a shard needs
//
//   - leases (coordination.k8s.io) in the shard's namespace: get, create, update; with slots, also list, watch, delete
//   - with [Scale], in the shard's namespace: pods: get; what owns the Pod, such as replicasets and deployments (apps):
//     get; and get on the subresource scale of the topmost of these. With patch on pods, the highest slot goes first
//   - main and controlled kinds: get, list, watch, and patch, beside those of the controller, in the namespaces that
//     are cached
//   - events (events.k8s.io), in the namespaces of the objects: create and patch, to report objects that are held back
package shard
