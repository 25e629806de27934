// Package clusterring says which ring an object is about, who may act for the ring, and what is known about it: the
// same in every service.
//
// It reads ClusterRings, namespaces, election Leases, and which webhooks and policies change objects. It decides which
// of two sharders works on a ring, the services or the one that the ring's own shards elect ([Identity], [Tenure]);
// which of the rings with one label may use it ([Older]); and what the fence knows of a ring ([FenceParameter]). It
// writes the holder of a ring, its finalizer, and one service's part of its status ([StatusWriter]).
//
// # Invariants
//
//  1. A ring has at most one holder. The holder is one value in one object, which is written on the condition that the
//     object has not changed.
//  2. Only the holder gives a ring up, after it has stopped to work. The only exception is a holder whose election
//     Lease has run out.
//  3. A ring whose labels must be removed before it is deleted has the finalizer, no matter who holds it, and also
//     between two holders.
//  4. Of all rings with one label, exactly one may use it, in whatever order they were seen: the one that was created
//     first, and of those that were created in the same second, the one whose name comes first. A ring that is being
//     deleted keeps its label until it is gone, because objects still carry it.
//  5. Rings with short names, and without spec.shardLabel, may always use their labels: the suffixes contain their
//     names.
//
// The decisions in sharder.go and fence.go use no client, no clock, and no log.
//
// # Rejected alternatives
//
// A Lease for each ring, which both sharders would have to hold, costs the services renewals for each ring. A switch
// that each sharder obeys when it sees it lets both work while one has not seen it yet.
package clusterring
