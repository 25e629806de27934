// Package hook lets packages below pkg/shard create shards in ways that authors of controllers do not need. The shard package sets the
// functions when it is initialized.
package hook

import (
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// WithoutLease makes a *shard.Shard work as if it held its Lease. It is for the shardtest package.
var WithoutLease func(shard any)

// Identity identifies a shard of this process.
type Identity struct {
	// Ring is the name of the ring, Name the name of the shard.
	Ring, Name string
	// Namespace is the namespace of its Lease; empty for that of the Pod.
	Namespace string
	// ShardLabel is spec.shardLabel of the ring; empty if it has none.
	ShardLabel string
}

// Lock describes how a leader election that the program configures itself writes the Lease of a shard.
type Lock struct {
	// Leases writes the Lease.
	Leases coordinationv1client.LeasesGetter
	// Events may be nil.
	Events resourcelock.EventRecorder
	// Labels are the labels of the Lease, including that of the ring.
	Labels map[string]string
}

// Complete fills in what is empty of an identity, and validates it.
var Complete func(Identity) (Identity, error)

// Client returns the client for the Lease of a shard, with timeouts that leave enough time for another attempt.
var Client func(*rest.Config) (coordinationv1client.LeasesGetter, error)

// Member is a shard of this process whose leader election the program configures itself.
type Member interface {
	// Elect returns the lock of the shard. Call it once.
	Elect(Lock) resourcelock.Interface
}

// Join makes the process the shard of the identity. Reconcilers that are wrapped for this name and ring from now on belong to it, and no
// longer to an earlier member. The config lets the shard read what it must not take from a cache. Without it, no reconciler belongs to the member.
var Join func(Identity, *rest.Config) (Member, error)

// LabelKeys returns the keys of the labels of a shard: those of the member with this ring and name, or the default keys of the ring if the process
// has not joined as that shard.
var LabelKeys func(ring, name string) v1alpha1.LabelKeys

// Wrapped is a reconciler of a shard.
type Wrapped struct {
	Identity

	// Client reads from the manager's cache.
	Client client.Client
	// Object is an empty object of the kind.
	Object client.Object
	// Do is called only for objects that are in the cache.
	Do reconcile.Reconciler
}

// Wrap returns the reconciler that calls w.Do while the shard may work on an object, and acknowledges drains. If the process has not
// joined as the shard, somebody else looks after its Lease.
var Wrap func(w Wrapped) (reconcile.Reconciler, error)
