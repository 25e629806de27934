// Package within lets the packages below pkg/shard ask what authors of controllers do not need: the functions of package shard that
// take its types can be called by nobody else.
package within

import (
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Identity identifies a shard.
type Identity struct {
	// Ring is the name of the ring, Name the name of the shard.
	Ring, Name string
	// Namespace is the namespace of the shard's Lease.
	Namespace string
	// ShardLabel is spec.shardLabel of the ring; empty if it has none.
	ShardLabel string
}

// Lock describes how a leader election that the program configures itself writes the Lease of a shard.
type Lock struct {
	Identity

	// Leases writes the Lease.
	Leases coordinationv1client.LeasesGetter
	// Events may be nil.
	Events resourcelock.EventRecorder
	// Labels are the labels of the Lease, including that of the ring.
	Labels map[string]string
	// Exit ends the process; nil: as by default.
	Exit func(error)
}

// Apart describes a shard whose Lease somebody else looks after.
type Apart struct {
	Identity

	// Config lets the shard read what it must not take from a cache. Nil: it takes everything from the cache, as in a test.
	Config *rest.Config
}
