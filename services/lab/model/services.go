package model

// lease emits what the lease monitor, and people, do to the Lease of a shard. The monitor reads live and writes only if
// nothing has changed, so each of its actions is one step.
func (m *machine) lease(n name) {
	if int(n) > m.Faulty {
		return
	}

	sh := m.from.at(n)

	if sh.lease == held && m.acquires[m.ageOf(sh)] {
		to := m.from
		to.setLease(n, taken)
		m.emit(by(takes, n), &to)
	}

	if m.Pods && !m.fair && sh.lease == held && m.believes[m.ageOf(sh)] && m.hears(sh) {
		to := m.from
		to.setLease(n, taken)
		m.emit(by(believes, n), &to)
	}

	if sh.lease.free() && m.collects && m.Time {
		to := m.from
		to.setLease(n, absent)
		m.emit(by(collects, n), &to)
	}

	if m.DeleteLease && !m.fair && sh.lease != absent && (sh.lease != held || m.isSeen(sh.guard)) {
		to := m.from
		to.setLease(n, absent)
		m.emit(by(deletes, n), &to)
	}
}

// hears reports whether the kubelet's word counts for the Lease as it is. The Lease says which Pod has written it, so
// only a process that has ended since it wrote the Lease is meant: one that starts writes the Lease before it works.
func (m *machine) hears(sh *shard) bool {
	return sh.process == down || m.Mutation == PodsByName && sh.ended || m.Mutation == AnyWord
}

// isSeen reports whether somebody may delete a held Lease while the guard is in this state.
func (m *machine) isSeen(g guard) bool {
	switch g {
	case sawHeld:
		return true
	case vanished, vanishedFor1, vanishedFor2:
		return m.Exposed == DeleteTwice
	default:
		return m.Exposed == DeleteUnseen
	}
}

// ageOf returns the age of a Lease as the monitor measures it.
func (m *machine) ageOf(sh *shard) uint8 {
	switch {
	case m.Mutation == ForeignClock:
		return 2
	case m.Time:
		return sh.age
	case sh.process == down:
		return 2
	}

	return 0
}

// time emits the passing of D. D cannot pass while a process that is not frozen has reached its deadline: it renews its
// Lease, or ends, before.
func (m *machine) time() {
	to := m.from

	for i := range to.shards[:m.Shards] {
		sh := &to.shards[i]
		sh.guard = sh.guard.grow()

		if !m.Time || i >= m.Faulty {
			continue
		}

		if sh.inTerm() && m.Mutation != NoDeadline {
			// Eventually, shards that can renew their Leases do so.
			if !sh.frozen && sh.since > 0 {
				return
			}

			sh.since = min(sh.since+1, 2)
		}

		if sh.lease == held {
			sh.age = min(sh.age+1, 2)
		}
	}

	m.emit(of(passes), &to)
}

// observe emits that the rebalancer's guard learns about a Lease from the cache.
func (m *machine) observe(n name) {
	to := m.from
	sh := to.at(n)
	sh.guard, sh.trust = sh.guard.see(sh.lease), sh.trust && sh.lease != held
	m.emit(by(observes, n), &to)
}

// rebalance emits what the rebalancer's workers do: one has the main object, another the child, and they take turns.
// What the rebalancer believes about the Leases when it decides may be from any time.
func (m *machine) rebalance() {
	m.deliver(func(s *state) *operation { return &s.childOp }, m.landChild)
	m.deliver(func(s *state) *operation { return &s.mainOp }, m.landMain)

	if m.from.ring == gone {
		return
	}

	if m.fair {
		m.decideAll(m.standing(m.viewOf(&m.from)))
		return
	}

	for available := range shards(1) << m.Shards {
		for stopping := range shards(1) << m.Shards {
			if stopping == 0 || m.Announce && available&stopping == 0 {
				m.decideAll(standing{available, stopping})
			}
		}
	}
}

// decideAll emits what the rebalancer decides if it believes that the shards stand so.
func (m *machine) decideAll(all standing) {
	in := mainInput{all, m.from.main, !m.from.planKnows}

	turn := func(other operation) bool { return !other.known() || m.Mutation == NoTurns }

	if m.from.mainOp.verb == nothing && turn(m.from.childOp) {
		to := m.from
		if to.mainOp = m.mainPlans[in]; m.childComesFirst(to.mainOp) {
			to.mainOp = operation{}
		}

		m.emit(doing(decidesMain, to.mainOp), &to)
	}

	if m.from.hasChild && m.from.childOp.verb == nothing && turn(m.from.mainOp) {
		to := m.from
		to.childOp = m.childPlans[childInput{in, m.from.child}]
		m.emit(doing(decidesChild, to.childOp), &to)
	}
}

// childComesFirst reports whether an assignment must wait for the child.
func (m *machine) childComesFirst(op operation) bool {
	return op.verb == assign && m.from.hasChild && m.from.child != op.to
}

// deliver emits the possible results of an operation: the guard is asked, or the write happens.
func (m *machine) deliver(pending func(*state) *operation, land func(op operation)) {
	switch op := *pending(&m.from); {
	case op.verb == nothing:
	case op.confirmed:
		land(op)
	default:
		m.confirm(pending)
	}
}

// confirm asks the guard whether objects may be taken from a shard, based on a live read of its Lease or from memory.
func (m *machine) confirm(pending func(*state) *operation) {
	to := m.from
	op := pending(&to)
	e := doing(refrains, *op)
	sh := to.at(op.from)
	allowed := sh.trust || m.mayTake[sh.guard][sh.lease]

	if !sh.trust {
		sh.guard = sh.guard.see(sh.lease)
	}

	if allowed {
		e.kind, sh.trust, op.confirmed = confirms, true, true
	} else {
		*op = operation{}
	}

	m.emit(e, &to)
}

func (m *machine) landMain(op operation) {
	to := m.from

	switch op.verb {
	case assign:
		to.main = labels{shard: op.to}
	case drain:
		to.main.drain, to.next = true, op.to
	case withdraw:
		to.main.drain = false
	case release:
		m.admitted(write{old: m.from.main}, false, func(l labels, view int8) {
			to := m.from
			to.main, to.mainOp = l, operation{}
			m.mainWritten(&to)
			m.emit(event{kind: writesMain, op: op, view: view}, &to)
		})

		return
	case nothing:
		return
	}

	to.mainOp = operation{}
	m.mainWritten(&to)
	m.emit(doing(writesMain, op), &to)
}

func (m *machine) landChild(op operation) {
	to := m.from
	to.childOp = operation{}

	switch op.verb {
	case assign:
		to.child = op.to
		m.emit(doing(writesChild, op), &to)
	case release:
		m.admitted(write{child: true, old: labels{shard: m.from.child}}, false, func(l labels, view int8) {
			to := m.from
			to.child, to.childOp = l.shard, operation{}
			m.emit(event{kind: writesChild, op: op, view: view}, &to)
		})
	case nothing, drain, withdraw:
	}
}

// leaveRing emits how a deleted ring disappears. Its finalizer is removed after a last look, one settle period after
// everything was found in order. That is longer than an assigner needs to learn about the deletion.
func (m *machine) leaveRing() {
	s := &m.from
	if s.ring != deleting {
		return
	}

	to := *s
	to.planKnows = true
	m.emit(of(planLearns), &to)

	to = *s
	to.allKnow = true
	m.emit(of(assignersLearn), &to)

	idle := s.mainOp.verb == nothing && s.childOp.verb == nothing
	if clean := s.main == (labels{}) && s.child == nobody; clean && idle && s.planKnows &&
		(s.allKnow || m.Mutation == EarlyFinish) {
		to = *s
		to.ring = gone
		m.emit(of(finishes), &to)
	}
}

// restarts emits that services lose their memory. Requests that they have sent may still arrive, but, except in the
// exposure, before their successors decide about the same objects or their owners.
func (m *machine) restarts() {
	to := m.from
	to.mainOp = operation{}
	m.emit(of(abandonsMain), &to)

	to = m.from
	to.childOp = operation{}
	m.emit(of(abandonsChild), &to)

	to = m.from
	for i := range to.shards[:m.Shards] {
		sh := &to.shards[i]
		sh.guard, sh.trust = neverSeen.see(sh.lease), false
	}

	if m.Exposed == LateChild {
		for _, op := range []*operation{&to.mainOp, &to.childOp} {
			op.former = op.verb != nothing
		}
	}

	m.emit(of(rebalancerRestarts), &to)

	to = m.from
	for i := range to.shards[:m.Faulty] {
		to.shards[i].age = 0
	}

	m.emit(of(monitorRestarts), &to)
}
