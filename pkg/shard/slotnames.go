package shard

import (
	"slices"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// Slots say which names the shards of a ring take. [Scale], [Count], and [Named] return them. The zero value stands for none.
type Slots struct {
	from  slotSource
	count int
	names []string
}

type slotSource int

const (
	noSlots slotSource = iota
	scaleSlots
	countSlots
	namedSlots
)

// Scale returns as many slots as the Deployment, or what else owns the Pod of this process, shall have replicas. A process that waits for a slot reads
// the scale every five seconds. The slots are called like those of [Count].
func Scale() Slots { return Slots{from: scaleSlots} }

// Count returns so many slots, from 1 to [contract.MaxSlots]. They are called contract.SlotName(ring, 0) and so on.
func Count(slots int) Slots { return Slots{from: countSlots, count: slots} }

// Named returns slots with the given names, of which a process takes the first that no other Pod holds. With one name, all Pods but one are
// standbys. The ring must list them in spec.shardNames: otherwise, an admission policy refuses their Leases.
func Named(names ...string) Slots { return Slots{from: namedSlots, names: slices.Clone(names)} }

func (s Slots) any() bool { return s.from != noSlots }

// of returns the names of all slots of the ring; none if their number follows a scale.
func (s Slots) of(ring string) []string {
	if s.from == namedSlots {
		return slices.Clone(s.names)
	}

	return slotsOf(ring, s.count)
}

// slotsOf returns the names of so many slots.
func slotsOf(ring string, count int) []string {
	names := make([]string, count)
	for number := range names {
		names[number] = contract.SlotName(ring, number)
	}

	return names
}
