package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PolicyParameter tells an admission policy what it must know of rings. The lease monitor writes it, and undoes changes by others. It is
// not an API for users: its keys may change with the policies in deploy/base/guard.
//
// ClusterRings are not parameters of these policies, because the API server decodes the whole parameter several times per request, and it
// evaluates a policy once for each of its parameters.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=clusterring"
type PolicyParameter struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Data is what the policy must know.
	// +optional
	Data map[string]string `json:"data,omitempty"`
}

// PolicyParameterList is a list of PolicyParameters.
//
// +kubebuilder:object:root=true
type PolicyParameterList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PolicyParameter `json:"items"`
}
