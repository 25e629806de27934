// Package v1alpha1 is the contract of ClusterRing on the wire: the ClusterRing API and every label, name and path that
// shards and services agree on.
//
// It decides nothing. Whatever a shard, a service or another implementation must spell the same way is spelled here, once.
//
// +kubebuilder:object:generate=true
// +groupName=sharding.timebertt.dev
package v1alpha1
