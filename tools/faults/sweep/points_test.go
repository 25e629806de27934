package sweep

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/faults/faultrun"
	"github.com/clusterring/clusterring/tools/faults/proxy"
)

// shard stands for any shard.
const shard = "shard"

// class is a kind of write: who writes what, and in which phase.
type class struct {
	who   string // a service, or "shard" for any
	phase faultrun.Phase
	write string
}

// String is part of the name of a run.
func (c class) String() string { return fmt.Sprintf("%s, %s: %s", c.who, c.phase, c.write) }

// point is one write in a run: the n-th of its class, from 1.
type point struct {
	class
	ordinal int
}

// String is part of the name of a run.
func (p point) String() string { return fmt.Sprintf("%s #%d", p.class, p.ordinal) }

// classify says what a write does: method, resource, and for labels what becomes of them.
func classify(run *faultrun.Run, m *faultrun.Member, write proxy.Write) class {
	who := m.Name
	if m.IsShard() {
		who = shard
	}

	text := write.Method + " " + write.Resource
	if write.Subresource != "" {
		text += "/" + write.Subresource
	}

	var changes []string

	for label, value := range write.Labels() {
		kind, _, _ := strings.Cut(label, ".") // shard or drain
		switch {
		case label == contract.LabelState && value != nil:
			changes = append(changes, "state="+*value)
		case !strings.HasPrefix(label, contract.LabelShardPrefix) && !strings.HasPrefix(label, contract.LabelDrainPrefix):
		case value == nil:
			changes = append(changes, "-"+kind)
		default:
			changes = append(changes, "+"+kind)
		}
	}
	slices.Sort(changes)

	return class{who: who, phase: run.Phase(), write: strings.Join(append([]string{text}, changes...), " ")}
}

// counter numbers the writes of each class.
type counter struct {
	mu     sync.Mutex
	counts map[class]int
}

// next counts a write.
func (c *counter) next(of class) point {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.counts == nil {
		c.counts = map[class]int{}
	}
	c.counts[of]++

	return point{of, c.counts[of]}
}

// classes returns all that were counted, in a fixed order.
func (c *counter) classes() []class {
	c.mu.Lock()
	defer c.mu.Unlock()

	var all []class
	for k := range c.counts {
		all = append(all, k)
	}

	order := []faultrun.Phase{faultrun.Begin, faultrun.Join, faultrun.Fail, faultrun.Delete}
	slices.SortFunc(all, func(a, b class) int {
		return cmp.Or(cmp.Compare(a.who, b.who), cmp.Compare(slices.Index(order, a.phase), slices.Index(order, b.phase)),
			cmp.Compare(a.write, b.write))
	})

	return all
}
