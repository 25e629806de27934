// Package v1alpha1 defines the ClusterRing API: its types, their conditions, and the reasons of these. What else shards and services share, such as
// labels and names, is in package contract; a few names are here, too, because programs for kubernetes-controller-sharding find them here.
//
// +kubebuilder:object:generate=true
// +groupName=sharding.timebertt.dev
package v1alpha1
