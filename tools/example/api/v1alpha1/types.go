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
	// ReasonConfigMapTaken: a ConfigMap with the Website's name exists, but does not belong to the Website.
	ReasonConfigMapTaken = "ConfigMapTaken"
)

// Website is one page. A ConfigMap of the same name contains its HTML.
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

	// Spec is the content of the page.
	Spec WebsiteSpec `json:"spec"`
	// Status is the progress of the controller.
	// +optional
	Status WebsiteStatus `json:"status,omitempty"`
}

// Done reports whether the controller has rendered the page of the current generation.
func (w *Website) Done() bool {
	return w.Status.ObservedGeneration == w.Generation && meta.IsStatusConditionTrue(w.Status.Conditions, ConditionReady)
}

// WebsiteSpec is the content of the page. Both texts are plain; the controller escapes them.
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

// WebsiteStatus is the progress of the controller.
type WebsiteStatus struct {
	// ObservedGeneration is the generation that the conditions refer to.
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

// Fleet is a number of Ships, each with a generated name.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Ships",type=integer,JSONPath=`.status.ships`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Fleet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired size of the fleet.
	Spec FleetSpec `json:"spec"`
	// Status is its observed size.
	// +optional
	Status FleetStatus `json:"status,omitempty"`
}

// Done reports whether the fleet was observed at its desired size.
func (f *Fleet) Done() bool {
	return f.Status.ObservedGeneration == f.Generation && f.Status.Ships == f.Spec.Replicas
}

// FleetSpec is the desired size of a fleet.
type FleetSpec struct {
	// Replicas is the number of ships.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas int32 `json:"replicas"`
}

// FleetStatus is the observed size of a fleet.
type FleetStatus struct {
	// ObservedGeneration is the generation that was observed.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Ships is the number of ships that were observed.
	// +optional
	Ships int32 `json:"ships,omitempty"`
}

// FleetList is a list of Fleets.
//
// +kubebuilder:object:root=true
type FleetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the Fleets.
	Items []Fleet `json:"items"`
}

// Ship is one ship of a Fleet. It has nothing but a name.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced
// +kubebuilder:printcolumn:name="Fleet",type=string,JSONPath=`.metadata.ownerReferences[?(@.controller==true)].name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Ship struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

// ShipList is a list of Ships.
//
// +kubebuilder:object:root=true
type ShipList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the Ships.
	Items []Ship `json:"items"`
}
