package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types and reasons of a Website.
const (
	// ConditionReady is true when the page of the current generation is in the ConfigMap.
	ConditionReady = "Ready"
	// ReasonRendered: the page is in the ConfigMap.
	ReasonRendered = "Rendered"
	// ReasonConfigMapTaken: a ConfigMap of the Website's name exists and is not the Website's.
	ReasonConfigMapTaken = "ConfigMapTaken"
)

// Website is one page. Its HTML is kept in a ConfigMap of the same name.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced
// +kubebuilder:printcolumn:name="Title",type=string,JSONPath=`.spec.title`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Website struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what the page shall say.
	Spec WebsiteSpec `json:"spec"`
	// Status is how far the controller has come.
	// +optional
	Status WebsiteStatus `json:"status,omitempty"`
}

// Done reports whether the controller has rendered the page of the current generation.
func (w *Website) Done() bool {
	return w.Status.ObservedGeneration == w.Generation && meta.IsStatusConditionTrue(w.Status.Conditions, ConditionReady)
}

// WebsiteSpec is what the page shall say. Both texts are plain; the controller escapes them.
type WebsiteSpec struct {
	// Title is the heading of the page.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	Title string `json:"title"`
	// Body is the text below it.
	// +kubebuilder:validation:MaxLength=10000
	// +optional
	Body string `json:"body,omitempty"`
}

// WebsiteStatus is how far the controller has come.
type WebsiteStatus struct {
	// ObservedGeneration is the generation that the conditions speak of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions of the Website; see the constants of this package.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// WebsiteList is a list of Websites.
//
// +kubebuilder:object:root=true
type WebsiteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the Websites.
	Items []Website `json:"items"`
}
