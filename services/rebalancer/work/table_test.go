package work

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// version is an object at a version; nil means deleted.
type version struct {
	feed.Object

	exists bool
}

// sighting is what a source is about to report.
type sighting struct {
	name string
	at   int // version
	kind string
}

// worker is a worker with a job.
type worker struct {
	name    string
	object  feed.Object
	gone    int // the version at which it was deleted
	stale   bool
	permit  string
	ring    *rings
	decided bool
	out     Outcome
}

// rings is the target of the ring.
type rings struct {
	available map[string]bool
	wants     map[string]string
}

// reference is a reference model: objects with all their versions, sources that report them late, repeatedly and in any
// order, and workers that fail.
type reference struct {
	*rapid.T
	now     time.Time
	table   *Table
	last    int
	history map[string]map[int]version
	current map[string]int
	// newest is the newest version that was reported to the table. doubt is the base version of a write that may have been
	// executed.
	newest, doubt map[string]int
	sightings     []sighting
	workers       []*worker
	wants         *rings
	held          map[string]bool // shards that hold their Leases
	calm          bool
	owed          Debt
	released      string
}

var (
	names  = []string{"o1", "o2", "o3", "c1", "c2", "x1", "x2"}
	shards = []string{"a", "b", "c", "d"}
	owners = map[string]string{"c1": "o1", "c2": "o1"}
)

func newWorld(t *rapid.T) *reference {
	w := &reference{
		T: t, now: time.Unix(1_000_000_000, 0),
		history: map[string]map[int]version{}, current: map[string]int{}, newest: map[string]int{}, doubt: map[string]int{},
		held: map[string]bool{},
	}
	w.table = New(Limits{
		Workers: 1000, Drains: rapid.IntRange(1, 3).Draw(t, "drains"), PerShard: rapid.IntRange(1, 2).Draw(t, "per shard"),
		DrainTimeout: 10 * time.Second, Active: 100, Parked: rapid.IntRange(1, 5).Draw(t, "parked"),
	})

	for _, name := range names {
		w.history[name] = map[int]version{}
	}

	w.ring(t)

	return w
}

func (w *reference) at(name string) version { return w.history[name][w.current[name]] }

// becomes gives an object another version.
func (w *reference) becomes(name string, shard string, draining, exists bool) feed.Object {
	before := w.at(name)
	w.last++

	o := feed.Object{ID: id(name), ResourceVersion: strconv.Itoa(w.last), Shard: shard, Labelled: shard != "",
		Draining: draining}
	w.history[name][w.last] = version{o, exists}
	w.current[name] = w.last

	kind := "see"
	if !exists {
		kind = "unsure"
	}

	w.sightings = append(w.sightings, sighting{name, w.last, kind})
	if before.Draining && (!draining || !exists) {
		w.sightings = append(w.sightings, sighting{name, w.last, "released"})
	}

	if w.unassigned(before.Object) && exists && !w.unassigned(o) {
		w.sightings = append(w.sightings, sighting{name, w.last, "unsure"})
	}

	return o
}

func (w *reference) unassigned(o feed.Object) bool { return !w.wants.available[o.Shard] }

func (r *rings) inPlace(name string, o feed.Object) bool {
	return r.wants[name] == "" || o.Shard == r.wants[name] && !o.Draining
}

// edit changes an object as a user does, and may create it.
func (w *reference) edit(t *rapid.T) {
	name := rapid.SampledFrom(names).Draw(t, "name")
	o := w.at(name)

	switch rapid.IntRange(0, 3).Draw(t, "edit") {
	case 0: // no label of the ring
		w.becomes(name, o.Shard, o.Draining, true)
	case 1:
		w.becomes(name, "", false, true)
	default:
		shard := rapid.SampledFrom(append([]string{""}, shards...)).Draw(t, "shard")
		w.becomes(name, shard, shard != "" && rapid.Bool().Draw(t, "drain"), true)
	}
}

func (w *reference) delete(t *rapid.T) {
	name := rapid.SampledFrom(names).Draw(t, "name")
	if o := w.at(name); o.exists {
		w.becomes(name, o.Shard, o.Draining, false)
	}
}

// list is a source that will report each object in its current state.
func (w *reference) list(*rapid.T) {
	for _, name := range names {
		if w.at(name).exists {
			w.sightings = append(w.sightings, sighting{name, w.current[name], "see"})
		}
	}
}

// sight reports something to the table, in any order, and possibly again.
func (w *reference) sight(t *rapid.T) {
	if len(w.sightings) == 0 {
		t.Skip()
	}

	i := 0
	if !w.calm {
		i = rapid.IntRange(0, len(w.sightings)-1).Draw(t, "sighting")
	}

	s := w.sightings[i]
	if w.calm || rapid.IntRange(0, 3).Draw(t, "again") > 0 {
		w.sightings = slices.Delete(w.sightings, i, i+1)
	}

	w.tell(s)
}

func (w *reference) tell(s sighting) {
	before := w.before()
	o := w.history[s.name][s.at].Object
	_, known := w.table.Has(id(s.name))

	inPlace := w.wants.inPlace(s.name, o)
	if known || s.kind == "see" && !inPlace {
		w.newest[s.name] = max(w.newest[s.name], s.at)
	}

	w.Logf("%s %s %s, in place: %t", s.kind, s.name, describe(o), inPlace)

	switch s.kind {
	case "see":
		w.table.See(w.now, o, inPlace)
	case "unsure":
		w.table.Unsure(o.ID, o.ResourceVersion)
	case "released":
		w.released = ""
		if w.table.Released(w.now, o.ID, o.ResourceVersion) {
			w.released = s.name
		}
	}

	w.ended(before)
	w.released = ""
}

// unlisted is a list of the objects without an available shard that does not contain everything that the table knows.
func (w *reference) unlisted(*rapid.T) {
	w.table.Unlisted(false, func(id feed.ID) bool { return !w.unassigned(w.at(id.Name).Object) || !w.at(id.Name).exists })
}

func (w *reference) take(t *rapid.T) {
	if len(w.workers) >= 3 {
		t.Skip()
	}

	before := w.before()
	job, ok := w.table.Take(w.now)
	w.ended(before)

	if !ok {
		return
	}

	for _, other := range w.workers {
		require.NotEqual(t, other.name, job.Object.Name, "is with two workers")
	}

	w.Logf("take %s %s, stale: %t", job.Object.Name, describe(job.Object), job.Stale)
	w.workers = append(w.workers, &worker{name: job.Object.Name, object: job.Object, stale: job.Stale, permit: job.Permit,
		ring: w.wants})
}

// work makes a worker take a job, and finish it.
func (w *reference) work(t *rapid.T) {
	before := len(w.workers)
	if w.take(t); len(w.workers) > before {
		w.finish(t, w.workers[before])
	}
}

// seeAll is a source that has reported each object in its current state.
func (w *reference) seeAll(*rapid.T) {
	for _, name := range names {
		if w.at(name).exists {
			w.tell(sighting{name, w.current[name], "see"})
		}
	}
}

// pick returns a worker for which the condition holds.
func (w *reference) pick(t *rapid.T, holds func(*worker) bool) *worker {
	var all []*worker

	for _, k := range w.workers {
		if holds(k) {
			all = append(all, k)
		}
	}

	if len(all) == 0 {
		t.Skip()
	}

	return rapid.SampledFrom(all).Draw(t, "worker")
}

// read makes a worker read its object.
func (w *reference) read(t *rapid.T) {
	w.reads(t, w.pick(t, func(k *worker) bool { return k.stale && !k.decided }))
}

func (w *reference) reads(t *rapid.T, k *worker) {
	if w.fails(t) {
		k.decided, k.out = true, Outcome{Event: Failed, Stale: true, Reason: "read"}
		return
	}

	o := w.at(k.name)
	k.stale, k.object = false, o.Object

	if !o.exists {
		k.decided, k.gone, k.out = true, w.current[k.name], Outcome{Event: SeenInPlace}
	}
}

func (w *reference) fails(t *rapid.T) bool {
	return !w.calm && rapid.IntRange(0, 3).Draw(t, "fails") == 0
}

// decide makes a worker do what the plan would request, as far as it concerns the table.
func (w *reference) decide(t *rapid.T) {
	w.decides(t, w.pick(t, func(k *worker) bool { return !k.stale && !k.decided }))
}

func (w *reference) decides(t *rapid.T, k *worker) {
	o := k.object
	k.decided = true
	owner, controlled := owners[k.name]
	_, onTheMove := w.table.Has(id(owner))

	switch {
	case k.ring.inPlace(k.name, o):
		k.out = Outcome{Object: &o, Event: SeenInPlace}
	case controlled && onTheMove && !o.Draining:
		k.out = Outcome{Object: &o, Event: Blocked, Cause: OwnerOf(id(owner))}
	case o.Shard == "", controlled && k.ring.available[o.Shard]:
		w.write(t, k, k.ring.wants[k.name], false)
	case !k.ring.available[o.Shard]:
		w.force(t, k)
	case o.Shard == k.ring.wants[k.name]:
		w.write(t, k, o.Shard, false)
	case o.Draining:
		k.out = Outcome{Object: &o, Event: Asked}
	case k.permit != o.Shard:
		k.out = Outcome{Object: &o, Event: Blocked, Cause: PermitOf(o.Shard, o.GVR.GroupResource())}
	default:
		w.write(t, k, o.Shard, true)
	}
}

// force takes an object from a shard that is not available, if the Lease of the shard allows it.
func (w *reference) force(t *rapid.T, k *worker) {
	o := k.object

	switch {
	case w.table.Held(o.Shard):
		k.out = Outcome{Object: &o, Event: Blocked, Cause: HeldBy(o.Shard)}
	case w.held[o.Shard]:
		k.out = Outcome{Object: &o, Event: Blocked, Cause: HeldBy(o.Shard), RetryAfter: time.Second, Reason: "held"}
	default:
		w.table.Wake(HeldBy(o.Shard))
		w.write(t, k, k.ring.wants[k.name], false)
	}
}

// write is a write that may fail, before or after its execution.
func (w *reference) write(t *rapid.T, k *worker, shard string, drain bool) {
	o, now := k.object, w.at(k.name)
	failed, carriedOut := w.fails(t), !w.calm && rapid.Bool().Draw(t, "carried out")

	switch {
	case failed && !carriedOut:
		k.out = Outcome{Object: &o, Event: Failed, Stale: true, Reason: "write"}
	case !now.exists:
		k.gone, k.out = w.current[k.name], Outcome{Event: SeenInPlace}
	case now.ResourceVersion != o.ResourceVersion:
		k.out = Outcome{Object: &o, Event: Failed, Stale: true, Brief: true, Reason: "conflict"}
	default:
		after := w.becomes(k.name, shard, drain, true)

		switch {
		case failed:
			k.out = Outcome{Object: &o, Event: Failed, Stale: true, Reason: "no answer"}
		case k.ring.inPlace(k.name, after):
			k.out = Outcome{Object: &after, Event: SeenInPlace}
		case drain:
			k.out = Outcome{Object: &after, Event: Asked}
		case after.Shard == o.Shard && after.Draining == o.Draining:
			k.out = Outcome{Object: &after, Event: Failed, Reason: "no change"}
		default:
			k.out = Outcome{Object: &after, Event: Woken}
		}
	}
}

func (w *reference) report(t *rapid.T) {
	w.reports(w.pick(t, func(k *worker) bool { return k.decided }))
}

func (w *reference) reports(k *worker) {
	w.workers = slices.DeleteFunc(w.workers, func(o *worker) bool { return o == k })

	if _, known := w.table.Has(id(k.name)); known {
		w.learn(k)
	}

	w.Logf("report %s %s: %s", k.name, reported(k.out), w.describe(k.name))

	before := w.before()
	w.table.Report(w.now, id(k.name), k.out)
	w.ended(before)
}

// learn records what a report contains.
func (w *reference) learn(k *worker) {
	told := k.gone
	if o := k.out.Object; o != nil {
		told = number(o)
	}

	w.newest[k.name] = max(w.newest[k.name], told)

	if k.out.Stale && k.out.Object != nil {
		w.doubt[k.name] = max(w.doubt[k.name], told)
	} else if !k.out.Stale && told > 0 && told >= w.doubt[k.name] {
		delete(w.doubt, k.name)
	}
}

func number(o *feed.Object) int {
	n, _ := strconv.Atoi(o.ResourceVersion)

	return n
}

func (w *reference) time(t *rapid.T) {
	d := []time.Duration{time.Millisecond, 20 * time.Millisecond, time.Second, 11 * time.Second}
	w.now = w.now.Add(rapid.SampledFrom(d).Draw(t, "time"))

	before := w.before()
	w.table.Expire(w.now)
	w.ended(before)
}

// ring changes the target of the ring: some shards are available, and each object belongs to one of them.
func (w *reference) ring(t *rapid.T) {
	r := &rings{available: map[string]bool{}, wants: map[string]string{}}

	all := append([]string{"a"}, rapid.SliceOfNDistinct(rapid.SampledFrom(shards[1:]), 0, 2, rapid.ID).Draw(t,
		"available")...)

	for _, s := range all {
		r.available[s] = true
	}

	for _, name := range names {
		if _, controlled := owners[name]; !controlled {
			r.wants[name] = rapid.SampledFrom(all).Draw(t, name)
		}
	}

	for name, owner := range owners {
		r.wants[name] = r.wants[owner]
	}

	without := ""
	if !w.calm && rapid.IntRange(0, 5).Draw(t, "leaves") == 0 {
		without = rapid.SampledFrom(names).Draw(t, "without")
	}

	w.wants = r
	w.Logf("recheck without %q: %v", without, r.wants)
	w.table.Recheck(w.now, func(s string) bool { return r.available[s] },
		func(o feed.ID) bool { return o.Name != without })
	w.forget()
}

// lease makes a shard take or release its Lease without a notification.
func (w *reference) lease(t *rapid.T) {
	s := rapid.SampledFrom(shards).Draw(t, "shard")
	w.held[s] = !w.held[s]
}

// acknowledge releases an object as its shard does, or another client instead of the shard.
func (w *reference) acknowledge(t *rapid.T) {
	name := rapid.SampledFrom(names).Draw(t, "name")
	if o := w.at(name); o.exists && o.Draining {
		w.becomes(name, rapid.SampledFrom([]string{"", w.wants.wants[name]}).Draw(t, "to"), false, true)
	}
}

// In any history of a ring, the table keeps its invariants at each step. When the faults have stopped, and the current
// state of each object has been seen, the table becomes empty, and every object is in its place.
func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)

		actions := map[string]func(*rapid.T){
			"":          w.check,
			"edit":      w.edit,
			"work":      w.work,
			"work more": w.work,
			"work on":   w.work,
			"see all":   w.seeAll,
			"delete":    w.delete,
			"list":      w.list,
			"sight":     w.sight,
			"sights":    w.sight,
			"take":      w.take,
			"take more": w.take,
			"read":      w.read,
			"decide":    w.decide,
			"report":    w.report,
			"report 2":  w.report,
			"time":      w.time,
			"ring":      w.ring,
			"lease":     w.lease,
			"answer":    w.acknowledge,
			"unlisted":  w.unlisted,
			"search":    func(*rapid.T) { w.table.Search() },
		}

		for range 3 { // long histories, with more combinations
			t.Repeat(actions)
		}

		w.settle(t)
	})
}

// before returns the obligations, except those of resources that have left the ring.
func (w *reference) before() (all []string) {
	for _, o := range w.table.sorted() {
		if w.table.entries[o].news != Dropped {
			all = append(all, o.Name)
		}
	}

	return all
}

// ended checks invariants 1 and 2 for each obligation that has ended: the newest reported version was in its place, or
// a debt requests a search for the object.
func (w *reference) ended(before []string) {
	owed, _ := w.table.Debt()
	w.owe(owed)

	for _, name := range before {
		if _, known := w.table.Has(id(name)); known {
			continue
		}

		last := w.history[name][w.newest[name]]

		switch {
		case name == w.released:
			require.NotEmpty(w, owed.Unseen, "%s was released, and no pass is requested", name)
		case w.table.Summary().More || owed.All || owed.Relist || len(owed.Misplaced) > 0:
		default:
			require.True(w, !last.exists || w.wants.inPlace(name, last.Object), "%s is forgotten, although it was seen at %s",
				name, describe(last.Object))
			require.False(w, w.doubt[name] > 0 && w.doubt[name] >= w.newest[name],
				"%s is forgotten, although a write may have been executed", name)
		}
	}

	w.forget()
}

// forget drops the records about objects that are no obligations.
func (w *reference) forget() {
	for _, name := range names {
		if _, known := w.table.Has(id(name)); !known {
			delete(w.newest, name)
			delete(w.doubt, name)
		}
	}
}

func (w *reference) owe(d Debt) {
	if d.All || len(d.Unseen) > 0 || d.Relist || len(d.Misplaced) > 0 {
		w.owed = Debt{All: true}
	}
}

func (w *reference) check(t *rapid.T) {
	checkTable(t, w.table)

	limit := w.table.limits.Parked + len(shards)*2
	require.LessOrEqual(t, w.table.phases[Parked], limit)
}

// settle stops the faults, and lets sources and workers finish.
func (w *reference) settle(t *rapid.T) {
	w.calm, w.held = true, map[string]bool{}

	for range 300 {
		w.list(t)

		for len(w.sightings) > 0 {
			w.sight(t)
		}

		for _, name := range names {
			if o := w.at(name); o.exists && o.Draining && o.Shard != "" && w.wants.available[o.Shard] {
				w.becomes(name, "", false, true)
			}
		}

		w.finishAll(t)

		for range names {
			w.work(t)
		}

		w.check(t)

		if w.table.Empty() && w.settled() {
			_, later := w.table.Next()
			require.False(t, later, "an obligation is woken later")

			return
		}

		w.now = w.now.Add(time.Second)
	}

	require.Fail(t, "the table should become empty", "%s", w.describe(names...))
}

// finish lets a worker finish its job.
func (w *reference) finish(t *rapid.T, k *worker) {
	if k.stale && !k.decided {
		w.reads(t, k)
	}

	if !k.decided {
		w.decides(t, k)
	}

	w.reports(k)
}

func (w *reference) finishAll(t *rapid.T) {
	for len(w.workers) > 0 {
		w.finish(t, w.workers[0])
	}
}

func (w *reference) settled() bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		o := w.at(name)
		return o.exists && !w.wants.inPlace(name, o.Object)
	})
}

// describe describes objects, and what the table knows about them.
func (w *reference) describe(names ...string) (s string) {
	for _, name := range names {
		if e, ok := w.table.entries[id(name)]; ok {
			s += fmt.Sprintf("%s is %s with %s, seen %s; ", name, e.phase, describe(e.object), e.seen)
		}

		s += fmt.Sprintf("%s is at %s, exists: %t, and belongs to %s\n", name, describe(w.at(name).Object), w.at(name).exists,
			w.wants.wants[name])
	}

	return s
}

func reported(out Outcome) string {
	s := out.Event.String()
	if out.Object != nil {
		s += " " + describe(*out.Object)
	}

	if out.Event == Blocked {
		s += " because " + out.Cause.String()
	}

	return fmt.Sprintf("%s, stale: %t", s, out.Stale)
}
