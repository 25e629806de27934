package engine

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/internal/resources"
)

// looksFor is what a source looks for.
type looksFor string

const (
	// forUnassigned is a stream of the objects without an available shard, forDraining one of those that are being drained.
	forUnassigned looksFor = "unassigned"
	forDraining   looksFor = "draining"
	// forLost is a list of the objects of lost shards.
	forLost looksFor = "lost"
	// forMisplaced is a pass over labelled objects, forFollowers a list of what follows objects on the move.
	forMisplaced looksFor = "labelled"
	forFollowers looksFor = "followers"
)

// sourceID says what a source looks for, and where. The zero value names none.
type sourceID struct {
	looksFor looksFor
	resource schema.GroupResource
	// namespace is the one where it looks; empty for all.
	namespace string
}

var (
	// newTarget stands for the sources of a target that do not follow it yet.
	newTarget = sourceID{looksFor: "new target"}
	// beingAsked stands for those that are just being asked to list what is owed.
	beingAsked = sourceID{looksFor: "being asked"}
)

func idOf(what looksFor, r resources.Resource) sourceID {
	return sourceID{looksFor: what, resource: r.GroupResource()}
}

// in returns the ID of a source that looks in one namespace, or in all if it is empty.
func (id sourceID) in(namespace string) sourceID {
	id.namespace = namespace

	return id
}

// String names the source for whatever is spread by its name.
func (id sourceID) String() string {
	name := string(id.looksFor) + " " + id.resource.String()
	if id.namespace != "" {
		name += " in " + id.namespace
	}

	return name
}
