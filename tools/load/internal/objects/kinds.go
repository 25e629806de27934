package objects

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is a kind of object.
type Kind struct {
	schema.GroupVersionResource

	Kind string
}

// The kinds that measurements create.
var (
	ConfigMaps = Kind{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "ConfigMap"}
	Websites   = Kind{schema.GroupVersionResource{Group: "example.clusterring.dev", Version: "v1alpha1", Resource: "websites"}, "Website"}
	Pods       = Kind{schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "Pod"}
	Leases     = Kind{schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, "Lease"}
)

// Deployments are the main resource of rings without main objects.
var Deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}

// Path returns the path of an object, or of the collection if name is empty. The namespace is empty for all namespaces.
func (k Kind) Path(namespace, name string) string {
	path := "/apis/" + k.Group + "/" + k.Version
	if k.Group == "" {
		path = "/api/" + k.Version
	}

	if namespace != "" {
		path += "/namespaces/" + namespace
	}

	return strings.TrimSuffix(path+"/"+k.Resource+"/"+name, "/")
}

// Batch names objects: Prefix-0 to Prefix-(Count-1).
type Batch struct {
	Kind              Kind
	Namespace, Prefix string
	Count             int
	// Labels returns the labels of a new object; nil means none. It is called concurrently.
	Labels func(i int) map[string]string
	// Owner is the controller of all objects; nil means none.
	Owner *metav1.OwnerReference
}

// Name returns the name of an object of the batch.
func (b Batch) Name(i int) string { return b.Prefix + "-" + strconv.Itoa(i) }

// Body returns the JSON of an object of the batch.
func (b Batch) Body(i int) ([]byte, error) {
	meta := map[string]any{"name": b.Name(i), "namespace": b.Namespace}
	if b.Labels != nil {
		meta["labels"] = b.Labels(i)
	}

	if b.Owner != nil {
		meta["ownerReferences"] = []*metav1.OwnerReference{b.Owner}
	}

	object := map[string]any{"apiVersion": b.Kind.GroupVersion().String(), "kind": b.Kind.Kind, "metadata": meta}
	switch b.Kind {
	case ConfigMaps:
		object["data"] = map[string]string{"made": "to be measured"}
	case Websites:
		object["spec"] = map[string]string{"title": "Made to be measured"}
	}

	body, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", b.Kind.Kind, b.Name(i), err)
	}

	return body, nil
}
