package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A child moves to the shard at which its owner was seen. If the owner could move on before the child's label is
// written, the child would reach a shard that has just stopped to work on this owner.
func TestOwnerStaysWhileItsChildIsAssigned(t *testing.T) {
	w := newWorld(t)
	owner := w.owner(w.namesAt(w.target, "b", "owner", 1)[0], "a")
	other := w.owner(w.namesAt(w.target, "b", "other", 1)[0], "a")
	first, second := w.child(owner, "first", ""), w.child(owner, "second", "")
	letFirstGo, letSecondGo := w.hold("secrets/first"), w.hold("secrets/second")

	w.e.SetTarget(w.targetOf("a"))
	w.run()
	w.await(func() bool { return w.has("secrets/first") && w.has("secrets/second") },
		"children of one owner should not wait for each other")

	w.e.SetTarget(w.target) // b has joined
	w.await(func() bool { return w.has("configmaps/"+owner.Name) || w.putOff(owner) }, "the owner should be processed")
	require.False(t, w.has("configmaps/"+owner.Name),
		"the owner is drained while its children are being assigned to its old shard")
	w.becomes(other, "a", true) // other objects do not wait

	letFirstGo()
	w.becomes(first, "a", false)
	require.False(t, w.has("configmaps/"+owner.Name), "the write of one child is still in progress")
	letSecondGo()
	w.becomes(second, "a", false)
	w.becomes(owner, "a", true)
}

// A read of an owner whose labels are being written may be out of date a moment later.
func TestChildIsDecidedAfterItsOwner(t *testing.T) {
	w := newWorld(t)
	owner := w.owner(w.namesAt(w.target, "b", "owner", 1)[0], "")
	letGo := w.hold("configmaps/" + owner.Name)

	w.e.SetTarget(w.target)
	w.run()
	w.await(func() bool { return w.has("configmaps/" + owner.Name) }, "the owner should be assigned")

	child := w.child(owner, "child", "b")
	stray := w.child(owner, "stray", "")
	looked := func() bool { return w.putOff(owner) || w.asked("configmaps/"+owner.Name) }
	w.await(looked, "the child without a shard should be processed")
	require.True(t, w.putOff(owner), "the owner is read while it is being written")

	letGo()
	w.becomes(owner, "b", false)
	w.becomes(stray, "b", false)
	w.becomes(child, "b", false)
}

// A stop does not wait for writes, or for objects that were deferred.
func TestStopsAmidAWrite(t *testing.T) {
	w := newWorld(t)
	owner := w.owner(w.namesAt(w.target, "b", "owner", 1)[0], "")
	w.hold("configmaps/" + owner.Name)
	w.e.SetTarget(w.target)
	w.run()
	w.await(func() bool { return w.has("configmaps/" + owner.Name) }, "the owner should be written")
	w.stop()
}
