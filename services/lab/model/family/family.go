// Package family explores everything that can happen to an owner, its child, and its grandchild while they move between
// two shards whose controllers create what is missing, and checks that nothing is created twice and that nothing is
// missing in the end (I9).
//
// A controller that creates children with generated names counts them in its cache. Such a cache consists of several
// watches, each of which may be arbitrarily late. The order in which an owner and the objects that it controls reach a
// new shard therefore determines whether that shard sees an owner without children, and creates them again.
//
// # The order
//
//  1. The rebalancer drains the owner. Its shard stops working on the owner and on everything that it controls, and
//     releases the owner, which then has no shard.
//  2. The rebalancer moves what the owner controls, the lowest level first.
//  3. The rebalancer assigns the owner, and records the versions of its children and grandchildren that the shard must
//     have seen.
//  4. The shard begins with the owner, and with what it controls, when its watches have reached these versions: the
//     barrier.
//
// The owner of a dead shard has no shard immediately. The barrier contains what exists when the owner is assigned, so a
// new rebalancer need not know what the previous one has moved. Each [Mutation] leaves out one of these steps, and a
// test shows what is then created twice.
//
// # What is modelled
//
// The model contains: the API server, with a version for each write; a watch of each shard for each of three resources,
// which delivers events in order, at some time; two processes with controllers for owners and children that wait until
// they see what they have created themselves; an admission that gives each new object the shard that creates it; and a
// rebalancer without memory, which follows [plan.Decide] like the real one, and whose searches find only objects that
// have a shard. The owner may belong to another shard, and a shard may die, at any moment, as often as a [Scope]
// allows.
//
// The model does not contain writes that admission misses, adoption, orphans, deletion, resources that a shard does not
// cache, shards that come back, and failed requests.
package family

import (
	"slices"

	"github.com/clusterring/clusterring/services/internal/plan"
)

// Property is a property that must hold.
type Property string

// Properties.
const (
	// NoExcess is the first half of I9: each owner has at most one child, and each child has at most one grandchild.
	NoExcess Property = "I9 there is one too many"
	// NoneMissing is the second half: when nothing more happens, there is one of each, and all are at one shard.
	NoneMissing Property = "I9 something is missing, or elsewhere"
)

// Mutation removes a part of the protocol.
type Mutation string

// Mutations.
const (
	// OwnerFirst assigns an owner in the write that releases it, and what it controls follows.
	OwnerFirst Mutation = "the owner goes first"
	// NoBarrier lets a shard work on an owner before it has seen what the owner controls.
	NoBarrier Mutation = "there is no barrier"
	// NoDrain moves what an owner controls before the owner was released.
	NoDrain Mutation = "children go before the owner is drained"
	// Unlabelled gives an object that a controller creates no shard while anything moves.
	Unlabelled Mutation = "children get no shard while objects move"
	// BeginsEarly lets a shard work on an owner that comes after the shard has looked for its barrier.
	BeginsEarly Mutation = "a reconcile of an owner begins before the owner comes"
)

// Scope limits how often events happen that nothing requires.
type Scope struct {
	// Moves is how often the owner's desired shard changes, and Deaths is how often a shard dies permanently.
	Moves, Deaths int8
	// Mutation is the removed part; empty if nothing is removed.
	Mutation Mutation
}

const (
	// most is how many children are tracked, and how many grandchildren: one more than there should be.
	most = 2
	// owner is the index of the owner among the objects. Children follow, and then grandchildren.
	owner  = 0
	amount = 1 + 2*most
	// waiting is how many events a watch may be late.
	waiting = 8
)

// shard is one of two shards, or nobody.
type shard int8

const (
	nobody shard = iota
	shardA
	shardB
)

var shards = [...]shard{shardA, shardB}

func (s shard) other() shard { return shardA + shardB - s }

// level is the resource of owners, children, or grandchildren. Each has its own watch.
type level int8

const (
	owners level = iota
	children
	grandchildren
	levels
)

func levelOf(i int8) level { return level((i + most - 1) / most) }

// objectsOf returns the indexes of the objects of a level.
func objectsOf(l level) (from, to int8) {
	if l == owners {
		return owner, owner + 1
	}

	from = 1 + int8(l-1)*most

	return from, from + most
}

// object is an object on the API server.
type object struct {
	made    bool
	parent  int8
	shard   shard
	drain   bool
	version int8
	// barrier is the version of each resource that the object's shard must have seen.
	barrier [levels]int8
}

// event is an event of a watch: the current object, or that it no longer belongs to the shard.
type event struct {
	index int8
	is    object
	gone  bool
}

// watch is one shard's watch of one resource.
type watch struct {
	events [waiting]event
	n      int8
	// reached is the version of the last delivered event.
	reached int8
}

// process is one shard's process.
type process struct {
	dead    bool
	cache   [amount]object
	watches [levels]watch
	// given is the version in which it last released the owner.
	given int8
	// expects are the objects that it has created and not seen yet.
	expects [amount]bool
	// begun is true while a reconcile of the owner has begun without the owner, and has not counted yet.
	begun bool
}

// state is the state of the whole system.
type state struct {
	objects       [amount]object
	version       int8
	processes     [len(shards)]process
	desired       shard
	moves, deaths int8
}

func (s *state) process(of shard) *process { return &s.processes[of-1] }

func (s *state) alive(of shard) bool { return of != nobody && !s.process(of).dead }

// write changes an object, and queues events in both shards' watches.
func (s *state) write(i int8, change func(*object)) {
	before := s.objects[i]
	o := &s.objects[i]
	change(o)

	s.version++
	o.version = s.version

	for _, of := range shards {
		p := s.process(of)
		if p.dead || o.shard != of && before.shard != of {
			continue
		}

		w := &p.watches[levelOf(i)]
		w.events[w.n] = event{i, *o, o.shard != of}
		w.n++
	}
}

// machine makes steps within a scope.
type machine struct{ Scope }

// step is an event and the state that it leads to.
type step struct {
	what string
	to   state
	// needed is true if it happens without a fault or a user, sooner or later.
	needed bool
}

func initial(sc Scope) state {
	s := state{desired: shardA, moves: sc.Moves, deaths: sc.Deaths}
	s.objects[owner].made = true
	s.write(owner, func(o *object) { o.shard = shardA })

	return s
}

// steps returns all steps from a state.
func (m machine) steps(from state) (all []step) {
	try := func(what string, needed bool, do func(s *state) bool) {
		to := from
		if do(&to) {
			all = append(all, step{what, to, needed})
		}
	}

	for _, of := range shards {
		name := [...]string{"", "shard a ", "shard b "}[of]

		for l := range levels {
			try(name+[...]string{"sees an owner", "sees a child", "sees a grandchild"}[l], true,
				func(s *state) bool { return s.process(of).see(l) })
		}

		try(name+"begins without the owner", false, func(s *state) bool { return m.begin(s.process(of)) })
		try(name+"makes a child", true, func(s *state) bool { return m.makeChild(s, of) })
		try(name+"makes a grandchild", true, func(s *state) bool { return m.makeGrandchild(s, of) })
		try(name+"gives the owner up", true, func(s *state) bool { return m.giveUp(s, of) })
		try(name+"dies", false, func(s *state) bool { return s.die(of) })
	}

	try("the ring wants the owner elsewhere", false, (*state).turn)

	for i := range int8(amount) {
		try("the rebalancer deals with "+[...]string{"the owner", "a child", "a grandchild"}[levelOf(i)], true,
			func(s *state) bool { return m.rebalance(s, i) })
	}

	return all
}

// see delivers the next event of a watch.
func (p *process) see(l level) bool {
	w := &p.watches[l]
	if p.dead || w.n == 0 {
		return false
	}

	e := w.events[0]
	copy(w.events[:], w.events[1:])
	w.events[waiting-1] = event{}
	w.n--
	w.reached = e.is.version

	if p.cache[e.index] = e.is; e.gone {
		p.cache[e.index] = object{}
	} else {
		p.expects[e.index] = false
	}

	return true
}

// begin begins a reconcile of an owner that the cache does not contain. With several children, the event of the first
// one leads to it.
func (m machine) begin(p *process) bool {
	if m.Mutation != BeginsEarly || p.dead || p.begun || p.cache[owner].made {
		return false
	}

	p.begun = true

	return true
}

// works reports whether the controllers of a shard may work on the owner and what it controls.
func (m machine) works(p *process) bool {
	o := p.cache[owner]

	return !p.dead && o.made && !o.drain && o.version > p.given && m.sees(p, o)
}

// sees reports whether the watches of a shard have reached the barrier of an object.
func (m machine) sees(p *process, o object) bool {
	return m.Mutation == NoBarrier || p.watches[children].reached >= o.barrier[children] &&
		p.watches[grandchildren].reached >= o.barrier[grandchildren]
}

// has reports whether a controller sees a child of the parent, or has created one that it does not see yet.
func (p *process) has(l level, parent int8) bool {
	from, to := objectsOf(l)
	for i := from; i < to; i++ {
		if (p.cache[i].made || p.expects[i]) && (p.cache[i].parent == parent || p.expects[i]) {
			return true
		}
	}

	return false
}

// makeChild is the controller of owners: it counts the children in its cache.
func (m machine) makeChild(s *state, of shard) bool {
	p := s.process(of)

	if p.begun && p.cache[owner].made {
		p.begun = false

		return !p.has(children, owner) && m.create(s, of, children, owner)
	}

	return m.works(p) && !p.has(children, owner) && m.create(s, of, children, owner)
}

// makeGrandchild is the controller of children.
func (m machine) makeGrandchild(s *state, of shard) bool {
	p := s.process(of)

	from, to := objectsOf(children)
	for i := from; i < to; i++ {
		if m.works(p) && p.cache[i].made && m.sees(p, p.cache[i]) && !p.has(grandchildren, i) {
			return m.create(s, of, grandchildren, i)
		}
	}

	return false
}

// create creates an object. Admission gives it the shard that creates it.
func (m machine) create(s *state, of shard, l level, parent int8) bool {
	p := s.process(of)

	from, to := objectsOf(l)
	for i := from; i < to; i++ {
		if s.objects[i].made {
			continue
		}

		labelled := m.Mutation != Unlabelled || s.settled()
		p.expects[i] = true
		s.write(i, func(o *object) {
			if o.made, o.parent = true, parent; labelled {
				o.shard = of
			}
		})

		return true
	}

	return false // there are already too many, which is a violation
}

// settled reports whether everything is at its desired shard.
func (s *state) settled() bool {
	for _, o := range s.objects {
		if o.made && (o.shard != s.desired || o.drain) {
			return false
		}
	}

	return true
}

// giveUp is the acknowledgement of a drain.
func (m machine) giveUp(s *state, of shard) bool {
	p := s.process(of)
	seen, is := p.cache[owner], s.objects[owner]

	if p.dead || !seen.made || !seen.drain || seen.version <= p.given || is.version != seen.version {
		return false
	}

	s.write(owner, func(o *object) {
		o.drain, o.shard, o.barrier = false, nobody, [levels]int8{}
		if m.Mutation == OwnerFirst {
			o.shard = s.desired
		}
	})

	p.given = seen.version
	p.expects = [amount]bool{}

	return true
}

func (s *state) die(of shard) bool {
	if s.deaths == 0 || s.process(of).dead || s.process(of.other()).dead {
		return false
	}

	s.deaths--
	*s.process(of) = process{dead: true}
	s.desired = of.other()

	return true
}

func (s *state) turn() bool {
	if s.moves == 0 || s.process(s.desired.other()).dead {
		return false
	}

	s.moves--
	s.desired = s.desired.other()

	return true
}

// Works implements [plan.Ring].
func (s *state) Works(name string) bool { return s.alive(shard(slices.Index(names[:], name))) }

// names are the names of the shards in the plan.
var names = [...]string{"", "a", "b"}

// decide asks the plan what to do with an object.
func (m machine) decide(s *state, i int8) plan.Action {
	o, top := s.objects[i], s.objects[owner]

	at := plan.Owner{Exists: true, Shard: names[top.shard], Draining: top.drain, Belongs: true}
	if m.Mutation == NoDrain && top.shard != s.desired {
		at.Shard = "" // as if it were released
	}

	return plan.Decide(s, plan.Object{
		Shard: names[o.shard], Labelled: o.shard != nobody, Draining: o.drain, Belongs: true, Desired: names[s.desired],
		Controlled: i != owner, Parent: levelOf(i) != grandchildren, Owner: at,
	})
}

// follows reports whether an object follows another one, on any level.
func (s *state) follows(i, other int8) bool {
	return s.objects[i].made && i != owner && (other == owner || levelOf(i) > levelOf(other) &&
		s.objects[i].parent == other)
}

// rebalance does what the plan decides for an object. It has no memory.
func (m machine) rebalance(s *state, i int8) bool {
	if !s.objects[i].made {
		return false
	}

	switch a := m.decide(s, i); a.Verb {
	case plan.Drain:
		s.write(i, func(o *object) { o.drain = true })
	case plan.Withdraw:
		s.write(i, func(o *object) { o.drain = false })
	case plan.Assign:
		to := shard(slices.Index(names[:], a.To))
		barrier, gathered := s.gathered(i, to)

		if a.ChildrenFirst && !gathered && m.Mutation != OwnerFirst {
			return false
		}

		if !a.ChildrenFirst || m.Mutation == OwnerFirst {
			barrier = [levels]int8{}
		}

		s.write(i, func(o *object) { o.shard, o.drain, o.barrier = to, false, barrier })
	default:
		return false
	}

	return true
}

// gathered reports whether everything that follows an object is at a shard, and the versions in which it reached the
// shard. A search finds what has a shard. The watch of what has none may be late.
func (s *state) gathered(i int8, at shard) (barrier [levels]int8, all bool) {
	for j, o := range s.objects {
		if !s.follows(int8(j), i) || o.shard == nobody {
			continue
		}

		if o.shard != at {
			return barrier, false
		}

		l := levelOf(int8(j))
		barrier[l] = max(barrier[l], o.version)
	}

	return barrier, true
}

// excess reports whether there are too many objects.
func (s *state) excess() bool {
	var of [amount]int

	for i, o := range s.objects {
		if int8(i) != owner && o.made {
			if of[o.parent]++; of[o.parent] > 1 {
				return true
			}
		}
	}

	return false
}

// complete reports whether there is one of each, at the desired shard.
func (s *state) complete() bool {
	n := 0

	for _, o := range s.objects {
		if o.made {
			n++
		}
	}

	return n == int(levels) && s.settled()
}

// Result is the result of an exploration.
type Result struct {
	// States is the number of states.
	States int
	// Violation is the first violation on a shortest path; nil if there is none.
	Violation *Violation
}

// Violation is a path to a state in which a property does not hold.
type Violation struct {
	Property Property
	// Trace contains the steps of the path.
	Trace []string
}

// visit is how a state was first reached.
type visit struct {
	from int
	what string
}

// Explore visits every state that can be reached in a scope, nearest first, until a property does not hold. It waits
// for nothing and writes nothing. Each state takes about two kilobytes.
func Explore(sc Scope) Result {
	m := machine{sc}
	first := initial(sc)
	states := []state{first}
	visits := []visit{{from: -1}}
	seen := map[state]bool{first: true}

	for at := 0; at < len(states); at++ {
		if states[at].excess() {
			return Result{len(states), &Violation{NoExcess, trace(visits, at)}}
		}

		steps := m.steps(states[at])
		if !slices.ContainsFunc(steps, func(s step) bool { return s.needed }) && !states[at].complete() {
			return Result{len(states), &Violation{NoneMissing, trace(visits, at)}}
		}

		for _, s := range steps {
			if !seen[s.to] {
				seen[s.to] = true
				states = append(states, s.to)
				visits = append(visits, visit{at, s.what})
			}
		}
	}

	return Result{States: len(states)}
}

func trace(visits []visit, at int) (steps []string) {
	for ; visits[at].from >= 0; at = visits[at].from {
		steps = append(steps, visits[at].what)
	}

	slices.Reverse(steps)

	return steps
}
