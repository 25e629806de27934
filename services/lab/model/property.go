package model

// Property is a checked property.
type Property string

// The properties.
const (
	// OneWorker: no two shards work on an object at the same time, or on an owner and its child, while processes honor
	// their Leases.
	OneWorker Property = "I1: two shards work on one object, or on an owner and its child"
	// NoTaking: an object whose shard holds its Lease leaves the shard only after the shard has stopped working on it and
	// has removed the labels itself. A shard in its hold-off does not work yet, and may lose what it had in an earlier
	// term.
	NoTaking Property = "I6: a live shard loses an object that it has not released"
	// ChildStays: a child does not leave the shard that has its owner and holds its Lease. If the owner is elsewhere, the
	// child may be taken away: the shard does not work on it.
	ChildStays Property = "I6: a live shard loses the child of an object that it has"
	// NothingLeft: no object carries a label of a ring that is gone.
	NothingLeft Property = "I8: an object has a label of a ring that is gone"
	// Refused: with a fence, the API server accepts no write of a shard that was frozen beyond its deadline to an object
	// that a shard works on which honors its Lease.
	Refused Property = "I1 with a fence: a shard that was frozen writes an object that another shard works on"
	// Ownership: after the last fault, all objects reach the shard that they belong to and stay there, if there is a
	// shard. A deleted ring disappears.
	Ownership Property = "I2: an object does not come to an available shard"
	// Progress: after the last fault, nothing is written repeatedly forever.
	Progress Property = "I2: labels or Leases change forever"
)

// breach is a safety property that a step breaks, as a number above zero, so that steps are small.
type breach uint8

var breaches = [...]Property{1: OneWorker, 2: NoTaking, 3: ChildStays, 4: NothingLeft, 5: Refused}

// broken returns the property that a step breaks, if any.
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
	case m.intrudes(to) && !m.forgives[5]:
		return 5
	}

	return 0
}

// overlap reports whether two shards work at the same time, except shards that were frozen beyond their deadline.
func (m *machine) overlap(s state) bool {
	workers := 0

	for _, sh := range s.shards {
		if (sh.inMain || sh.inChild) && sh.since <= 1 {
			workers++
		}

		if sh.former.keeps && sh.former.inside() {
			workers++
		}
	}

	return workers > 1
}

// intrudes reports whether the API server would accept a write of a shard that does not honor its Lease. The fence
// accepts only writes of the shard that the stored object names, and of the Pod that holds its slot.
func (m *machine) intrudes(s state) bool {
	for i := range s.shards {
		n, sh := name(i+1), &s.shards[i]
		if m.intrudesFormer(s, n) {
			return true
		}

		if sh.frozen || sh.keeps() {
			continue
		}

		main := sh.inMain && (s.main.shard == n || m.Mutation == NoFence)
		child := sh.inChild && (s.child == n || m.Mutation == NoFence)

		if main && sh.stale {
			return true
		}

		for _, other := range s.shards {
			if other.keeps() && (main && other.inMain || child && other.inChild) {
				return true
			}
		}
	}

	return false
}

// intrudesFormer reports the same for a process that has lost its slot to another one.
func (m *machine) intrudesFormer(s state, n name) bool {
	left := s.at(n).former
	if left.keeps || m.Exposed != LateFence && m.Mutation != NoFence {
		return false
	}

	for _, sh := range s.shards {
		if sh.keeps() && (left.inMain && s.main.shard == n && sh.inMain || left.inChild && s.child == n && sh.inChild) {
			return true
		}
	}

	return false
}

// taken reports whether a step takes the main object from a shard that works, or may work.
func (m *machine) taken(e event, to state) bool {
	owner := m.from.main.shard
	if owner == nobody || owner == to.main.shard || !m.alive(owner) {
		return false
	}

	return e.kind != acknowledges && e.kind != passesOn || m.from.at(owner).inside()
}

// childTaken reports the same for the child, if the shard has its owner.
func (m *machine) childTaken(to state) bool {
	owner := m.from.main.shard

	return owner != nobody && owner == m.from.child && owner != to.child && m.alive(owner)
}

// alive reports whether a shard works, or may work, within its term. It makes no difference to the process of a shard
// if somebody has deleted its Lease.
func (m *machine) alive(n name) bool {
	sh := m.from.at(n)
	works := sh.process == running || sh.process == stopping

	return works && sh.keeps() && (sh.lease == held || sh.lease == absent)
}

// settled reports whether everything is in its final state.
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

// hopeless reports whether no shard is available, and none will be unless somebody starts one.
func (m *machine) hopeless(s *state) bool {
	for i := range s.shards[:m.Shards] {
		if sh := &s.shards[i]; (sh.process == holdOff || sh.process == running) && !sh.frozen {
			return false
		}
	}

	return s.ring == present
}
