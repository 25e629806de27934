// Package plan decides what shall happen to the shard and drain labels of one object.
//
// It reads what the object carries, what its ring owns where, and for a controlled object where its owner is; it returns one
// [Action]. It does nothing itself, and it knows neither time nor limits: the engine may postpone an action, never change it.
package plan

// Ring says which shards count.
type Ring interface {
	// Available says whether objects may be assigned to the shard.
	Available(shard string) bool
}

// Object is what a decision needs to know of an object.
type Object struct {
	// Shard is the value of the shard label; empty if there is no label, or one without a value.
	Shard string
	// Labelled says whether the shard label is present.
	Labelled bool
	// Draining says whether the drain label is present.
	Draining bool
	// Belongs says whether the ring covers the object: its resource is in the ring, its namespace is selected, the ring is
	// not being deleted and, for a controlled object, its controller is one of the ring's main objects.
	Belongs bool
	// Desired is the shard that the ring gives the object's key to; empty if there is no available shard.
	Desired string
	// Controlled says whether the object follows an owner.
	Controlled bool
	// Parent says whether others may follow the object.
	Parent bool
	// Owner is the owner of a controlled object. It is not looked at where Controlled is false or [Object.NeedsOwner] is.
	Owner Owner
}

// Owner is what a decision needs to know of the main object that controls another one.
type Owner struct {
	// Exists is false if there is no such object (any more).
	Exists bool
	// Shard is the value of its shard label; empty if it has none.
	Shard string
	// Draining says whether its drain label is present.
	Draining bool
	// Belongs says whether the ring covers the owner.
	Belongs bool
}

// Verb is what to do with an object's labels.
type Verb string

const (
	// None leaves the object as it is.
	None Verb = "none"
	// Assign writes the shard label and removes the drain label.
	Assign Verb = "assign"
	// Drain adds the drain label; it names the shard that comes next, if that may have the object at once.
	Drain Verb = "drain"
	// Withdraw removes the drain label.
	Withdraw Verb = "withdraw"
	// Release removes both labels: the object is no longer the ring's business.
	Release Verb = "release"
	// AwaitAcknowledgement leaves the object to its shard, which was asked to give it up, or to give its owner up.
	AwaitAcknowledgement Verb = "await-acknowledgement"
	// AwaitShard leaves the object until there is an available shard.
	AwaitShard Verb = "await-shard"
)

// Action is what to do with an object's labels, and under which condition.
type Action struct {
	// Verb is what to do.
	Verb Verb
	// To is the shard to assign to, or the one that a drain names; empty with a drain that names none.
	To string
	// ChildrenFirst says that all that follows the object has to be at the shard to assign to before the object is.
	ChildrenFirst bool
	// TakenFrom is a shard that loses the object without having been asked. It must be confirmed, by a live read of its
	// Lease, that the shard does not hold it; until then the action must wait. Empty if nothing is to be confirmed.
	TakenFrom string
}

// NeedsOwner says whether [Decide] looks at the owner of the object.
func (o Object) NeedsOwner() bool { return o.Controlled && o.Labels() }

// Labels says whether the object carries a label of the ring, or should carry one.
func (o Object) Labels() bool { return o.Labelled || o.Draining || o.Belongs }

// Decide returns what to do with an object.
//
// For main objects:
//
//  1. An object without a shard is assigned, after all that follows it.
//  2. An object of a shard that is not available is assigned anew likewise, once that shard is known not to hold its Lease.
//  3. An object of an available shard that belongs to another one is drained; its shard gives it up, to the other one at once if nothing
//     follows the object.
//  4. A drain that the ring no longer wants is withdrawn.
//  5. An object that the ring does not cover is drained and then left without labels.
//
// A controlled object goes to where its owner, the main object, is, unless the owner is about to leave. Once nobody works on the owner
// it goes to where the owner will be, and is there first: the shard that acknowledged the owner's drain has stopped working on all that the owner controls, and
// the next one begins with the owner, when it sees all of it. What follows a controlled object goes before that one in turn.
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
	case !r.Available(o.Shard):
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
	case !r.Available(o.Shard):
		return Action{Verb: Release, TakenFrom: o.Shard}
	case o.Draining:
		return Action{Verb: AwaitAcknowledgement}
	}

	return Action{Verb: Drain}
}

func decideControlled(r Ring, o Object) Action {
	switch {
	case !o.Belongs && o.Owner.Exists && !o.Owner.Belongs && o.Owner.Shard != "":
		// The ring leaves the owner first.
		return Action{Verb: AwaitAcknowledgement}
	case !o.Belongs:
		return Action{Verb: Release}
	case o.Desired == "":
		return Action{Verb: AwaitShard}
	case !o.Owner.Exists && r.Available(o.Shard):
		return moveTo(r, o, o.Shard)
	case !o.Owner.Exists:
		// The garbage collector is about to take the object. Until then somebody may have to handle its finalizers.
		return moveTo(r, o, o.Desired)
	case !r.Available(o.Owner.Shard):
		return moveTo(r, o, o.Desired) // and the owner comes after it
	case o.Owner.Draining && o.Shard != o.Owner.Shard && r.Available(o.Shard):
		// The owner is about to move on: moving twice would help nobody.
		return Action{Verb: AwaitAcknowledgement}
	}

	return moveTo(r, o, o.Owner.Shard)
}

// moveTo takes a controlled object to the shard of its owner.
func moveTo(r Ring, o Object, shard string) Action {
	switch {
	case o.Shard == shard && o.Draining:
		return Action{Verb: Withdraw}
	case o.Shard == shard:
		return Action{Verb: None}
	case o.Shard != "" && !r.Available(o.Shard):
		return Action{Verb: Assign, To: shard, TakenFrom: o.Shard, ChildrenFirst: o.Parent}
	}

	return Action{Verb: Assign, To: shard, ChildrenFirst: o.Parent}
}
