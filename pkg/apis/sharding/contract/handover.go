package contract

import (
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

const (
	// AnnotationHandoverPrefix begins the annotation that lists what a shard must see before it works on an object; see [Handover].
	AnnotationHandoverPrefix = "handover.alpha.sharding.timebertt.dev/"
	// maxHandover limits the resources that a handover names: as many as a ring may have.
	maxHandover = 1024
)

// HandoverAnnotation returns the default key of the annotation for the ring's handovers. A ring with spec.shardLabel has another one: see [LabelKeysOf].
func HandoverAnnotation(ring string) string { return AnnotationHandoverPrefix + RingSuffix(ring) }

// Handover maps each resource whose objects follow an object to the highest resource version in which one of these objects came
// to the object's shard. It is written together with that shard. A shard that works on the object from a cache of these resources
// waits until the cache has reached that version; otherwise, it would create again what it does not see yet. Versions of one
// resource are comparable since Kubernetes 1.35. The zero value means that nothing follows the object.
type Handover map[schema.GroupResource]string

var errHandover = errors.New("not a handover")

// String returns the value of the annotation; empty if the handover is empty.
func (h Handover) String() string {
	if len(h) == 0 {
		return ""
	}

	text := make(map[string]string, len(h))
	for gr, version := range h {
		text[gr.String()] = version
	}

	body, err := json.Marshal(text)
	if err != nil {
		return "" // strings can always be encoded
	}

	return string(body)
}

// Reached records that an object of the resource came to its shard in a resource version. It keeps the higher version. A version
// that is not a number replaces the recorded one.
func (h Handover) Reached(gr schema.GroupResource, version string) {
	if order, err := resourceversion.CompareResourceVersion(version, h[gr]); err != nil || order > 0 {
		h[gr] = version
	}
}

// ParseHandover parses the value of the annotation. An empty value means that nothing follows the object.
func ParseHandover(value string) (Handover, error) {
	if value == "" {
		return nil, nil
	}

	text := map[string]string{}
	if err := json.Unmarshal([]byte(value), &text); err != nil {
		return nil, fmt.Errorf("%w: %w", errHandover, err)
	}

	if len(text) > maxHandover {
		return nil, fmt.Errorf("%w: it names %d resources, at most %d are allowed", errHandover, len(text), maxHandover)
	}

	h := make(Handover, len(text))
	for name, version := range text {
		gr := schema.ParseGroupResource(name)
		if gr.Resource == "" || version == "" {
			return nil, fmt.Errorf("%w: %q has version %q", errHandover, name, version)
		}

		h[gr] = version
	}

	return h, nil
}
