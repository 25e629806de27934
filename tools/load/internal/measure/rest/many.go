package rest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/figure"
	"github.com/clusterring/clusterring/tools/load/internal/measure/filled"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/target"
	"github.com/clusterring/clusterring/tools/load/internal/usage"
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

	// compared is the number of objects whose pass is the floor of the pass over many objects.
	compared = 10_000
	// pagesUpTo is the largest number of objects that are also listed in pages, which takes quadratic time.
	pagesUpTo = 200_000
	// perObject is the target for a pass over an object, in microseconds.
	perObject = 25
)

func manyPart() run.Part {
	return run.Part{
		Rows: []string{
			manyPrefix + cpuRow, manyPrefix + networkRow, manyPrefix + memoryRow, manyPrefix + requestsRow,
			manyDeath, manyServer, manyCPU, manyJoin, manyPass, manyElse, manyFlat, manyAudit, manyPeak, manyServers, manyStreamed,
		},
		Run: many,
	}
}

// multitude is a ring with very many objects and shards.
type multitude struct {
	*filled.Ring

	bench *run.Bench
	// most is the number of objects in the end.
	most int
	// idle is what API server and rebalancer take without objects, in ms/s.
	idle float64
}

// many measures the services with very many objects: at rest, then lists and an audit, then a death and a join.
func many(ctx context.Context, b *run.Bench) error {
	shards, most := run.Pick(b, 10, 100), run.Pick(b, 20_000, 100_000)
	if b.Scale == run.Million {
		most = 1_000_000
	}

	w, err := filled.Open(ctx, b, "load-many", shards)
	if err != nil {
		return err
	}

	m := &multitude{Ring: w, bench: b, most: most}
	with := fmt.Sprintf("%s objects, %d shards", figure.Number(float64(most)), shards)

	none, err := m.rest(ctx, 0)
	if err != nil {
		return err
	}

	server := none[len(none)-1][target.APIServer]
	m.idle = server.cpu + none[len(none)-1][target.Rebalancer].cpu

	less, err := m.with(ctx, compared, false)
	if err != nil {
		return err
	}

	now, err := m.rest(ctx, most)
	if err != nil {
		return err
	}

	streamed, paged, err := m.lists(ctx)
	if err != nil {
		return err
	}

	audits, err := m.audit(ctx)
	if err != nil {
		return err
	}

	more, err := m.with(ctx, most, true)
	if err != nil {
		return err
	}

	used, err := b.Local.Usage().Read()
	if err != nil {
		return err
	}

	var peaks []string
	for _, name := range slices.Sorted(maps.Keys(used)) {
		peaks = append(peaks, fmt.Sprintf("%s %.1f MiB", name, peak(used[name])))
	}

	b.Report(restRows(manyPrefix, with, most, [2][]window{now, none})...)
	b.Report(moveRows(with, more)...)
	b.Report(m.passRows(with, more.died, less.died, audits)...)

	if len(streamed) > 0 {
		b.Report(result.Row{
			ID: manyStreamed, Title: "API server CPU to list the metadata of " + figure.Number(float64(most)) + " objects as a stream, per object", Unit: "µs",
			Values: streamed, FloorTitle: "in pages of 1,000", Floor: paged,
		})
	}

	b.Report(
		result.Row{
			ID: manyPeak, Title: "rebalancer memory at its peak, from its start through a death and a join, " + with, Unit: "MiB",
			Values: []float64{peak(used[target.Rebalancer])}, Target: result.Max(128), Notes: []string{"At their peaks: " + strings.Join(peaks, ", ") + "."},
		},
		result.Row{
			ID: manyServers, Title: "API server memory per object, " + with, Unit: "KiB",
			Values: []float64{(now[len(now)-1][target.APIServer].memory - server.memory) * 1024 / float64(most)},
			Notes:  []string{"The API server caches each ConfigMap, with or without sharding."},
		},
	)

	return nil
}

// grow creates objects until there are as many as given.
func (m *multitude) grow(ctx context.Context, size int) error {
	began := m.bench.Clock.Now()
	err := m.Grow(ctx, size)
	m.bench.Progress("%d objects: created in %.1f s", size, m.bench.Clock.Since(began).Seconds())

	return err
}

// rest measures the services at rest with so many objects.
func (m *multitude) rest(ctx context.Context, size int) ([]window, error) {
	if err := m.grow(ctx, size); err != nil {
		return nil, err
	}
	// With the whole budget, an audit follows a minute after the start of the services, not an hour.
	if err := m.Restart(ctx, "--audit-budget=1"); err != nil {
		return nil, err
	}

	return windows(ctx, m.bench)
}

// movement is a death of a shard, and a join; least is the same number of raw patches.
type movement struct{ died, joined, least filled.Cost }

// with has a shard die, and possibly another one join, with so many objects.
func (m *multitude) with(ctx context.Context, size int, join bool) (now movement, err error) {
	if err := m.grow(ctx, size); err != nil {
		return now, err
	}
	// The settle period is longer than the moves that follow a death, so that the pass can be distinguished from them. Audits, which would
	// go over all objects during the moves, come as by default.
	const atLeast, each = 6 * time.Second, 100 * time.Microsecond
	if err := m.Restart(ctx, "--settle-period="+(atLeast+time.Duration(size)*each).String()); err != nil {
		return now, err
	}

	if now.least, err = m.Raw(ctx, 1, 0); err != nil {
		return now, err
	}

	if now.died, err = m.DieAndRest(ctx, 1); err != nil {
		return now, err
	}

	idle := m.idle / float64(size) * 1000
	now.died.Pass -= idle * now.died.PassTook
	now.died.Rest -= idle * now.died.RestTook
	m.bench.Progress("%d objects, a death: %v; work before the pass: %.1f µs per object, %.1f s; pass: %.1f, %.1f s; floor: %v", size, now.died,
		now.died.Rest, now.died.RestTook, now.died.Pass, now.died.PassTook, now.least)

	if join {
		now.joined, err = m.Join(ctx, 1)
		m.bench.Progress("%d objects, a join: %v; and %.1f s until the end of the pass", size, now.joined, now.joined.PassTook)
	}

	return now, err
}

// audit waits for an audit, and returns what it takes per object, in microseconds. The services must have started less than a minute ago.
func (m *multitude) audit(ctx context.Context) ([]float64, error) {
	b := m.bench
	// It takes a minute to come.
	if b.Scale == run.Small && !b.Asked(manyAudit) || !b.Wants(manyAudit) {
		return nil, nil
	}

	const (
		patience = 3 * time.Minute
		// The rebalancer receives more than so many bytes of each object. An audit is over after so many looks at rest.
		each, over = 20, 5
	)

	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no audit in %s", patience))
	defer cancel()

	before, err := b.Local.Usage().Read()
	if err != nil {
		return nil, err
	}

	for {
		from := b.Clock.Now()

		now, err := filled.Rest(ctx, b, over)
		if err != nil {
			return nil, err
		}

		used := usage.Difference(before, now)
		if used[target.Rebalancer].Received > each*int64(m.most) {
			took := b.Clock.Since(from).Seconds()
			cpu := (used[target.APIServer].Milliseconds() + used[target.Rebalancer].Milliseconds() - m.idle*took) * 1000 / float64(m.most)
			b.Progress("%d objects, an audit: %.1f µs per object, %.1f s", m.most, cpu, took)

			return []float64{cpu}, nil
		}

		before = now // it has not begun
	}
}

func moveRows(with string, now movement) []result.Row {
	return []result.Row{
		{
			ID: manyDeath, Title: "objects moved per second after a shard's death, " + with, Unit: "objects/s", Values: []float64{now.died.Rate},
			FloorTitle: "raw metadata PATCH, same concurrency", Floor: []float64{now.least.Rate}, Target: result.Min(0.85),
		},
		{
			ID: manyServer, Title: "API server CPU per moved object, " + with, Unit: "ms", Values: []float64{now.died.APIServer},
			FloorTitle: "same raw PATCH", Floor: []float64{now.least.APIServer}, Target: result.Max(1.2),
		},
		{
			ID: manyCPU, Title: "rebalancer CPU per moved object, " + with, Unit: "ms", Values: []float64{now.died.Rebalancer},
			Target: result.Max(0.2),
		},
		{
			ID: manyJoin, Title: "join: objects drained and released to the new shard per second, " + with, Unit: "objects/s",
			Values: []float64{now.joined.Rate}, FloorTitle: "two raw PATCHes per object", Floor: []float64{now.least.Plus(now.least).Rate},
			Notes: []string{"The time counts from the creation of the Lease, and includes the pass that finds the objects."},
		},
	}
}

func (m *multitude) passRows(with string, died, less filled.Cost, audits []float64) []result.Row {
	const (
		// flat is how much more a pass may take per object with more objects.
		flat = 1.3
		note = "CPU of API server and rebalancer, minus what both use at rest without objects."
		// budget is the default --audit-budget of the rebalancer.
		budget = 0.01
	)

	every := max(time.Minute, time.Duration(float64(m.most)*perObject/budget)*time.Microsecond).Round(time.Second)
	small := figure.Number(compared)

	rows := []result.Row{
		{
			ID: manyPass, Title: "pass over all objects after a change of shards, CPU per object, " + with, Unit: "µs",
			Values: []float64{died.Pass}, Target: result.Max(perObject), Notes: []string{note},
		},
		{
			ID: manyElse, Title: "work between the moves after a death and that pass, CPU per object of the ring, " + with, Unit: "µs", Values: []float64{died.Rest},
			Notes: []string{note, "The rebalancer checks the objects of shards that have lost partitions to other shards, and drains those that must move between living shards."},
		},
		{
			ID: manyFlat, Title: "pass over all objects, compared with a pass over " + small + " objects", Unit: "µs", Values: []float64{died.Pass},
			FloorTitle: "a pass over " + small, Floor: []float64{less.Pass}, Target: result.Max(flat), Notes: []string{note},
		},
	}
	if len(audits) > 0 {
		rows = append(rows, result.Row{
			ID: manyAudit, Title: "audit of all objects, CPU per object, " + with, Unit: "µs", Values: audits, Target: result.Max(perObject), Notes: []string{
				note, fmt.Sprintf("By default, the rebalancer audits this many objects every %s: it plans for %d µs per object, and for %g%% of a core.", every, perObject, budget*100),
			},
		})
	}

	return rows
}
