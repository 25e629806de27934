package admission

import (
	"encoding/json"
	"fmt"
	"strings"
)

// operation is one operation of a JSON Patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

const labelsPath = "/metadata/labels"

var escapePointer = strings.NewReplacer("~", "~0", "/", "~1")

// Patch returns the answer as a JSON Patch for the object of the request, or nil if the answer changes nothing.
func (r *Ring) Patch(a Answer, obj *Object) ([]byte, error) {
	var ops []operation

	switch {
	case a.Shard == "":
	case len(obj.Labels) == 0:
		// The map may be missing, and "add" does not create parents. If the map exists, it is empty, and nothing is lost.
		ops = append(ops, operation{Op: "add", Path: labelsPath, Value: map[string]string{r.shardLabel: a.Shard}})
	default:
		ops = append(ops, operation{Op: "add", Path: labelPath(r.shardLabel), Value: a.Shard})
	}

	if a.RemoveDrain {
		ops = append(ops, operation{Op: "remove", Path: labelPath(r.drainLabel)})
	}

	if a.Drain != "" { // the object has labels: it has a shard
		ops = append(ops, operation{Op: "add", Path: labelPath(r.drainLabel), Value: a.Drain})
	}

	if len(ops) == 0 {
		return nil, nil
	}

	patch, err := json.Marshal(ops)
	if err != nil {
		return nil, fmt.Errorf("encode the patch for ring %s: %w", r.facts.Name, err)
	}

	return patch, nil
}

func labelPath(key string) string { return labelsPath + "/" + escapePointer.Replace(key) }
