package engine

import "github.com/clusterring/clusterring/services/rebalancer/objects"

// slots counts what holds a slot: what was granted one, and what is draining. So it is known at once whether there is another,
// which is asked after every change while objects wait for one.
type slots struct {
	// inTime are all but the drains that are late.
	inTime int
	// own are all of a shard, late its drains that are late. There is no entry of 0.
	own, late map[string]int
}

func newSlots() slots { return slots{own: map[string]int{}, late: map[string]int{}} }

// count adds n, 1 or -1, drains or grants of the shard.
func (s *slots) count(shard string, late bool, n int) {
	add(s.own, shard, n)

	if late {
		add(s.late, shard, n)
	} else {
		s.inTime += n
	}
}

func add(counts map[string]int, shard string, n int) {
	if counts[shard] += n; counts[shard] == 0 {
		delete(counts, shard)
	}
}

// hasSlot says, with the lock held, whether one more object of the shard may be drained, and whether the shard is stuck: it
// does not acknowledge, so that waiting for a slot is in vain. Late drains hold no slot of the total.
func (s *state) hasSlot(shard string, l Limits) (free, stuck bool) {
	stuck = s.slots.late[shard] > 0

	return !stuck && s.slots.own[shard] < l.PerShard && s.slots.inTime < l.Total, stuck
}

// grant gives an object of the shard a slot, with the lock held.
func (s *state) grant(id objects.ID, shard string) {
	s.ungrant(id)
	s.granted[id] = shard
	s.slots.count(shard, false, 1)
}

// ungrant takes the slot back that an object was granted and has not used, if there is one, with the lock held.
func (s *state) ungrant(id objects.ID) {
	if shard, ok := s.granted[id]; ok {
		delete(s.granted, id)
		s.slots.count(shard, false, -1)
	}
}

// setDrain notes how a drain is now, with the lock held.
func (s *state) setDrain(id objects.ID, d drain) {
	s.unsetDrain(id)
	s.draining[id] = d
	s.slots.count(d.shard, d.late, 1)
}

// unsetDrain ends a drain, if there is one, with the lock held.
func (s *state) unsetDrain(id objects.ID) {
	if d, ok := s.draining[id]; ok {
		delete(s.draining, id)
		s.slots.count(d.shard, d.late, -1)
	}
}
