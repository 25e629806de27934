// Package v1alpha1 defines the contract of ClusterRing on the wire: the ClusterRing API, and every label, name, and path that
// shards and services share.
//
// It makes no decisions. It defines, once, every string that shards, services, and other implementations must spell the same way.
//
// +kubebuilder:object:generate=true
// +groupName=sharding.timebertt.dev
package v1alpha1
