package model

// users emits what users do, who know nothing about shards.
func (m *machine) users() {
	if m.DeleteRing && m.from.ring == present {
		to := m.from
		to.ring = deleting
		m.emit(of(deletesRing), &to)
	}

	m.userOfMain()

	if m.Child {
		m.userOfChild()
	}
}

func (m *machine) userOfMain() {
	s := &m.from
	write := write{old: s.main}

	set := func(k kind) func(labels, int8) {
		return func(l labels, view int8) {
			to := m.from
			to.main = l
			m.mainWritten(&to)
			m.emit(event{kind: k, view: view}, &to)
		}
	}

	if s.main.shard == nobody {
		write.drain = s.main.drain
		m.admitted(write, true, set(updatesMain))

		return
	}

	if s.main.drain && m.Exposed == DropInDrain || !s.main.drain && (m.DropLabel || m.Exposed == DropUnseen) {
		m.dropped(write, set(dropsMain))
	}
}

func (m *machine) userOfChild() {
	s := &m.from
	write := write{child: true, create: !s.hasChild, old: labels{shard: s.child}}

	set := func(k kind) func(labels, int8) {
		return func(l labels, view int8) {
			to := m.from
			to.hasChild, to.child = true, l.shard
			m.childWritten(&to)
			m.emit(event{kind: k, view: view}, &to)
		}
	}

	switch {
	case !s.hasChild:
		m.admitted(write, false, set(createsChild))
	case s.child == nobody:
		m.admitted(write, true, set(updatesChild))
	case m.DropLabel:
		m.dropped(write, set(dropsChild))
	}
}

// dropped emits the results of a write that drops the shard label. While the ring is being deleted, no assigner is
// asked.
func (m *machine) dropped(w write, emit func(labels, int8)) {
	if m.from.ring != present && m.Exposed != DropUnseen {
		return
	}

	m.admitted(w, m.Exposed != DropUnseen, emit)
}
