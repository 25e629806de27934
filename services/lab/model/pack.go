package model

// packed is a state in two words, so that equal states are equal values: the first word contains the shards, the second
// everything else.
type packed struct{ shards, rest uint64 }

// packing stores small numbers; unpacking returns them, the last one first.
type (
	packing   uint64
	unpacking uint64
)

func (b packing) put(v uint8, width uint) packing { return b<<width | packing(v) }

func (b packing) is(v bool) packing {
	b <<= 1
	if v {
		b |= 1
	}

	return b
}

func (b *unpacking) take(width uint) uint8 {
	v := uint8(*b & (1<<width - 1)) //nolint:gosec // the stored number was as small
	*b >>= width

	return v
}

func (b *unpacking) flag() bool { return b.take(1) != 0 }

// pack works on a copy: the race detector does not slow down access to the stack.
func pack(s state) packed {
	var shards packing

	for _, sh := range s.shards {
		shards = shards.put(uint8(sh.process), 2).is(sh.frozen).is(sh.inMain).is(sh.inChild).
			put(uint8(sh.lease), 2).is(sh.settled).put(sh.since, 2).put(sh.age, 2).
			put(uint8(sh.main), 2).is(sh.child).put(uint8(sh.guard), 4).is(sh.trust).is(sh.ended)
	}

	rest := packing(0).put(uint8(s.main.shard), 2).is(s.main.drain).put(uint8(s.next),
		2).is(s.hasChild).put(uint8(s.child), 2).
		put(uint8(s.ring), 2).is(s.planKnows).is(s.allKnow)

	for _, sh := range s.shards {
		rest = rest.is(sh.stale).is(sh.former.inMain).is(sh.former.inChild).is(sh.former.keeps).is(sh.former.releases).
			is(sh.told).is(sh.announced)
	}

	return packed{uint64(shards), uint64(s.childOp.pack(s.mainOp.pack(rest)))}
}

func (o operation) pack(b packing) packing {
	return b.put(uint8(o.verb), 3).put(uint8(o.to), 2).put(uint8(o.from), 2).is(o.confirmed).is(o.former)
}

func (p packed) unpack() state {
	var s state

	rest := unpacking(p.rest)
	s.childOp, s.mainOp = unpackOperation(&rest), unpackOperation(&rest)

	for i := len(s.shards) - 1; i >= 0; i-- {
		sh := &s.shards[i]
		sh.announced, sh.told = rest.flag(), rest.flag()
		sh.former.releases, sh.former.keeps = rest.flag(), rest.flag()
		sh.former.inChild, sh.former.inMain = rest.flag(), rest.flag()
		sh.stale = rest.flag()
	}

	s.allKnow, s.planKnows = rest.flag(), rest.flag()
	s.ring = ringPhase(rest.take(2))
	s.child, s.hasChild = name(rest.take(2)), rest.flag()
	s.next = name(rest.take(2))
	s.main.drain, s.main.shard = rest.flag(), name(rest.take(2))

	shards := unpacking(p.shards)

	for i := len(s.shards) - 1; i >= 0; i-- {
		sh := &s.shards[i]
		sh.ended = shards.flag()
		sh.trust, sh.guard = shards.flag(), guard(shards.take(4))
		sh.child, sh.main = shards.flag(), cached(shards.take(2))
		sh.age, sh.since = shards.take(2), shards.take(2)
		sh.settled, sh.lease = shards.flag(), lease(shards.take(2))
		sh.inChild, sh.inMain, sh.frozen = shards.flag(), shards.flag(), shards.flag()
		sh.process = process(shards.take(2))
	}

	return s
}

func unpackOperation(b *unpacking) (o operation) {
	o.former, o.confirmed, o.from, o.to = b.flag(), b.flag(), name(b.take(2)), name(b.take(2))
	o.verb = verb(b.take(3))

	return o
}
