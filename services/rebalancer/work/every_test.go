package work

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// TestEveryHistory explores everything that can happen to one object, in every order, while its ring and its users
// change and requests fail as often as the budgets allow. In every state, an object that is out of its place is an
// obligation, or will be reported. From every state, once nothing fails anymore, the object reaches its place and
// leaves nothing behind.
func TestEveryHistory(t *testing.T) {
	for name, all := range map[string]budget{
		"failures":           {failures: 2},
		"edits and failures": {edits: 1, failures: 1},
		"the ring":           {rings: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			states := explore(t, all)
			require.Greater(t, states, 300, "there should be many states")
			t.Logf("%d states", states)
		})
	}
}

// explore visits every state that is reachable within a budget, nearest first, and returns the number of states. It
// reaches a state again by repeating its history.
func explore(t *testing.T, all budget) (states int) {
	t.Helper()

	seen := map[string]bool{}
	queue := [][]string{nil}

	for len(queue) > 0 {
		path := queue[0]
		queue = queue[1:]

		for _, what := range replay(all, path).possible() {
			next := append(slices.Clip(path), what)

			s := replay(all, next)

			key := s.String()
			if seen[key] {
				continue
			}

			seen[key] = true

			if !s.found() {
				require.Fail(t, "no source finds the object", "%s\n%s", strings.Join(next, "\n"), s)
			}

			queue = append(queue, next)

			if s.settle(); !s.inPlace(s.is) || !s.table.Empty() || !s.atRest() {
				require.Fail(t, "the object does not come to its place", "%s\n%s", strings.Join(next, "\n"), s)
			}
		}
	}

	return len(seen)
}

// budget is how often external events may happen.
type budget struct{ edits, failures, rings int }

// single contains one object, the watches and passes that report it, and one worker.
type single struct {
	table *Table
	now   time.Time
	left  budget

	// desired is the shard of the object according to the ring. available are the available shards.
	desired   string
	available map[string]bool

	is   feed.Object
	last int
	// lacking and drains are what the two watches will report, in order. passes is what the current pass will report. owed
	// reports whether another pass has to begin.
	lacking, drains, passes []telling
	owed                    bool
	// audited reports whether only the audit can know where the object is.
	audited bool

	// job is the job of the worker; nil if there is none. The worker uses the ring as it was when it took the job.
	job     *Job
	wants   string
	reached map[string]bool
	decided *Outcome
}

// passes is the event in which time passes until the next time that the table requests.
const passes = "time passes"

// telling is what a source will report: the object as it was, or that a list did not contain it.
type telling struct {
	what   string
	object feed.Object
}

func replay(all budget, path []string) *single {
	s := &single{
		table: New(Limits{Workers: 1000, Drains: 1, PerShard: 1, DrainTimeout: 10 * time.Second, Active: 10,
			Parked: 10}), now: time.Unix(1_000_000_000, 0), left: all,
		desired: "a", available: map[string]bool{"a": true, "b": true},
	}
	s.table.Recheck(s.now, s.isAvailable, func(feed.ID) bool { return true })
	s.becomes("", false) // it is created, and admission has missed it

	for _, what := range path {
		s.do(what)
	}

	return s
}

func (s *single) isAvailable(shard string) bool { return s.available[shard] }

func (s *single) inPlace(o feed.Object) bool { return o.Shard == s.desired && !o.Draining }

// becomes gives the object another version, which the affected watches will report.
func (s *single) becomes(shard string, draining bool) {
	before := s.is
	s.last++
	s.is = feed.Object{ID: id("o"), ResourceVersion: strconv.Itoa(s.last), Shard: shard, Labelled: shard != "",
		Draining: draining}
	s.audited = false

	switch {
	case !s.available[shard]:
		s.lacking = append(s.lacking, telling{"see", s.is})
	case s.last > 1 && !s.available[before.Shard]:
		s.lacking = append(s.lacking, telling{"unsure", s.is})
	}

	switch {
	case draining:
		s.drains = append(s.drains, telling{"see", s.is})
	case before.Draining:
		s.drains = append(s.drains, telling{"released", s.is})
	}
}

// possible returns all possible events.
func (s *single) possible() (all []string) {
	can := func(what string, is bool) {
		if is {
			all = append(all, what)
		}
	}

	can("a user removes the label", s.left.edits > 0 && s.is.Shard != "")
	can("a user writes a", s.left.edits > 0 && s.is.Shard != "a")
	can("a user writes b", s.left.edits > 0 && s.is.Shard != "b")
	can("the ring wants b", s.left.rings > 0 && s.desired != "b")
	can("the ring wants a", s.left.rings > 0 && s.desired != "a")
	can("a is lost", s.left.rings > 0 && s.available["a"] && s.available["b"])
	can("the shard acknowledges", s.is.Draining && s.available[s.is.Shard])
	can("the shard acknowledges, and admission assigns", s.is.Draining && s.available[s.is.Shard])
	can("the watch tells", len(s.lacking) > 0)
	can("the watch of drains tells", len(s.drains) > 0)
	can("the pass tells", len(s.passes) > 0)
	can("a pass begins", s.owed && len(s.passes) == 0)
	can("the watch is cut", s.left.failures > 0)
	can("the watch of drains is cut", s.left.failures > 0)

	_, waits := s.table.Next()
	can(passes, waits)
	can("the worker takes it", s.job == nil && s.table.Ready() > 0)
	can("the worker reads", s.job != nil && s.decided == nil && s.job.Stale)
	can("the worker cannot read", s.left.failures > 0 && s.job != nil && s.decided == nil && s.job.Stale)
	can("the worker acts", s.job != nil && s.decided == nil && !s.job.Stale)
	can("the worker's request fails", s.left.failures > 0 && s.job != nil && s.decided == nil && !s.job.Stale)
	can("the worker's answer is lost", s.left.failures > 0 && s.job != nil && s.decided == nil && !s.job.Stale)
	can("the worker reports", s.decided != nil)

	return all
}

func (s *single) do(what string) {
	switch what {
	case "a user removes the label", "a user writes a", "a user writes b":
		s.left.edits--
		s.becomes(strings.TrimPrefix(strings.TrimPrefix(what, "a user removes the label"), "a user writes "), false)
		s.audited = s.available[s.is.Shard] // no watch reports a label that names an available shard
	case "the ring wants a", "the ring wants b":
		s.left.rings--
		s.edit(strings.TrimPrefix(what, "the ring wants "), map[string]bool{"a": true, "b": true})
	case "a is lost":
		s.left.rings--
		s.edit("b", map[string]bool{"b": true})
	case "the shard acknowledges":
		s.becomes("", false)
	case "the shard acknowledges, and admission assigns":
		s.becomes(s.desired, false)
	case "the watch tells":
		s.lacking = s.tell(s.lacking)
	case "the watch of drains tells":
		s.drains = s.tell(s.drains)
	case "the pass tells":
		s.passes = s.tell(s.passes)
	case "a pass begins":
		s.owed, s.passes, s.audited = false, []telling{{"see", s.is}}, false
	case "the watch is cut":
		s.left.failures--
		s.lacking = s.listed(s.lacking[:0:0], !s.available[s.is.Shard], "none without a shard")
	case "the watch of drains is cut":
		s.left.failures--
		s.drains = s.listed(s.drains[:0:0], s.is.Draining, "no drain")
	case passes:
		at, _ := s.table.Next()
		s.now = at
		s.table.Expire(s.now)
	default:
		s.work(what)
	}

	if d, ok := s.table.Debt(); ok {
		s.owed = s.owed || d.All || len(d.Unseen) > 0
		if d.Relist {
			s.lacking = s.listed(s.lacking, !s.available[s.is.Shard], "none without a shard")
		}
	}
}

// edit changes the target. The objects of a lost shard are listed, and a pass visits all other objects.
func (s *single) edit(desired string, available map[string]bool) {
	lost := s.available["a"] && !available["a"]
	s.desired, s.available, s.owed = desired, available, true
	s.table.Recheck(s.now, s.isAvailable, func(feed.ID) bool { return true })

	if lost && s.is.Shard == "a" {
		s.lacking = append(s.lacking, telling{"see", s.is})
	}
}

// listed returns what the list of a watch will report. The end of the list reports what it did not contain.
func (s *single) listed(before []telling, has bool, none string) []telling {
	if has {
		before = append(before, telling{"see", s.is})
		none = ""
	}

	return append(before, telling{none, s.is})
}

// tell passes the first pending report to the table.
func (s *single) tell(all []telling) []telling {
	o := all[0].object

	switch all[0].what {
	case "see":
		s.table.See(s.now, o, s.inPlace(o))
	case "unsure":
		s.table.Unsure(o.ID, o.ResourceVersion)
	case "released":
		s.table.Released(s.now, o.ID, o.ResourceVersion)
	case "none without a shard":
		s.table.Unlisted(false, func(feed.ID) bool { return true })
	case "no drain":
		s.table.Unlisted(true, func(feed.ID) bool { return true })
	}

	return all[1:]
}

// work executes an event of the worker.
func (s *single) work(what string) {
	switch what {
	case "the worker takes it":
		if job, ok := s.table.Take(s.now); ok {
			s.job, s.wants, s.reached = &job, s.desired, s.available
		}
	case "the worker reads":
		s.job.Object, s.job.Stale = s.is, false
	case "the worker cannot read":
		s.left.failures--
		s.decided = &Outcome{Next: Delayed, Stale: true, Reason: what}
	case "the worker acts":
		s.decided = s.act(true, true)
	case "the worker's request fails":
		s.left.failures--
		s.decided = s.act(false, false)
	case "the worker's answer is lost":
		s.left.failures--
		s.decided = s.act(true, false)
	case "the worker reports":
		s.table.Report(s.now, s.is.ID, *s.decided)
		s.job, s.decided = nil, nil
	}
}

// act does what the plan would request, and returns what the worker will report.
func (s *single) act(carriedOut, answered bool) *Outcome {
	o := s.job.Object
	shard, drain := s.wants, false

	switch {
	case o.Shard == s.wants && !o.Draining:
		return &Outcome{Object: &o, Next: InPlace}
	case s.reached[o.Shard] && o.Shard != s.wants && o.Draining:
		return &Outcome{Object: &o, Next: Draining}
	case s.reached[o.Shard] && o.Shard != s.wants:
		if s.job.Permit != o.Shard {
			return &Outcome{Object: &o, Next: Parked, Cause: PermitOf(o.Shard, o.GVR.GroupResource())}
		}

		shard, drain = o.Shard, true
	}

	conflict := s.is.ResourceVersion != o.ResourceVersion
	if carriedOut && !conflict {
		s.becomes(shard, drain)
	}

	after := s.is

	switch {
	case !answered, conflict:
		return &Outcome{Object: &o, Next: Delayed, Stale: true, Brief: conflict, Reason: "failed"}
	case drain:
		return &Outcome{Object: &after, Next: Draining}
	}

	return &Outcome{Object: &after, Next: InPlace}
}

// found reports whether the object is in its place, is an obligation, or will be reported.
func (s *single) found() bool {
	if s.inPlace(s.is) || !s.table.Empty() || s.owed || s.audited {
		return true
	}

	for _, list := range [][]telling{s.lacking, s.drains, s.passes} {
		for _, told := range list {
			if told.object.ResourceVersion == s.is.ResourceVersion {
				return true
			}
		}
	}

	return false
}

// atRest reports whether nothing else will happen without external events.
func (s *single) atRest() bool {
	return len(s.lacking)+len(s.drains)+len(s.passes) == 0 && !s.owed && s.job == nil
}

// settle lets everything succeed until nothing else happens, including an audit.
func (s *single) settle() {
	s.left = budget{}
	s.owed = s.owed || s.audited

	for range 1000 {
		all := s.possible()
		if len(all) == 0 {
			return
		}

		what := all[len(all)-1] // workers first, and time passes only if nothing else can happen
		if what == passes && len(all) > 1 {
			what = all[len(all)-2]
		}

		s.do(what)
	}
}

// String describes everything that distinguishes states.
func (s *single) String() string {
	text := fmt.Sprintf("%v, %s of %v: %s, owed: %t, audited: %t;", s.left, s.desired, s.available, shown(s.is),
		s.owed, s.audited)
	for _, list := range [][]telling{s.lacking, s.drains, s.passes} {
		text += " ["
		for _, told := range list {
			text += " " + told.what + " " + shown(told.object)
		}

		text += " ]"
	}

	if s.job != nil {
		text += fmt.Sprintf("; a worker has %s, stale: %t, for %s of %v", shown(s.job.Object), s.job.Stale,
			s.wants, s.reached)
	}

	if out := s.decided; out != nil {
		text += fmt.Sprintf(", and reports: %d %s %t %t", out.Next, out.Cause, out.Stale, out.Brief)

		if out.Object != nil {
			text += " " + shown(*out.Object)
		}
	}

	if e, ok := s.table.entries[s.is.ID]; ok {
		text += fmt.Sprintf("; the table has %s, %s, %s, stale: %t, seen: %s, news: %d, holds %q, late: %t, failures: %d",
			shown(e.object), e.phase, e.cause, e.stale, e.seen, e.news, e.holds, e.late, e.failures)
		text += fmt.Sprintf(", its move counts: %t", e.planned.isSet())
	}

	return text
}

func shown(o feed.Object) string {
	return fmt.Sprintf("v%s@%q,%t", o.ResourceVersion, o.Shard, o.Draining)
}
