// Package plan decides what happens to the shard label and the drain label of one object.
//
// It reads the labels of the object, where the ring assigns the object, and for a controlled object where its owner is.
// It returns one [Action]. It has no side effects, and knows neither time nor limits: the engine may postpone an
// action, but never change it.
package plan

// Ring determines which shards work.
type Ring interface {
	// Works reports whether the shard may work on objects: it is available, or stops and has not released all its objects
	// yet.
	Works(shard string) bool
}

// Object is what a decision needs to know about an object.
type Object struct {
	// Shard is the value of the shard label; empty if there is no label, or one without a value.
	Shard string
	// Labelled reports whether the shard label is present.
	Labelled bool
	// Draining reports whether the drain label is present.
	Draining bool
	// Belongs reports whether the ring covers the object: its resource is in the ring, its namespace is selected, the ring
	// is not being deleted, and, for a controlled object, its controller is one of the ring's main objects.
	Belongs bool
	// Desired is the shard that owns the object's key; empty if no shard is available.
	Desired string
	// Controlled reports whether the object follows an owner.
	Controlled bool
	// Parent reports whether other objects may follow the object.
	Parent bool
	// Owner is the owner of a controlled object. It is ignored unless [Object.NeedsOwner] is true.
	Owner Owner
}

// Owner is what a decision needs to know about the main object that controls another object.
type Owner struct {
	// Exists is false if the object does not exist (any more).
	Exists bool
	// Shard is the value of its shard label; empty if it has none.
	Shard string
	// Draining reports whether its drain label is present.
	Draining bool
	// Belongs reports whether the ring covers the owner.
	Belongs bool
}

// Verb is what to do with an object's labels.
type Verb string

const (
	// None leaves the object as it is.
	None Verb = "none"
	// Assign writes the shard label and removes the drain label.
	Assign Verb = "assign"
	// Drain adds the drain label. It names the next shard if that shard may have the object immediately.
	Drain Verb = "drain"
	// Withdraw removes the drain label.
	Withdraw Verb = "withdraw"
	// Release removes both labels: the object is no longer part of the ring.
	Release Verb = "release"
	// AwaitAcknowledgement leaves the object to its shard, which was asked to release the object or its owner.
	AwaitAcknowledgement Verb = "await-acknowledgement"
	// AwaitShard leaves the object until a shard is available.
	AwaitShard Verb = "await-shard"
)

// Action is what to do with an object's labels, and under which conditions.
type Action struct {
	// Verb is what to do.
	Verb Verb
	// To is the shard to assign to, or the shard that a drain names; empty for a drain that names none.
	To string
	// ChildrenFirst requires that everything that follows the object is at the shard to assign to before the object is.
	ChildrenFirst bool
	// TakenFrom is a shard that loses the object without having been asked. A live read of its Lease must confirm that the
	// shard does not hold it; until then, the action must wait. Empty if nothing must be confirmed.
	TakenFrom string
}

// NeedsOwner reports whether [Decide] uses the owner of the object.
func (o Object) NeedsOwner() bool { return o.Controlled && o.Labels() }

// Labels reports whether the object carries a label of the ring, or should carry one.
func (o Object) Labels() bool { return o.Labelled || o.Draining || o.Belongs }

// Decide returns what to do with an object.
//
// For main objects:
//
//  1. An object without a shard is assigned, after everything that follows it.
//  2. An object of a shard that does not work is reassigned in the same way, when that shard is known not to hold its
//     Lease.
//  3. An object of a working shard that belongs to another shard is drained. Its shard releases it. If nothing follows
//     the object, the shard hands it directly to the other shard.
//  4. A drain that the ring no longer needs is withdrawn.
//  5. An object that the ring does not cover is drained, and then loses its labels.
//
// A controlled object goes to the shard of its owner, the main object, unless the owner is about to leave. When no
// shard works on the owner, the controlled object goes to the owner's next shard, before the owner. This is safe: the
// shard that acknowledged the owner's drain has stopped working on everything that the owner controls, and the next
// shard starts with the owner when it sees everything. Objects that follow a controlled object go before that object.
func Decide(r Ring, o Object) Action {
	switch {
	case !o.Labels():
		return Action{Verb: None}
	case o.Controlled:
		return decideControlled(r, o)
	case !o.Belongs:
		return leave(r, o)
	}

	return decideMain(r, o)
}

func decideMain(r Ring, o Object) Action {
	switch {
	case o.Desired == "":
		return Action{Verb: AwaitShard}
	case o.Shard == "":
		return Action{Verb: Assign, To: o.Desired, ChildrenFirst: o.Parent}
	case !r.Works(o.Shard):
		return Action{Verb: Assign, To: o.Desired, TakenFrom: o.Shard, ChildrenFirst: o.Parent}
	case o.Shard != o.Desired && o.Draining:
		return Action{Verb: AwaitAcknowledgement}
	case o.Shard != o.Desired && o.Parent:
		return Action{Verb: Drain}
	case o.Shard != o.Desired:
		return Action{Verb: Drain, To: o.Desired}
	case o.Draining:
		return Action{Verb: Withdraw}
	}

	return Action{Verb: None}
}

// leave frees a main object that the ring does not cover from its labels.
func leave(r Ring, o Object) Action {
	switch {
	case o.Shard == "":
		return Action{Verb: Release}
	case !r.Works(o.Shard):
		return Action{Verb: Release, TakenFrom: o.Shard}
	case o.Draining:
		return Action{Verb: AwaitAcknowledgement}
	}

	return Action{Verb: Drain}
}

func decideControlled(r Ring, o Object) Action {
	switch {
	case !o.Belongs && o.Shard != "" && o.Owner.Exists && !o.Owner.Belongs && o.Owner.Shard != "":
		// The owner leaves the ring first.
		return Action{Verb: AwaitAcknowledgement}
	case !o.Belongs:
		return Action{Verb: Release}
	case o.Desired == "":
		return Action{Verb: AwaitShard}
	case !o.Owner.Exists && r.Works(o.Shard):
		return moveTo(r, o, o.Shard)
	case !o.Owner.Exists:
		// The garbage collector is about to delete the object. Until then, a shard may have to handle its finalizers.
		return moveTo(r, o, o.Desired)
	case !r.Works(o.Owner.Shard):
		return moveTo(r, o, o.Desired) // and the owner follows it
	case o.Owner.Draining && o.Shard != o.Owner.Shard && r.Works(o.Shard):
		// The owner is about to move: moving twice has no benefit.
		return Action{Verb: AwaitAcknowledgement}
	}

	return moveTo(r, o, o.Owner.Shard)
}

// moveTo moves a controlled object to the shard of its owner.
func moveTo(r Ring, o Object, shard string) Action {
	switch {
	case o.Shard == shard && o.Draining:
		return Action{Verb: Withdraw}
	case o.Shard == shard:
		return Action{Verb: None}
	case o.Shard != "" && !r.Works(o.Shard):
		return Action{Verb: Assign, To: shard, TakenFrom: o.Shard, ChildrenFirst: o.Parent}
	}

	return Action{Verb: Assign, To: shard, ChildrenFirst: o.Parent}
}
