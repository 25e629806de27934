// Package owner decides, from the objects of a ring and the shards that hold their Leases, what is not where it should be.
package owner

import (
	"fmt"
	"slices"
)

// Object is what counts of a Website or its ConfigMap.
type Object struct {
	// Kind and Name say which object it is.
	Kind, Name string
	// UID is its own, Owner that of the object that controls it; empty if nothing does.
	UID, Owner string
	// Shard is the value of the ring's shard label, empty without one.
	Shard string
	// Draining is true if it has the ring's drain label.
	Draining bool
	// Done is true if its status says that the work on it is done. It counts for objects without an owner.
	Done bool
}

// Problems returns, in the order of the objects, what keeps the ownership from being complete: an object without a shard
// that is available, or one that is to be given up; an object without an owner whose work is not done or that has no child; a child
// elsewhere than its owner. Children whose owner is not among the objects are left out: they are being collected.
func Problems(objects []Object, available []string) []string {
	owners, parents := map[string]Object{}, map[string]bool{}
	for _, o := range objects {
		if o.Owner == "" {
			owners[o.UID] = o
		} else {
			parents[o.Owner] = true
		}
	}
	var found []string
	for _, o := range objects {
		parent, known := owners[o.Owner]
		if o.Owner != "" && !known {
			continue
		}
		name := o.Kind + " " + o.Name
		if !slices.Contains(available, o.Shard) {
			found = append(found, fmt.Sprintf("%s is at shard %q, which is not available", name, o.Shard))
		}
		if o.Draining {
			found = append(found, name+" is still to be given up")
		}
		if known && parent.Shard != o.Shard {
			found = append(found, fmt.Sprintf("%s is at shard %q, its owner at %q", name, o.Shard, parent.Shard))
		}
		if o.Owner == "" && !o.Done {
			found = append(found, name+" does not say that the work on it is done")
		}
		if o.Owner == "" && !parents[o.UID] {
			found = append(found, name+" has no child")
		}
	}
	return found
}
