package model

// name is a shard, counted from 1; the zero value is nobody.
type name uint8

const nobody name = 0

// String returns a, b, c, or nobody.
func (n name) String() string {
	if n == nobody {
		return "nobody"
	}

	return string(rune('a' + n - 1))
}

// process is the state of a shard's process.
type process uint8

const (
	down     process = iota
	holdOff          // has the Lease, does not work yet
	running          // works on its objects
	stopping         // begins nothing more; releases the Lease when its workers are done
)

// lease is a shard's Lease on the API server.
type lease uint8

const (
	absent   lease = iota
	held           // by the shard
	released       // by nobody: the shard released it
	taken          // by the lease monitor
)

// free reports whether the Lease exists and the shard does not hold it.
func (l lease) free() bool { return l == released || l == taken }

// givenBack returns the Lease after its shard has released it, if the shard holds it.
func (l lease) givenBack() lease {
	if l == held {
		return released
	}

	return l
}

// cached is the state of the main object in a shard's cache.
type cached uint8

const (
	notMine cached = iota
	mine
	draining
	acknowledging // draining, with the acknowledgement in flight to the API server
)

// shard is a shard's process, its Lease, and what others know about it. It is canonical: values that do not matter in a
// state are zero.
type shard struct {
	process process
	frozen  bool
	// inMain and inChild report whether a worker is inside the main object and the child.
	inMain, inChild bool
	// stale reports whether the worker in the main object has been inside together with a worker of the shard of the
	// object's label. Only with OldReturn.
	stale bool
	lease lease
	// settled is true if the Lease has been held without a break since before the end of a hold-off.
	settled bool
	// since is how long ago the process renewed its Lease, in units of D, rounded down, at most 2.
	since uint8
	// age is how long the lease monitor has seen the Lease unchanged, in the same units as since.
	age uint8
	// main and child are the objects in the process's caches.
	main  cached
	child bool
	// ended reports whether an earlier process of this name has ended. Only with PodsByName.
	ended bool
	// told reports whether the process was told to stop, and works until its objects are drained; announced reports
	// whether the Lease says so. Only with Announce.
	told, announced bool
	// former is what a process still does whose slot another one has taken. Only with Slots.
	former former
	// guard is what the rebalancer's guard knows about the Lease.
	guard guard
	// trust is true if the guard would still answer from its last live read, which allowed taking.
	trust bool
}

// former is a process that has lost its slot to another one and does not know it. It begins nothing more.
type former struct {
	// inMain and inChild report whether a worker is inside the main object and the child.
	inMain, inChild bool
	// keeps reports whether it honors its Lease: then, nobody should have taken the slot.
	keeps bool
	// releases is true if its acknowledgement of a drain is in flight to the API server.
	releases bool
}

func (f former) inside() bool { return f.inMain || f.inChild }

// inTerm reports whether the process holds the Lease as far as it can know, and has workers or may have.
func (s *shard) inTerm() bool { return s.process != down }

// keeps reports whether the shard honors its Lease: its last renewal is not longer ago than its deadline allows. Only a
// process that was frozen can fail to do so.
func (s *shard) keeps() bool { return s.since <= 1 }

func (s *shard) inside() bool { return s.inMain || s.inChild }

// labels are the labels of an object.
type labels struct {
	shard name
	drain bool
}

// operation is a write that the rebalancer has decided about. The object has not changed since it was read for the
// decision: otherwise, the write would be refused, and the operation would be gone.
type operation struct {
	verb verb
	to   name
	// from is the shard that loses the object without having been asked; nobody if there is none.
	from name
	// confirmed is true if the guard has allowed it, so that it is in flight to the API server.
	confirmed bool
	// former is true if the rebalancer has restarted since, and does not know about it; only with LateChild.
	former bool
}

// known reports whether the rebalancer is busy with the operation, or waits for its end.
func (o operation) known() bool { return o.verb != nothing && !o.former }

// verb is what an operation does to an object's labels.
type verb uint8

const (
	nothing verb = iota
	assign
	drain
	withdraw
	release
)

// ringPhase is the progress of the ring's deletion.
type ringPhase uint8

const (
	present ringPhase = iota
	deleting
	gone
)

// state is one state of the whole system. It is comparable, and equal states have equal futures.
type state struct {
	shards [MaxShards]shard
	main   labels
	// next is the shard that the drain label of the main object names; nobody if it names none.
	next      name
	hasChild  bool
	child     name
	mainOp    operation
	childOp   operation
	ring      ringPhase
	planKnows bool // the rebalancer knows that the ring is being deleted
	allKnow   bool // and so do all assigners
}

// content returns the main object in the shard's cache after it has caught up.
func (s *state) content(n name) cached {
	switch {
	case s.main.shard != n:
		return notMine
	case s.main.drain:
		return draining
	}

	return mine
}

// at returns the shard with that name.
func (s *state) at(n name) *shard { return &s.shards[n-1] }

// end ends a shard's process.
func (s *state) end(n name) {
	sh := s.at(n)
	sh.process, sh.frozen, sh.inMain, sh.inChild, sh.stale = down, false, false, false, false
	sh.since, sh.main, sh.child, sh.told = 0, notMine, false, false
}

// setLease changes or renews a Lease. The Lease reports that the shard stops only if the process that writes it was
// told to.
func (s *state) setLease(n name, l lease) {
	sh := s.at(n)
	sh.settled = l == held && (sh.settled || sh.process == running || sh.process == stopping)
	sh.lease, sh.age, sh.announced = l, 0, l == held && sh.told
}
