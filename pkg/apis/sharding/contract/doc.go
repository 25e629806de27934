// Package contract defines the contract of ClusterRing on the wire, beside the ClusterRing API in package v1alpha1: every label, annotation, name,
// and path that shards and services share.
//
// It makes no decisions. It defines, once, every string that shards, services, and other implementations must spell the same way. It imports
// nothing else of this repository.
package contract
