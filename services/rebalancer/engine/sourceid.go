package engine

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/internal/resources"
)

// looksFor is the kind of objects that a source looks for.
type looksFor string

const (
	// forUnassigned is a stream of the objects without an available shard. forDraining is a stream of the objects that are
	// being drained.
	forUnassigned looksFor = "unassigned"
	forDraining   looksFor = "draining"
	// forUnselected is a stream of the objects with a shard that the selector of the ring does not select.
	forUnselected looksFor = "unselected"
	// forLost is a list of the objects of lost shards.
	forLost looksFor = "lost"
	// forMisplaced is a pass over labeled objects. forFollowers is a list of the objects that follow objects on the move.
	forMisplaced looksFor = "labelled"
	forFollowers looksFor = "followers"
)

// sourceID identifies a source by what it looks for, and where. The zero value identifies no source.
type sourceID struct {
	looksFor looksFor
	resource schema.GroupResource
	// namespace is the namespace in which it looks; empty for all namespaces.
	namespace string
	// selector selects the objects further; empty if there is only one such source.
	selector string
}

var (
	// newTarget represents the sources of a target until they follow it.
	newTarget = sourceID{looksFor: "new target"}
	// beingAsked represents the sources while they receive the request to list what is owed.
	beingAsked = sourceID{looksFor: "being asked"}
)

func idOf(what looksFor, r resources.Resource) sourceID {
	return sourceID{looksFor: what, resource: r.GroupResource()}
}

// in returns the ID of a source that looks in one namespace, or in all namespaces if it is empty.
func (id sourceID) in(namespace string) sourceID {
	id.namespace = namespace

	return id
}

// String returns the name of the source, from which its pauses are derived.
func (id sourceID) String() string {
	name := string(id.looksFor) + " " + id.resource.String()
	if id.namespace != "" {
		name += " in " + id.namespace
	}

	if id.selector != "" {
		name += " with " + id.selector
	}

	return name
}
