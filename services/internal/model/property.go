package model

// Property is what is checked.
type Property string

// The properties.
const (
	// OneWorker is that no two shards work on an object at once, nor on an owner and its child, while processes keep to their
	// Leases.
	OneWorker Property = "I1: two shards work on one object, or on an owner and its child"
	// NoTaking is that an object whose shard holds its Lease leaves it only after the shard has stopped working on it and
	// removed the labels itself. A shard in its hold-off works on nothing yet, and may lose what it had in an earlier term.
	NoTaking Property = "I6: a live shard loses an object that it has not given up"
	// ChildStays is that a child does not leave the shard that has its owner and holds its Lease. Where the owner is not, the
	// child may be taken away: the shard does not work on it.
	ChildStays Property = "I6: a live shard loses the child of an object that it has"
	// NothingLeft is that no object carries a label of a ring that is gone.
	NothingLeft Property = "I8: an object has a label of a ring that is gone"
	// Ownership is that, once there are no more faults, all objects come to the shard that the ring gives them to and stay,
	// if there is a shard; and that a deleted ring goes.
	Ownership Property = "I2: an object does not come to an available shard"
	// Progress is that, once there are no more faults, nothing is written again and again.
	Progress Property = "I2: labels or Leases change for ever"
)

// breach is a safety property that a step breaks, as a number above zero, so that steps are small.
type breach uint8

var breaches = [...]Property{1: OneWorker, 2: NoTaking, 3: ChildStays, 4: NothingLeft}

// broken is the property that a step breaks, if any.
func (m *machine) broken(e event, to state) breach {
	switch {
	case m.overlap(to) && !m.forgives[1]:
		return 1
	case m.taken(e, to) && !m.forgives[2]:
		return 2
	case m.childTaken(to) && !m.forgives[3]:
		return 3
	case to.ring == gone && (to.main != (labels{}) || to.child != nobody) && !m.forgives[4]:
		return 4
	}

	return 0
}

// overlap says whether two shards are at work at once, not counting those that were frozen beyond their deadline.
func (m *machine) overlap(s state) bool {
	workers := 0

	for _, sh := range s.shards {
		if (sh.inMain || sh.inChild) && sh.since <= 1 {
			workers++
		}
	}

	return workers > 1
}

// taken says whether a step takes the main object from a shard that is at work, or may be.
func (m *machine) taken(e event, to state) bool {
	owner := m.from.main.shard
	if owner == nobody || owner == to.main.shard || !m.alive(owner) {
		return false
	}

	return e.kind != acknowledges && e.kind != passesOn || m.from.at(owner).inside()
}

// childTaken says so of the child, if the shard has its owner.
func (m *machine) childTaken(to state) bool {
	owner := m.from.main.shard

	return owner != nobody && owner == m.from.child && owner != to.child && m.alive(owner)
}

// alive says whether a shard works, or may work, and rightly so. A Lease that somebody has deleted makes no difference to
// its process.
func (m *machine) alive(n name) bool {
	sh := m.from.at(n)
	works := sh.process == running || sh.process == stopping

	return works && sh.keeps() && (sh.lease == held || sh.lease == absent)
}

// settled says whether everything is as it is to stay.
func (m *machine) settled(s *state) bool {
	if s.ring != present {
		return s.ring == gone
	}

	owner := named(m.desired(m.views[m.viewOf(s)], true))
	if m.Mutation == RingsDiffer {
		owner = s.main.shard
	}

	if owner == nobody || s.main != (labels{shard: owner}) || s.hasChild && s.child != owner {
		return false
	}

	sh := s.at(owner)

	return sh.process == running && !sh.frozen && sh.lease == held && s.mainOp.verb == nothing && s.childOp.verb == nothing
}

// hopeless says that no shard is there, and none will be without somebody starting it.
func (m *machine) hopeless(s *state) bool {
	for i := range s.shards[:m.Shards] {
		if sh := &s.shards[i]; (sh.process == holdOff || sh.process == running) && !sh.frozen {
			return false
		}
	}

	return s.ring == present
}
