package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of the types of this package.
const GroupName = "sharding.timebertt.dev"

// GroupVersion is the group and version that this package declares.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

// SchemeBuilder collects the functions that add the types of this package to a scheme.
var SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

// AddToScheme adds the types of this package to a scheme. It returns an error if the scheme already contains another type under one of their kinds.
var AddToScheme = SchemeBuilder.AddToScheme

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &ClusterRing{}, &ClusterRingList{}, &PolicyParameter{}, &PolicyParameterList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)

	return nil
}
