// Package v1alpha1 is the API of the example controller: Websites, each rendered into a ConfigMap, and Fleets, which
// consist of Ships.
//
// +kubebuilder:object:generate=true
// +groupName=example.clusterring.dev
package v1alpha1
