// Package v1alpha1 is the API of the example controller: a Website, whose page is rendered into a ConfigMap.
//
// +kubebuilder:object:generate=true
// +groupName=example.clusterring.dev
package v1alpha1
