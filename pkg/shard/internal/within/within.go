// Package within lets the packages below pkg/shard ask what authors of controllers do not need: the functions of
// package shard that take its type can be called by nobody else.
package within

import (
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Shard describes a shard whose Lease somebody else looks after.
type Shard struct {
	// Ring is the name of the ring, Name that of the shard, and Namespace that of the namespace of its Lease.
	Ring, Name, Namespace string
	// Config lets the shard read what it must not take from a cache. Nil: it takes all from the cache, as in a test.
	Config *rest.Config
	// Leases writes the Lease, if a leader election does that which the program configures itself. Events may be nil.
	Leases coordinationv1client.LeasesGetter
	Events resourcelock.EventRecorder
	// Exit ends the process; nil: as by default.
	Exit func(error)
}
