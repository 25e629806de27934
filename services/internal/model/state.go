package model

// name is a shard, counted from 1; nobody is the zero value.
type name uint8

const nobody name = 0

// String returns a, b, c, or nobody.
func (n name) String() string {
	if n == nobody {
		return "nobody"
	}

	return string(rune('a' + n - 1))
}

// process is what a shard's process does.
type process uint8

const (
	down     process = iota
	holdOff          // has the Lease, does not work yet
	running          // works on its objects
	stopping         // begins nothing more; gives the Lease back once its workers are done
)

// lease is a shard's Lease on the API server.
type lease uint8

const (
	absent   lease = iota
	held           // by the shard
	released       // by nobody: given back
	taken          // by the lease monitor
)

// free says that there is a Lease and the shard does not hold it.
func (l lease) free() bool { return l == released || l == taken }

// givenBack is the Lease after its shard has given it back, if it has it.
func (l lease) givenBack() lease {
	if l == held {
		return released
	}

	return l
}

// cached is what a shard's cache says of the main object.
type cached uint8

const (
	notMine cached = iota
	mine
	draining
	acknowledging // as draining, with the acknowledgement on its way to the API server
)

// shard is a shard's process, its Lease, and what others know of it. It is canonical: what does not matter in a state has
// its zero value.
type shard struct {
	process process
	frozen  bool
	// inMain and inChild say that a worker is inside the main object and the child.
	inMain, inChild bool
	lease           lease
	// settled says that the Lease has been held without a break since before the end of a hold-off.
	settled bool
	// since is how long ago the process has renewed its Lease, in units of D, rounded down, at most 2.
	since uint8
	// age is how long the lease monitor has seen the Lease unchanged; as since.
	age uint8
	// main and child are what the process's caches say.
	main  cached
	child bool
	// guard is what the rebalancer's guard knows of the Lease.
	guard guard
	// trust says that the guard would still answer from its last live read, which was in favour of taking.
	trust bool
}

// inTerm says that the process holds the Lease as far as it can know, and has workers or may have.
func (s *shard) inTerm() bool { return s.process != down }

// keeps says that the shard keeps to its Lease: its last renewal is not longer ago than its deadline allows. Only a process
// that was frozen can fail to.
func (s *shard) keeps() bool { return s.since <= 1 }

func (s *shard) inside() bool { return s.inMain || s.inChild }

// labels are those that an object carries.
type labels struct {
	shard name
	drain bool
}

// operation is a write that the rebalancer has decided about. The object has not changed since it was read for the decision:
// otherwise the write would be refused, so it is as good as gone.
type operation struct {
	verb verb
	to   name
	// from is the shard that loses the object without having been asked; nobody if there is none.
	from name
	// confirmed says that the guard has allowed it, so that it is on its way to the API server.
	confirmed bool
	// former says that the rebalancer has restarted since, and does not know of it; only with LateChild.
	former bool
}

// known says that the rebalancer is busy with the operation, or waits for its end.
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

// ringPhase is how far the ring is on its way out.
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

// content is what the shard's cache says of the main object once it has caught up.
func (s *state) content(n name) cached {
	switch {
	case s.main.shard != n:
		return notMine
	case s.main.drain:
		return draining
	}

	return mine
}

// at returns the shard of that name.
func (s *state) at(n name) *shard { return &s.shards[n-1] }

// end ends a shard's process.
func (s *state) end(n name) {
	sh := s.at(n)
	sh.process, sh.frozen, sh.inMain, sh.inChild = down, false, false, false
	sh.since, sh.main, sh.child = 0, notMine, false
}

// setLease changes or renews a Lease.
func (s *state) setLease(n name, l lease) {
	sh := s.at(n)
	sh.settled = l == held && (sh.settled || sh.process == running || sh.process == stopping)
	sh.lease, sh.age = l, 0
}
