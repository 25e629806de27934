package rest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/figure"
	"github.com/clusterring/clusterring/tools/load/internal/measure/world"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

const (
	manyPrefix   = "many-"
	manyDeath    = manyPrefix + "death"
	manyServer   = manyPrefix + "death-apiserver"
	manyCPU      = manyPrefix + "death-rebalancer"
	manyJoin     = manyPrefix + "join"
	manyPass     = manyPrefix + "pass"
	manyFlat     = manyPrefix + "pass-flat"
	manyElse     = manyPrefix + "death-else"
	manyAudit    = manyPrefix + "audit"
	manyPeak     = manyPrefix + "rebalancer-peak-memory"
	manyServers  = manyPrefix + "apiserver-memory"
	manyStreamed = manyPrefix + "list"

	// compared is the number of objects with which a pass is compared.
	compared = 10_000
	// pagesUpTo is the number of objects up to which they are listed in pages, too: that takes its square.
	pagesUpTo = 200_000

	// perObject is what a pass may take for each object, in microseconds; flat is how much more of that with more objects.
	perObject, flat = 25, 1.3
	peak            = 128 // MiB
)

func manyObjects() run.Measurement {
	return run.Measurement{
		Name: "many-objects", IDs: []string{
			manyPrefix + cpuRow, manyPrefix + networkRow, manyPrefix + memoryRow, manyPrefix + requestsRow,
			manyDeath, manyServer, manyCPU, manyJoin, manyPass, manyElse, manyFlat, manyAudit, manyPeak, manyServers, manyStreamed,
		},
		Run: many,
	}
}

// multitude is a ring with very many objects and shards.
type multitude struct {
	*growth

	shards int
	// moved is what a death and a join took, by the number of objects; audits what audits did per object, in microseconds.
	moved  map[int]movement
	audits []float64
	// lists is what the API server took to list metadata, per object in microseconds, as a stream and in pages.
	lists struct{ streamed, paged []float64 }
	// peak is that of each service's memory since it began with all objects there; grown is by how much the API server's memory has
	// grown since there were none. Both are in MiB.
	peaks        map[string]float64
	empty, grown float64
}

// movement is a death of a shard, and a join; least is the same number of raw patches.
type movement struct{ died, joined, least world.Cost }

func many(ctx context.Context, b *run.Bench) (rows []result.Row, series []result.Series, err error) {
	count, sizes := run.Pick(b, 10, 100), run.Pick(b, []int{0, compared, 20_000}, []int{0, compared, 100_000})
	if b.Scale == run.Million {
		sizes[len(sizes)-1] = 1_000_000
	}

	w, err := world.Open(ctx, b, "load-many", count)
	if err != nil {
		return nil, nil, err
	}

	defer func() { err = errors.Join(err, w.Close(context.WithoutCancel(ctx))) }()

	m := &multitude{growth: newGrowth(b, w, sizes), shards: count, moved: map[int]movement{}, peaks: map[string]float64{}}
	for i, size := range sizes {
		if err := m.with(ctx, size, i == len(sizes)-1); err != nil {
			return nil, nil, fmt.Errorf("%d objects: %w", size, err)
		}
	}

	all := slices.Concat(m.restRows(manyPrefix, m.title()), m.moveRows(), m.passRows(), m.memoryRows())

	return slices.DeleteFunc(all, func(r result.Row) bool { return len(r.Values) == 0 }), nil, nil
}

// with measures with so many objects; those between none and most are there to be compared with.
func (m *multitude) with(ctx context.Context, size int, most bool) error {
	began := m.bench.Clock.Now()
	if err := m.world.Grow(ctx, size); err != nil {
		return err
	}
	m.bench.Progress("%d objects: made in %.1f s", size, m.bench.Clock.Since(began).Seconds())

	apart := "--settle-period=" + m.settle(size).String()
	if size == compared {
		if err := m.world.Restart(ctx, apart); err != nil {
			return err
		}
	}

	if most || size == 0 {
		// The whole of the budget has an audit follow a minute after the services have begun, not the hour after.
		if err := m.world.Restart(ctx, "--audit-budget=1"); err != nil {
			return err
		}

		if err := m.atRest(ctx, size); err != nil {
			return err
		}
	}

	if size == 0 {
		m.empty = m.apart[0][target.APIServer].memory
		return nil
	}

	if most {
		if err := m.list(ctx, size); err != nil {
			return err
		}

		if err := m.audit(ctx, size); err != nil {
			return err
		}
		// Audits a minute apart would go over all objects during the moves.
		if err := m.world.Restart(ctx, apart); err != nil {
			return err
		}
	}

	if err := m.move(ctx, size, most); err != nil {
		return err
	}

	if most {
		return m.memory()
	}

	return nil
}

// move has a shard die and another one join.
func (m *multitude) move(ctx context.Context, size int, join bool) (err error) {
	var now movement
	if now.least, err = m.world.Raw(ctx, 1, 0); err != nil {
		return err
	}

	if now.died, err = m.world.DieAndRest(ctx, 1); err != nil {
		return err
	}

	idle := m.idle() / float64(size) * 1000
	now.died.Pass -= idle * now.died.PassTook
	now.died.Rest -= idle * now.died.RestTook
	m.bench.Progress("%d objects, a death: %v; what else had to move: %.1f µs per object, %.1f s; pass: %.1f, %.1f s; floor: %v", size, now.died,
		now.died.Rest, now.died.RestTook, now.died.Pass, now.died.PassTook, now.least)

	if join {
		if now.joined, err = m.world.Join(ctx, 1); err != nil {
			return err
		}
		m.bench.Progress("%d objects, a join: %v; and %.1f s until all had been gone over", size, now.joined, now.joined.PassTook)
	}

	m.moved[size] = now

	return nil
}

// settle is the settle period of the rebalancer: longer than it takes to move what else has to move after a death, so that the pass which
// follows can be told from that.
func (m *multitude) settle(size int) time.Duration {
	const atLeast, each = 6 * time.Second, 100 * time.Microsecond
	return atLeast + time.Duration(size)*each
}

// idle is what API server and rebalancer take without objects, in ms/s.
func (m *multitude) idle() float64 {
	return m.apart[0][target.APIServer].cpu + m.apart[0][target.Rebalancer].cpu
}

// audit waits for an audit, and measures it. The services must have begun less than a minute ago.
func (m *multitude) audit(ctx context.Context, size int) error {
	// It takes a minute to come.
	if m.bench.Scale == run.Small && !m.bench.Asked(manyAudit) || !m.bench.Wants(manyAudit) {
		return nil
	}

	const (
		look, patience = 200 * time.Millisecond, 3 * time.Minute
		// Of each object the rebalancer receives more than so many bytes; at rest it receives fewer than quiet between looks, and an
		// audit is over after so many looks.
		each, quiet, over = 20, 8 << 10, 5
	)

	reader, began := m.bench.Local.Usage(), m.bench.Clock.Now()

	before, err := reader.Read()
	if err != nil {
		return err
	}

	last, still, from := before, 0, began
	for m.bench.Clock.Since(began) < patience {
		if err := m.bench.Pause(ctx, look); err != nil {
			return err
		}

		now, err := reader.Read()
		if err != nil {
			return err
		}

		received := now[target.Rebalancer].Received - before[target.Rebalancer].Received
		if now[target.Rebalancer].Received-last[target.Rebalancer].Received > quiet {
			still = 0
		} else {
			still++
		}

		last = now

		switch {
		case still < over:
		case received > each*int64(size):
			took := m.bench.Clock.Since(from)
			cpu := now[target.APIServer].CPU + now[target.Rebalancer].CPU - before[target.APIServer].CPU - before[target.Rebalancer].CPU
			cpu -= time.Duration(m.idle() * took.Seconds() * float64(time.Millisecond))
			m.audits = append(m.audits, float64(cpu)/float64(time.Microsecond)/float64(size))
			m.bench.Progress("%d objects, an audit: %.1f µs per object, %.1f s", size, m.audits[0], took.Seconds())

			return nil
		default: // it has not begun
			before, from = now, m.bench.Clock.Now()
		}
	}

	return fmt.Errorf("no audit in %s", patience)
}

// memory notes how much memory everything takes, and has taken.
func (m *multitude) memory() error {
	used, err := m.bench.Local.Usage().Read()
	if err != nil {
		return err
	}

	for name, u := range used {
		m.peaks[name] = float64(u.PeakMemory) / mebibyte
	}

	m.grown = m.apart[m.most()][target.APIServer].memory - m.empty

	return nil
}

func (m *multitude) most() int { return m.sizes[len(m.sizes)-1] }

func (m *multitude) title() string {
	return fmt.Sprintf("%s objects, %d shards", figure.Number(float64(m.most())), m.shards)
}

func (m *multitude) moveRows() []result.Row {
	now := m.moved[m.most()]
	twice := now.least.Plus(now.least)
	one := func(v float64) []float64 { return []float64{v} }

	const raw = "raw metadata PATCH, same concurrency"

	return []result.Row{
		{
			ID: manyDeath, Title: "objects moved per second after a shard's death, " + m.title(), Unit: "objects/s",
			Values: one(now.died.Rate), FloorTitle: raw, Floor: one(now.least.Rate), Judge: result.JudgeRatio,
			Target: result.Target{Bound: result.AtLeast, Value: 0.85, Unit: "×"},
		},
		{
			ID: manyServer, Title: "API server CPU per moved object, " + m.title(), Unit: "ms",
			Values: one(now.died.APIServer), FloorTitle: "same raw PATCH", Floor: one(now.least.APIServer), Judge: result.JudgeRatio,
			Target: result.Target{Bound: result.AtMost, Value: 1.2, Unit: "×"},
		},
		{
			ID: manyCPU, Title: "rebalancer CPU per moved object, " + m.title(), Unit: "ms",
			Values: one(now.died.Rebalancer), Judge: result.JudgeValue, Target: result.Target{Bound: result.AtMost, Value: 0.2, Unit: "ms"},
		},
		{
			ID: manyJoin, Title: "join: objects drained, acknowledged and reassigned per second, " + m.title(), Unit: "objects/s",
			Values: one(now.joined.Rate), FloorTitle: "two raw PATCHes per object", Floor: one(twice.Rate), Judge: result.JudgeRatio,
			Notes: []string{"The time counts from the new Lease: the pass that finds the objects is part of it."},
		},
	}
}

func (m *multitude) passRows() []result.Row {
	most, less := m.moved[m.most()], m.moved[compared]
	with := figure.Number(float64(m.most()))
	note := "CPU of API server and rebalancer, less what both take at rest without objects."
	rows := []result.Row{
		{
			ID: manyPass, Title: "a pass over all objects after a change, per object, " + m.title(), Unit: "µs",
			Values: []float64{most.died.Pass}, Judge: result.JudgeValue, Target: result.Target{Bound: result.AtMost, Value: perObject, Unit: "µs"},
			Notes: []string{note},
		},
		{
			ID: manyElse, Title: "what follows the moves after a death before that, per object of the ring, " + m.title(), Unit: "µs",
			Values: []float64{most.died.Rest}, Judge: result.JudgeValue,
			Notes: []string{note, "The objects of the shards that have lost partitions to others are gone over, and those drained that have to move between shards which live."},
		},
		{
			ID: manyFlat, Title: "the same, against a pass over " + figure.Number(compared) + " objects", Unit: "µs",
			Values: []float64{most.died.Pass}, FloorTitle: "a pass over " + figure.Number(compared), Floor: []float64{less.died.Pass}, Judge: result.JudgeRatio,
			Target: result.Target{Bound: result.AtMost, Value: flat, Unit: "×"}, Notes: []string{note},
		},
		{
			ID: manyAudit, Title: "an audit of all objects, per object, " + m.title(), Unit: "µs",
			Values: m.audits, Judge: result.JudgeValue, Target: result.Target{Bound: result.AtMost, Value: perObject, Unit: "µs"}, Notes: []string{note, m.pace()},
		},
	}

	return append(rows, result.Row{
		ID: manyStreamed, Title: "API server CPU to list the metadata of " + with + " objects as a stream, per object", Unit: "µs",
		Values: m.lists.streamed, FloorTitle: "in pages of 1,000", Floor: m.lists.paged, Judge: m.judgeLists(),
	})
}

// judgeLists compares with pages if there are any.
func (m *multitude) judgeLists() string {
	if len(m.lists.paged) > 0 {
		return result.JudgeRatio
	}

	return result.JudgeValue
}

// pace says how often audits come by default.
func (m *multitude) pace() string {
	const budget = 0.01

	every := max(time.Minute, time.Duration(float64(m.most())*perObject/budget)*time.Microsecond)

	return fmt.Sprintf("By default an audit of so many objects comes every %s: %d µs of each, and %g%% of a core, are budgeted.", every.Round(time.Second), perObject, budget*100)
}

func (m *multitude) memoryRows() []result.Row {
	if len(m.peaks) == 0 {
		return nil
	}

	peaks := make([]string, 0, len(m.peaks))
	for name, mib := range m.peaks {
		peaks = append(peaks, fmt.Sprintf("%s %.1f MiB", name, mib))
	}
	slices.Sort(peaks)

	return []result.Row{
		{
			ID: manyPeak, Title: "rebalancer memory at its peak, from its start through a death and a join, " + m.title(), Unit: "MiB",
			Values: []float64{m.peaks[target.Rebalancer]}, Judge: result.JudgeValue, Target: result.Target{Bound: result.AtMost, Value: peak, Unit: "MiB"},
			Notes: []string{"At their peaks: " + strings.Join(peaks, ", ") + "."},
		},
		{
			ID: manyServers, Title: "API server memory per object, " + m.title(), Unit: "KiB",
			Values: []float64{m.grown * 1024 / float64(m.most())}, Judge: result.JudgeValue,
			Notes: []string{"Kubernetes keeps each ConfigMap in memory, sharded or not."},
		},
	}
}
