package work

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/tools/testkit/transcript"
)

// TestTranscripts plays each file of testdata: at a given time, an event happens to a table, and the test compares the
// result with the rest of the line. An object is written as its resource version, its shard ("-" means none), and
// "drain" if it carries the drain label: "v3 a drain".
//
// The events:
//
//	limits drains=N per-shard=N timeout=D parked=N workers=N owners=RESOURCE
//	                               begins with an empty table that has these limits
//	see NAME OBJECT [in place]     a source has seen the object
//	unsure NAME vN, released NAME vN, unlisted NAME, recheck SHARD... [without NAME]
//	                               other notifications of the table
//	free SHARD                     the shard was found not to work on its objects
//	take                           a worker takes what is due
//	grant NAME SHARD               the worker needs a permit: it reports that, and has the object again if it is granted
//	hangs NAME                     the worker's write hangs
//	report NAME EVENT [OBJECT] [for CAUSE] [retry=D] [stale] [brief] [full] [unanswered=D] [answered=D]
//	                               the worker reports; "gone" is an object that does not exist
//	work EVENT ...                 both: the worker reports the same of whatever is due
//	wait                           time passes
//	next                           when the table has to be asked next
//	search                         a pass begins, which sees no objects without a label
//
//	gather NAME SHARD              the worker asks whether all that follows the object is at the shard
//	list begins, list ends, shows NAME OBJECT [missed], seek
//	                               what a watch of followers does, and the next step of the search for them
//	writes vN                      the engine has written to another object
//	controls RESOURCE [stops]      the ring changes: objects of a resource follow others, and perhaps a shard stops
//
// A name is one of a thing, "pods/x" one of a pod, and "pods.v2/x" the same in another version. "of NAME,NAME" after an
// object is what it follows, its controller first.
//
// "N times" before an event repeats it, with 1 to N in place of "#". "says" is what the table returns and owes.
func TestTranscripts(t *testing.T) {
	transcript.Run(t, func(t *testing.T) transcript.Player {
		t.Helper()

		p := newPlayer(t)

		return transcript.Player{
			Header: func() string {
				return fmt.Sprintf(layout, "time", "event", "then the object", "all", "permits", "says")
			},
			Setting: "limits", Set: p.limits,
			Step: func(at, event string) string { return strings.TrimRight(p.step(at, event), " ") },
		}
	})
}

const layout = "%-7s %-46s %-32s %-44s %-20s %s"

// player drives a table.
type player struct {
	*testing.T
	start, now time.Time
	table      *Table
	watch      *Watch
	says       []string
}

func newPlayer(t *testing.T) *player {
	t.Helper()

	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

	return &player{T: t, start: start, now: start}
}

var defaults = Limits{Workers: 1000, Drains: 10, PerShard: 10, DrainTimeout: time.Minute, Active: 100_000,
	Parked: 100_000}

func (p *player) limits(line string) {
	l, owners := defaults, sets.New[schema.GroupResource]()

	for _, field := range strings.Fields(line)[1:] {
		name, value, _ := strings.Cut(field, "=")
		number, _ := strconv.Atoi(value)

		switch name {
		case "drains":
			l.Drains = number
		case "per-shard":
			l.PerShard = number
		case "workers":
			l.Workers = number
		case "active":
			l.Active = number
		case "parked":
			l.Parked = number
		case "timeout":
			l.DrainTimeout = p.duration(value)
		case "owners":
			owners.Insert(id(value + "/").GVR.GroupResource())
		default:
			require.FailNow(p, "unknown limit", name)
		}
	}

	p.table = New(l)
	p.table.Owners(p.start, owners)
	p.controls("things", false)
	p.watch = p.table.Watch(Place{Of: id("").GVR.GroupResource()})
}

// controls makes the objects of a resource follow others.
func (p *player) controls(resource string, stops bool) {
	p.table.Controlled(p.now, []resources.Resource{{GVR: id(resource + "/").GVR, Namespaced: true}}, stops)
}

func (p *player) duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	require.NoError(p, err)

	return d
}

// moves returns how often objects of all resources have moved.
func (p *player) moves() (n uint64) {
	for _, l := range p.table.lanes.all {
		n += l.moved
	}

	return n
}

// step executes a line, and returns the line with its results.
func (p *player) step(at, event string) string {
	p.now, p.says = p.start.Add(p.duration(at)), nil
	times, each, moves := 1, event, p.moves()

	if n, rest, ok := strings.Cut(event, " times "); ok {
		each = rest
		times, _ = strconv.Atoi(n)
	}

	name := ""
	for i := range times {
		name = p.happen(strings.Fields(strings.ReplaceAll(each, "#", strconv.Itoa(i+1))))
	}

	if n := p.moves() - moves; n > 0 {
		p.say("%d moved", n)
	}

	p.owed()
	checkTable(p, p.table)

	if len(p.says) > 3 {
		p.says = append(p.says[:1], fmt.Sprintf("… (%d)", len(p.says)), p.says[len(p.says)-1])
	}

	return fmt.Sprintf(layout, at, event, p.object(name), p.counts(), p.permits(), strings.Join(p.says, "; "))
}

// happen executes an event, and returns the name of its object.
func (p *player) happen(words []string) (name string) {
	verb, words := words[0], words[1:]
	if len(words) > 0 {
		name = words[0]
	}

	switch verb {
	case "see":
		o, rest := p.parse(name, words[1:])
		p.table.See(p.now, o, strings.Join(rest, " ") == "in place")
	case "unsure":
		p.table.Unsure(id(name), strings.TrimPrefix(words[1], "v"))
	case "released":
		p.table.Released(p.now, id(name), strings.TrimPrefix(words[1], "v"))
	case "unlisted":
		p.table.Unlisted(false, func(o feed.ID) bool { return o == id(name) })
	case "recheck":
		p.recheck(words)
		return ""
	case "free":
		p.table.Wake(HeldBy(name))
		return ""
	case "grant":
		p.grant(name, words[1])
	case "take":
		return p.take()
	case "work":
		name = p.take()
		p.report(name, words)
	case "report":
		p.report(name, words[1:])
	case "hangs":
		p.table.Hangs(p.now, id(name))
	case "wait":
		p.table.Expire(p.now)
		return ""
	case "search":
		p.table.Search()
		return ""
	case "next":
		if at, ok := p.table.Next(); ok {
			p.say("next at %s", at.Sub(p.start))
		}

		return ""
	default:
		return p.family(verb, name, words)
	}

	return name
}

func (p *player) recheck(words []string) {
	shards, without := words, ""
	if i := slices.Index(words, "without"); i >= 0 {
		shards, without = words[:i], words[i+1]
	}

	available := func(s string) bool { return slices.Contains(shards, s) }
	p.table.Recheck(p.now, available, func(o feed.ID) bool { return o.Name != without })
}

func (p *player) grant(name, shard string) {
	e := p.table.entries[id(name)]
	require.Equal(p, Moving, e.phase, "no worker has %s", name)

	if e.holds != shard {
		p.report(name, []string{"blocked", "v" + e.object.ResourceVersion, shard, "for", "permit", shard})

		if e.phase == Due {
			p.table.move(e, Moving)
			require.True(p, p.table.takeTurn(e))
		}
	}

	p.say("%s", map[bool]string{true: "granted", false: "refused"}[e.phase == Moving])
}

func (p *player) take() string {
	job, ok := p.table.Take(p.now)
	if !ok {
		p.say("nothing is due")
		return ""
	}

	stale := ""
	if job.Stale {
		stale = ", to be read"
	}

	if job.Plain {
		stale += ", plain"
	}

	if job.Permit != "" && !job.Object.Draining {
		stale += ", permit of " + job.Permit
	}

	within := ""
	if job.Within != firstWithin {
		within = ", within " + job.Within.String()
	}

	p.say("takes %s %s%s%s", job.Object.Name, describe(job.Object), stale, within)

	return job.Object.Name
}

func (p *player) report(name string, words []string) {
	require.Equal(p, Moving, p.table.entries[id(name)].phase, "no worker has %s", name)

	var out Outcome

	kind := words[0]
	words = words[1:]

	switch kind {
	case "gone", "seen":
		out.Next = InPlace
	case "woken":
		out.Next = Due
	case "asked":
		out.Next = Draining
	case "blocked":
		out.Next = Parked
	case "failed":
		out.Next = Delayed
	default:
		require.FailNow(p, "unknown report", kind)
	}

	if len(words) > 0 && strings.HasPrefix(words[0], "v") {
		o, rest := p.parse(name, words)
		out.Object, words = &o, rest
	} else if o, ok := p.table.Has(id(name)); ok && kind != "gone" {
		out.Object = &o
	}

	for i, word := range words {
		switch {
		case word == "for":
			out.Cause = cause(words[i+1], words[i+2], id(name).GVR.GroupResource())

			if f := p.table.familyOf(p.table.entries[id(name)]); f != nil {
				out.To = f.to
			}
		case strings.HasPrefix(word, "retry="):
			out.RetryAfter = p.duration(strings.TrimPrefix(word, "retry="))
		case word == "stale":
			out.Stale = true
		case word == "brief":
			out.Brief = true
		case word == "full":
			out.Full = true
		case strings.HasPrefix(word, "answered="), strings.HasPrefix(word, "unanswered="):
			how, took, _ := strings.Cut(word, "=")
			out.Wrote, out.Unanswered, out.Took = true, how == "unanswered", p.duration(took)
			out.Reason = "no answer"
		}
	}

	if late := p.table.Report(p.now, id(name), out); late != nil {
		p.say("%s is late at %s after %s", late.ID.Name, late.Shard, late.After)
	}
}

func (p *player) parse(name string, words []string) (o feed.Object, rest []string) {
	o = feed.Object{ID: id(name), UID: types.UID(strings.Replace(name, ".v2/", "/", 1)),
		ResourceVersion: strings.TrimPrefix(words[0], "v")}
	if words[1] != "-" {
		o.Shard, o.Labelled = words[1], true
	}

	rest = words[2:]
	if len(rest) > 0 && rest[0] == "drain" {
		o.Draining, rest = true, rest[1:]
	}

	if len(rest) > 1 && rest[0] == "of" {
		controller, above, _ := strings.Cut(rest[1], ",")
		o.Controller, o.Above[0], rest = &metav1.OwnerReference{UID: types.UID(controller)}, types.UID(above), rest[2:]
	}

	return o, rest
}

func (p *player) say(format string, args ...any) {
	p.says = append(p.says, fmt.Sprintf(format, args...))
}

// owed returns what the table owes now.
func (p *player) owed() {
	d, ok := p.table.Debt()
	if !ok {
		return
	}

	var owes []string

	for what, is := range map[string]bool{"a pass": d.All, "a check": len(d.Unseen) > 0,
		"a list of the unassigned": d.Relist} {
		if is {
			owes = append(owes, what)
		}
	}

	slices.Sort(owes)

	p.say("owes %s", strings.Join(owes, ", "))
}

// object returns the state of the obligation for an object.
func (p *player) object(name string) string {
	e, ok := p.table.entries[id(name)]

	switch {
	case name == "":
		return "-"
	case !ok:
		return name + " none"
	}

	s := name + " " + e.phase.String()
	if e.phase == Parked {
		s += fmt.Sprintf(" (%s %s%s%s)", e.cause.kind, e.cause.shard, e.cause.owner.Name, e.cause.uid)
	}

	if e.late {
		s += ", late"
	}

	if e.phase == Delayed || e.phase == Draining {
		s += " until " + e.timer.at.Sub(p.start).String()
	}

	return s
}

func (p *player) counts() string {
	var all []string

	for _, h := range p.table.hanging() {
		p.say("%d %s hang since %s: %s", h.Objects, h.Resource.Resource, h.Since.Sub(p.start), h.Reason)
	}

	for phase, n := range p.table.phases {
		if n > 0 {
			all = append(all, fmt.Sprintf("%d %s", n, phases[phase]))
		}
	}

	if p.table.Summary().More {
		all = append(all, "and more")
	}

	return none(strings.Join(all, ", "))
}

func (p *player) permits() string {
	held, silent := map[string]held{}, map[string]string{}

	for _, l := range slices.SortedFunc(slices.Values(p.table.lanes.all), func(a, b *lane) int {
		return cmp.Compare(a.of.Resource, b.of.Resource)
	}) {
		for shard, h := range l.held {
			sum := held[shard]
			sum.inTime, sum.late = sum.inTime+h.inTime, sum.late+h.late
			held[shard] = sum

			if h.deaf() {
				silent[shard] += ", no " + l.of.Resource
			}
		}
	}

	var all []string

	for _, shard := range slices.Sorted(maps.Keys(held)) {
		s := fmt.Sprintf("%s %d", shard, held[shard].inTime+held[shard].late)
		if late := held[shard].late; late > 0 {
			s += fmt.Sprintf(" (%d late%s)", late, silent[shard])
		}

		all = append(all, s)
	}

	return none(strings.Join(all, ", "))
}

func none(s string) string {
	if s == "" {
		return "-"
	}

	return s
}

func describe(o feed.Object) string {
	shard := o.Shard
	if shard == "" {
		shard = "-"
	}

	if o.Draining {
		shard += " drain"
	}

	return "v" + o.ResourceVersion + " " + shard
}

func id(name string) feed.ID {
	of, _, named := strings.Cut(name, "/")
	if !named {
		of = "things"
	}

	resource, version, _ := strings.Cut(of, ".")

	return feed.ID{GVR: schema.GroupVersionResource{Group: "g", Version: cmp.Or(version, "v1"), Resource: resource},
		Namespace: "n", Name: strings.Replace(name, "."+version+"/", "/", 1)}
}

func cause(kind, of string, resource schema.GroupResource) Cause {
	switch kind {
	case kindHeld:
		return HeldBy(of)
	case kindPermit:
		return PermitOf(of, resource)
	case kindOwner:
		return OwnerOf(id(of))
	case kindFollowers:
		return FollowersOf(types.UID(of))
	}

	panic("unknown cause " + kind)
}

// checkTable verifies the invariants.
func checkTable(t require.TestingT, x *Table) {
	require.NoError(t, x.verify())
	x.Summary()
}

// Violated invariants are found.
func TestCorruptTableIsFound(t *testing.T) {
	now := time.Unix(1_000_000_000, 0)

	for name, corrupt := range map[string]func(x *Table, e *entry){
		"3: no worker takes what is due":    func(x *Table, _ *entry) { x.lanes.all[0].due = [ranks]queue{} },
		"3: two workers may have an object": func(x *Table, e *entry) { e.lane.due[urgent].push(e) },
		"3: an object is kept as another":   func(_ *Table, e *entry) { e.object.Name = "other" },
		"4: a permit is held without a drain": func(x *Table, e *entry) {
			x.move(e, Moving)
			e.phase, e.holds = Draining, "a"
			x.phases[Moving]--
			x.phases[Draining]++
		},
		"4: a permit is not given back":      func(x *Table, _ *entry) { x.count(x.lanes.all[0], "a", false, 1) },
		"4: a move counts that is none":      func(x *Table, _ *entry) { x.lanes.all[0].planned++ },
		"5: nothing waits for a cause":       func(x *Table, _ *entry) { x.waitingFor(HeldBy("a")) },
		"5: a cause wakes not all":           func(x *Table, e *entry) { x.waitingFor(HeldBy("a")).entries.PushBack(e) },
		"5: a timer is of what is over":      func(x *Table, _ *entry) { x.at(&entry{}, now) },
		"6: the counts are wrong":            func(x *Table, _ *entry) { x.phases[Parked]++ },
		"7: no shard works on what waits":    func(x *Table, e *entry) { e.unqueue(); e.lane.due[regular].push(e) },
		"9: more follow an owner than there": func(x *Table, e *entry) { x.following["owner"] = sets.New(e) },
		"9: a family belongs to no object":   func(x *Table, e *entry) { x.families["uid"] = &family{owner: e} },
	} {
		t.Run(name, func(t *testing.T) {
			x := New(Limits{Workers: 1000, Drains: 1, PerShard: 1, DrainTimeout: time.Minute, Active: 10, Parked: 10})
			o := feed.Object{ID: id("o"), ResourceVersion: "1", Shard: "a"}
			x.See(now, o, false)
			require.NoError(t, x.verify())

			corrupt(x, x.entries[o.ID])
			require.ErrorContains(t, x.verify(), name[:2])
		})
	}
}
