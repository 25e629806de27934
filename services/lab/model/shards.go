package model

// process emits what happens to the process of a shard, and what it does for its Lease.
func (m *machine) process(n name) {
	if int(n) > m.Faulty {
		return
	}

	sh := m.from.at(n)

	if !m.fair {
		m.fate(n, sh)
		m.succeed(n, sh)
	}

	m.formerly(n, sh)

	if sh.frozen || !sh.inTerm() {
		return
	}

	m.keep(n, sh)

	if sh.process == holdOff {
		m.begin(n)
	}

	if sh.told && m.fair && sh.process == running {
		to := m.from
		to.at(n).process = stopping
		m.emit(by(stops, n), &to)
	}

	if idle := !sh.inside() || m.Mutation == ReleaseInside; sh.process == stopping && idle && sh.main != acknowledging {
		to := m.from
		to.setLease(n, sh.lease.givenBack())

		if !sh.inside() {
			to.end(n)
		}

		m.emit(by(releases, n), &to)
	}
}

// fate emits what may happen at any time, and what it makes possible.
func (m *machine) fate(n name, sh *shard) {
	to := m.from

	if sh.process == down {
		m.start(n, sh)

		return
	}

	to.end(n)
	to.at(n).ended = m.Mutation == PodsByName
	m.emit(by(crashes, n), &to)

	if m.Freeze {
		to = m.from
		to.at(n).frozen = !sh.frozen

		if sh.frozen {
			m.emit(by(wakes, n), &to)
		} else {
			m.emit(by(freezes, n), &to)
		}
	}

	if !sh.frozen && sh.process != stopping {
		to = m.from
		to.at(n).process = stopping

		if sh.process == holdOff {
			to.end(n) // nothing has begun
			to.setLease(n, sh.lease.givenBack())
		}

		m.emit(by(stops, n), &to)
	}

	if m.Announce && !sh.frozen && sh.process == running && sh.lease == held && !sh.told {
		to = m.from
		to.at(n).told, to.at(n).announced = true, true
		m.emit(by(announces, n), &to)
	}
}

// start begins a process that takes the Lease. It may have to wait; what it sees meanwhile is useless. If it finds the
// Lease held under its name, and not just acquired, it works immediately on what it then reads.
func (m *machine) start(n name, sh *shard) {
	resumes := sh.settled || m.Mutation == ResumeAtOnce && sh.lease == held || m.Mutation == NoHoldOff

	to := m.from
	m.renew(&to, n)
	to.at(n).process = holdOff

	switch {
	case resumes:
		to.at(n).process = running
		to.readAll(n)
	case m.Mutation == NoCatchUp:
		to.readAll(n)
	}

	m.emit(by(starts, n), &to)
}

// renew takes or renews the Lease of a shard.
func (m *machine) renew(to *state, n name) {
	to.setLease(n, held)
	to.at(n).announced = to.at(n).announced || m.Mutation == OldAnnouncement && m.from.at(n).announced
}

// succeed emits that another process takes over the slot of one that has not renewed its Lease for too long. One
// process that continues without its slot is enough.
func (m *machine) succeed(n name, sh *shard) {
	silent := m.ageOf(sh) >= 2 || m.Mutation == EarlySilence && m.ageOf(sh) == 1 //nolint:mnd // twice D
	if !m.Slots || sh.process == down || sh.lease != held || sh.former != (former{}) || !silent {
		return
	}

	left := former{inMain: sh.inMain, inChild: sh.inChild, releases: sh.main == acknowledging}
	left.keeps = left != (former{}) && sh.keeps()

	to := m.from
	to.end(n)
	to.setLease(n, held)
	to.at(n).settled = sh.settled
	to.at(n).former = left
	to.at(n).process = holdOff

	if sh.settled {
		to.at(n).process = running
		to.readAll(n)
	}

	m.emit(by(succeeds, n), &to)
}

// formerly emits how a process ends that has lost its slot: its workers stop, and what it has sent arrives, or does
// not.
func (m *machine) formerly(n name, sh *shard) {
	if sh.former == (former{}) {
		return
	}

	to := m.from
	to.at(n).former = former{}
	m.emit(by(gives, n), &to)

	if sh.former.releases && m.from.content(n) == draining {
		m.acknowledge(n)
	}
}

// readAll brings the caches of a shard up to date.
func (s *state) readAll(n name) {
	s.at(n).main, s.at(n).child = s.content(n), s.hasChild && s.child == n
}

// begin emits the end of a hold-off. The hold-off is longer than the validity of a guard's answer and of a write that
// relies on it. The shard lists what had been written by then before it works.
func (m *machine) begin(n name) {
	to := m.from
	sh := to.at(n)
	sh.process = running
	sh.settled = sh.lease == held

	if fresh := sh.keeps() || sh.lease == held; fresh && m.Exposed != SlowTake {
		sh.trust = false

		for _, op := range []*operation{&to.mainOp, &to.childOp} {
			if op.from == n && op.confirmed {
				*op = operation{}
			}
		}
	}

	if m.Mutation != NoCatchUp {
		to.readAll(n)
	}

	m.emit(by(begins, n), &to)
}

// keep emits the renewal of a Lease, or that the process detects its loss.
func (m *machine) keep(n name, sh *shard) {
	to := m.from

	recreates := sh.lease == absent && (sh.keeps() || m.Mutation == LateRecreation)
	if sh.lease == held || recreates {
		m.renew(&to, n)
		to.at(n).since = 0
		m.emit(by(renews, n), &to)

		return
	}

	to.end(n)
	m.emit(by(loses, n), &to)
}

// work emits what the workers of a shard do.
func (m *machine) work(n name) {
	sh := m.from.at(n)

	if sh.main == acknowledging {
		m.acknowledge(n)
	}

	if sh.frozen || sh.process == down || sh.process == holdOff {
		return
	}

	m.workers(n, sh)

	idle := !sh.inside() || m.Mutation == AckInside
	if idle && sh.main == draining && m.from.content(n) == draining && m.Mutation != NoAcknowledgement {
		to := m.from
		to.at(n).main = acknowledging
		m.emit(by(givesUp, n), &to)
	}

	if sh.main != acknowledging {
		to := m.from
		to.at(n).main = to.content(n)
		m.emit(by(seesMain, n), &to)
	}

	to := m.from
	to.at(n).child = to.hasChild && to.child == n
	m.emit(by(seesChild, n), &to)
}

// workers emits how workers enter and leave objects. A worker that enters the child also enters its owner, and must
// find it there.
func (m *machine) workers(n name, sh *shard) {
	to := m.from

	switch {
	case sh.inMain:
		to.at(n).inMain, to.at(n).stale = false, false
		m.emit(by(leavesMain, n), &to)
	case sh.process == running && sh.main == mine:
		to.at(n).inMain = true
		m.outdate(&to)
		m.emit(by(entersMain, n), &to)
	}

	if sh.inMain && m.Child && !m.from.hasChild {
		m.admitted(write{child: true, create: true, by: n}, false, func(l labels, view int8) {
			to := m.from
			to.hasChild, to.child = true, l.shard
			m.childWritten(&to)
			m.emit(event{kind: makesChild, who: n, view: view}, &to)
		})
	}

	to = m.from

	switch {
	case sh.inChild:
		to.at(n).inChild = false
		m.emit(by(leavesChild, n), &to)
	case sh.process == running && sh.child && m.mayEnterChild(sh):
		to.at(n).inChild = true
		m.emit(by(entersChild, n), &to)
	}
}

// outdate notes whose worker is inside the main object together with a worker of the object's shard: what it has read
// is old.
func (m *machine) outdate(to *state) {
	if m.Exposed != OldReturn {
		return
	}

	if owner := to.main.shard; owner != nobody && to.at(owner).inMain {
		for i := range to.shards {
			sh := &to.shards[i]
			sh.stale = sh.stale || sh.inMain && sh != to.at(owner)
		}
	}
}

// mayEnterChild reports whether a worker that finds the child in its cache may work on it. The worker also looks for
// the owner in the cache. If the owner is missing and the child is in deletion, the worker asks the API server, which
// always contains the owner in this model.
func (m *machine) mayEnterChild(sh *shard) bool {
	return sh.main == mine || m.Mutation == ChildAnywhere || m.Mutation == NoLiveOwner && sh.main == notMine
}

// acknowledge emits the results of the write that releases the object. The write either sets the shard label to the
// shard that the drain names, or removes both labels, like a shard that ignores the name. The object has not changed
// since the drain was seen; otherwise, the write would have failed. Which process of the shard has sent it makes no
// difference.
func (m *machine) acknowledge(n name) {
	if m.from.next != nobody && m.from.next != n {
		to := m.from
		to.main = labels{shard: m.from.next}
		m.mainWritten(&to)
		m.emit(by(passesOn, n), &to)
	}

	m.admitted(write{old: m.from.main}, false, func(l labels, view int8) {
		to := m.from
		to.main = l
		m.mainWritten(&to)
		m.emit(event{kind: acknowledges, who: n, view: view}, &to)
	})
}
