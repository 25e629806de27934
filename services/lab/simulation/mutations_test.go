package simulation

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mutation is a fault that is put back into the source.
type mutation struct {
	// name describes what goes wrong.
	name  string
	edits []replacement
	// from is the first seed to try.
	from int
}

// replacement replaces a text that occurs exactly once in a file. The path of the file is relative to services/.
type replacement struct{ file, old, becomes string }

const (
	table    = "rebalancer/work/table.go"
	outcome  = "rebalancer/work/outcome.go"
	debt     = "rebalancer/work/debt.go"
	permits  = "rebalancer/work/permits.go"
	lanes    = "rebalancer/work/lanes.go"
	passes   = "rebalancer/engine/passes.go"
	state    = "rebalancer/engine/state.go"
	report   = "rebalancer/engine/report.go"
	sources  = "rebalancer/engine/sources.go"
	stream   = "rebalancer/feed/stream.go"
	moving   = "rebalancer/move/move.go"
	placing  = "rebalancer/move/placement.go"
	guard    = "internal/takeover/takeover.go"
	pauses   = "rebalancer/feed/stream.go"
	wiring   = "rebalancer/engine/engine.go"
	resolver = "internal/resources/resolver.go"
	snapshot = "internal/resources/snapshot.go"
	leasing  = "internal/lease/lease.go"
	judging  = "internal/lease/next.go"
	modelled = "lab/simulation/shard.go"
	plan     = "internal/plan/plan.go"
	sight    = "internal/lease/sight.go"
	gone     = "internal/resources/book.go"
	listing  = "rebalancer/feed/stream.go"
	seeks    = "rebalancer/engine/followers.go"
	kin      = "rebalancer/work/family.go"
	finds    = "rebalancer/work/followers.go"
	decides  = "internal/admission/decide.go"
	rule     = "internal/key/rule.go"
)

// mutations are former faults, with the seed to begin with. Eight more are too rare for histories, and other tests find
// them: an obligation is lost if it is woken while a worker has it (TestEveryHistory of package work), followers of
// followers do not count (TestGrandchildrenComeBeforeChildren of package engine), what follows an object goes by the key
// that the object had (TestChangeOfTheLabelMoves of package rebalancer), a pass that failed has seen all
// (TestPassesDoNotVerify of package engine), pauses between passes have no bound (TestPassesAreSpacedOut), an owner goes
// before unassigned objects were looked for (TestOwnersWaitUntilUnassignedObjectsAreSeen), a Lease that was deleted is
// taken for a death (TestDeletedLeaseOfHolderHoldsForTwiceItsDuration of package takeover), and a write that began before
// an owner waited proves what follows it (TestWritesProveWhatAWatchHasShown of package work).
var mutations = []mutation{
	{name: "a write that fails is forgotten", edits: []replacement{{outcome, "\t\te.fail(out)\n\t\tt.at(e, now.Add(e.pause(out.Brief)))\n\tcase Parked:", "\t\tt.end(now, e)\n\t\treturn nil\n\tcase Parked:"}}},
	{name: "a conflict is forgotten", edits: []replacement{{outcome, "\t\te.fail(out)\n\t\tt.at(e, now.Add(e.pause(out.Brief)))\n\tcase Parked:", "\t\tif out.Brief {\n\t\t\tt.end(now, e)\n\t\t\treturn nil\n\t\t}\n\t\te.fail(out)\n\t\tt.at(e, now.Add(e.pause(out.Brief)))\n\tcase Parked:"}}},
	{name: "a write that has failed is sent again as it was", edits: []replacement{{outcome, "\te.stale = out.Stale\n", "\te.stale = false\n"}}},
	{name: "an acknowledged drain leaves no debt, nor is there an audit", edits: []replacement{{passes, "auditEvery = time.Minute", "auditEvery = 1000 * time.Hour"}, {table, "\tt.debt.Unseen = t.debt.Unseen.Union(sets.New(id.GVR.GroupResource()))\n\te.lane.moved++\n", ""}}},
	{name: "a drain that nobody wants is not withdrawn", edits: []replacement{{plan, "\tcase o.Draining:\n\t\treturn Action{Verb: Withdraw}\n\t}\n\n\treturn Action{Verb: None}\n}\n\n// leave frees", "\t}\n\n\treturn Action{Verb: None}\n}\n\n// leave frees"}}},
	{name: "a source that cannot be read says nothing", edits: []replacement{{sources, "case err != nil && before != err.Error():", "case err != nil && before != err.Error() && e.Ring == \"\":"}}},
	{name: "silence is believed", edits: []replacement{{stream, "silence = 150 * time.Second", "silence = 150 * time.Hour"}}},
	{name: "discovery is not asked again", edits: []replacement{
		{resolver, "lookEvery = 15 * time.Second", "lookEvery = 15 * time.Hour"},
		{resolver, "missingEvery = 5 * time.Second", "missingEvery = 5 * time.Hour"},
		{resolver, "\tcase r.asked <- struct{}{}:\n\tdefault:", "\tdefault:"},
	}},
	{name: "404 reports that an object is gone", edits: []replacement{{gone, "!apierrors.HasStatusCause(err,", "(true || apierrors.HasStatusCause(err,"}, {gone, "ServerResponse)", "ServerResponse))"}}},
	{name: "a forced move may take a second", edits: []replacement{{moving, "w.until.Sub(m.Clock.Now())", "time.Second"}}},
	{name: "a drain that hangs holds a permit of all", edits: []replacement{{permits, "inTime < most && t.per", "inTime < most && !all && t.per"}, {permits, "\tinTime, late := 0, 0\n", "\tinTime, late, all := 0, 0, false\n\n\tfor _, l := range t.lanes.all {\n\t\tfor _, h := range l.held {\n\t\t\tall = all || h.late > 0\n\t\t}\n\t}\n"}}},
	{name: "a late drain stops its shard", edits: []replacement{{permits, "inTime < most && t.per", "inTime < most && late == 0 && t.per"}}},
	{name: "a hanging resource keeps all workers", edits: []replacement{{lanes, "if l.hanging.IsZero() && l.took < slowAfter {", "if true {"}, {lanes, "\te.hung = true\n\tt.lanes.hung++\n", ""}}},
	{name: "a change of shards begins all lists anew", edits: []replacement{{sources, "\t\ts.target, s.lasting = t, s.wanted(t)\n", "\t\ts.target, s.lasting = t, s.wanted(t)\n\tfor id, f := range s.all {\n\t\ts.drop(id, f)\n\t}\n"}}},
	{name: "what cannot move is tried all the time", edits: []replacement{{outcome, "\tcase Parked:\n\t\te.cause = out.Cause\n\t\te.succeed()\n", "\tcase Parked:\n\t\te.cause = out.Cause\n\t\te.succeed()\n\t\tout.RetryAfter = 50e6\n"}}},
	{name: "a child of what is not covered belongs", edits: []replacement{{placing, "a.Belongs = a.Belongs && a.Owner.Belongs", "_ = a.Owner.Belongs"}}},
	{name: "there is no audit", edits: []replacement{{passes, "auditEvery = time.Minute", "auditEvery = 1000 * time.Hour"}}},
	{name: "only what a change concerns is gone over", edits: []replacement{{passes, "\tcase !l.verified && still:\n", "\tcase !l.verified && still && l.verified:\n"}, {passes, "if still && !l.began.IsZero() && l.moved == l.moves(e.table) && !l.owed &&\n\t\t!l.began.Before(e.since.Add(e.Limits.Settle)) {", "if still && !l.owed {"}, {passes, "auditEvery = time.Minute", "auditEvery = 1000 * time.Hour"}}},
	{name: "converged without a look at all", edits: []replacement{{passes, "if still && !l.began.IsZero() && l.moved == l.moves(e.table) && !l.owed &&\n\t\t!l.began.Before(e.since.Add(e.Limits.Settle)) {", "if !l.verified {"}}},
	{name: "a resource is verified while one of its objects moves", edits: []replacement{{report, "if !l.verified || !l.still(e) {", "if !l.verified {"}}},
	{name: "the status keeps a resource's fingerprint in redirect", edits: []replacement{{report, "r.Converged, r.Settled = false, nil", "r.Converged = false"}}},
	{name: "a deleted Lease does not count beside another of its name", from: 10_000, edits: []replacement{{guard, "namespace == nowhere && len(leases) > 0", "len(leases) > 0"}}},
	{name: "a Lease that nobody saw is taken as one that nobody renewed", edits: []replacement{{sight, "gaps = [...]time.Duration{3 * time.Second, 5 * time.Second, 10 * time.Second}", "gaps = [...]time.Duration{3 * time.Hour, 5 * time.Hour, 10 * time.Hour}"}}},
	{name: "what was seen earlier replaces what was seen later", edits: []replacement{{table, "\tcase feed.Older(o.ResourceVersion, e.seen), o.Res", "\tcase o.Res"}}},
	{name: "objects are taken without a look at the Lease", edits: []replacement{{guard, "Holder: rec.Holder, Duration", "Duration"}}},
	{name: "a waiting child is not woken", edits: []replacement{
		{table, "\tt.wake(OwnerOf(e.object.ID))\n", ""}, {table, "\tif changed && (before.Shard != o.Shard || before.Draining) {\n\t\tt.wake(OwnerOf(o.ID))\n\t}\n", ""},
	}},
	{name: "permits are not handed on", edits: []replacement{{table, "\tt.unplan(e)\n\tt.grantNext(now)\n", "\tt.unplan(e)\n"}}},
	{name: "history that is gone is waited for", edits: []replacement{{stream, "\tif history(err) {\n\t\treturn nil, errRelist\n\t}\n", ""}, {stream, "\t\tif history(err) {\n\t\t\treturn version, errRelist\n\t\t}\n", ""}}},
	{name: "a list ends with its first page", edits: []replacement{{listing, "\t\tif list.Continue == \"\" {\n", "\t\tif true {\n"}}},
	{name: "what changes its namespace's labels is not looked for", edits: []replacement{{placing, "t.Revision != o.Revision ||", ""}}},
	{name: "a typo is taken for what cannot be found out", edits: []replacement{{snapshot, "\t\treturn &NotServedError{GroupResource: gr, Suggestion: s.suggest(gr)}", "\t\tif meant := s.suggest(gr); meant != \"\" {\n\t\t\treturn fmt.Errorf(\"did you mean %s?\", meant)\n\t\t}\n\n\t\treturn &NotServedError{GroupResource: gr}"}}},
	{name: "pauses between attempts at an object have no bound", edits: []replacement{{outcome, "longestPause = 30 * time.Second", "longestPause = 1000 * time.Second"}}},
	{name: "pauses between attempts at a source have no bound", edits: []replacement{{pauses, "200*time.Millisecond, 30*time.Second", "200*time.Millisecond, 1000*time.Second"}}},
	{name: "a Lease is taken once more than can be counted", edits: []replacement{{leasing, "transitions = -1", "transitions = math.MaxInt32"}}},
	{name: "a Lease in deletion is left alone", edits: []replacement{{judging, "\tage = max(age, 0)\n", "\tage = max(age, 0)\n\tif s.Deleting {\n\t\treturn Decision{State: Ready, CheckAfter: time.Minute}\n\t}\n"}}},
	{name: "one Lease of a day has all others waited for two", edits: []replacement{{guard, "longestWait = 5 * time.Minute", "longestWait = 500 * time.Hour"}}},
	{name: "what waits counts against a bound", edits: []replacement{{wiring, "maxActive = 20_000", "maxActive = 2"}, {table, "t.phases[Delayed] - t.failing()\n", "t.phases[Delayed] + t.phases[Parked]\n"}}},
	{name: "what finds no room is forgotten", edits: []replacement{{wiring, "maxParked = 20_000", "maxParked = 1"}, {debt, "\tt.missing = true\n", "\n"}}},
	{name: "an owner goes before what follows it", edits: []replacement{{kin, "All: t.gathered(f), To", "All: true, To"}}},
	{name: "an owner does not wait until what follows it was looked for", edits: []replacement{{kin, "f != nil && f.state == found && len", "f != nil && len"}}},
	{name: "an owner whose followers nothing proves is not looked for again", edits: []replacement{{finds, "\t\t\tagain = append(again, at)\n", ""}, {finds, "at, w := t.followers.over(r, f", "_, w := t.followers.over(r, f"}}},
	{name: "an owner goes right after what follows it to a shard that asks nothing", edits: []replacement{{moving, "behindPlain = 250 * time.Millisecond", "behindPlain = 0"}}},
	{name: "an owner that waits for what follows it goes right after the last", edits: []replacement{{table, "\t\t\tf.moved = now\n", ""}}},
	{name: "an old sight of an owner forgets what follows it", edits: []replacement{{table, "\tt.reached(o)\n\n\te, known := t.entries[o.ID]\n", "\tt.reached(o)\n\n\te, known := t.entries[o.ID]\n\tif known && e.family != nil && e.object.Shard == \"\" {\n\t\tt.disband(e.family)\n\t}\n"}}},
	{name: "an owner that is served in another version is somebody else", edits: []replacement{{state, "return ok && r.GVR == id.GVR && r.N", "return ok && r.N"}}},
	{name: "a shard works by what it saw before it lost its Lease", edits: []replacement{{modelled, "\tp.cache = nil\n\tp.settle()\n", "\tstale := p.cache\n\tp.cache = nil\n\tp.settle()\n\n\tif len(stale) > 0 {\n\t\tp.cache = stale\n\t}\n"}, {modelled, "\tp.cache = map[apiserver.ID]*metav1.PartialObjectMetadata{}\n\tp.given = map[apiserver.ID]int64{}\n\tp.acknowledging = map[apiserver.ID]bool{}\n", "\tif p.cache == nil {\n\t\tp.cache = map[apiserver.ID]*metav1.PartialObjectMetadata{}\n\t}\n\n\tp.given = map[apiserver.ID]int64{}\n\tp.acknowledging = map[apiserver.ID]bool{}\n\tp.settle()\n"}}},
	{name: "a shard that stops and has stopped is taken for one that stops", edits: []replacement{{placing, " &&\n\t\tslices.Equal(t.View.WorkingShards(), o.View.WorkingShards())\n", "\n"}}, from: 500},
	{name: "admission does not see that the key of an object changes", edits: []replacement{{decides, "answer.Drain = next", "_ = next"}}},
	{name: "a change of the keys of a ring is no change", edits: []replacement{{"internal/resources/resources.go", "return slices.Equal(s.main, o.main) &&", "return slices.EqualFunc(s.main, o.main, func(a, b Resource) bool { return a.GVR == b.GVR && a.Kind == b.Kind && a.Namespaced == b.Namespaced && a.Controls == b.Controls }) &&"}}},
	{name: "what follows an object that comes into the selection of a ring is not looked for", edits: []replacement{{seeks, "if s.target.Set.Selector() != \"\" {", "if s.e.Target().Set.Selector() == \"none\" {"}}, from: 250},
	{name: "objects that leave the selection of a ring are not watched", edits: []replacement{{sources, "range r.Unselecting() {\n", "range r.Unselecting()[:0] {\n"}}, from: 340},
	{name: "objects of one namespace have keys of their own", edits: []replacement{{rule, "\t\treturn OfNamespace(byName.Namespace), true\n", "\t\treturn byName, true\n"}}},
	{name: "an owner waits for a main object that it controls", edits: []replacement{{table, "t.lineage(o)", "o.Lineage()"}, {finds, "t.lineage(e.object)", "e.object.Lineage()"}}, from: 7560},
	{name: "a shard works before its hold-off is over", edits: []replacement{{modelled, "\t\t\tpause(term, p.w.clock, holdOff, nil)\n", ""}}},
}

// apply writes the files of a mutation into a directory, and returns the overlay that go build needs to use them.
func (m mutation) apply(t *testing.T, dir string) (overlay string) {
	t.Helper()

	services, err := filepath.Abs("../..")
	require.NoError(t, err)

	changed := map[string]string{}

	for _, e := range m.edits {
		path := filepath.Join(services, e.file)
		if _, ok := changed[path]; !ok {
			text, err := os.ReadFile(path)
			require.NoError(t, err)

			changed[path] = string(text)
		}

		require.Equal(t, 1, strings.Count(changed[path], e.old), "%s: the text to replace is not there once in %s:\n%s", m.name, e.file, e.old)
		changed[path] = strings.Replace(changed[path], e.old, e.becomes, 1)
	}

	replace := map[string]string{}

	for path, text := range changed {
		mutated := filepath.Join(dir, strings.ReplaceAll(strings.TrimPrefix(path, services), string(filepath.Separator), "_"))
		require.NoError(t, os.WriteFile(mutated, []byte(text), 0o600))
		replace[path] = mutated
	}

	text, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)

	overlay = filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(overlay, text, 0o600))

	return overlay
}

// Each mutation still applies: the text that it replaces exists.
func TestMutationsApply(t *testing.T) {
	for _, m := range mutations {
		m.apply(t, t.TempDir())
	}
}

var failure = regexp.MustCompile(`failed: seed (\d+): (.*)`)

// found is a failing seed, and its failure.
type found struct {
	seed int
	what string
}

// run builds the simulation with the edits, runs seeds, and returns those that fail, in order.
func (m mutation) run(t *testing.T, env ...string) (all []found, out []byte) {
	t.Helper()

	dir := t.TempDir()
	binary := filepath.Join(dir, "mutated.test")

	out, err := exec.Command("go", "test", "-c", "-overlay", m.apply(t, dir), "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)

	cmd := exec.Command(binary, "-test.run", "^TestSeeds$", "-test.v", "-test.timeout", "20m")

	cmd.Env = append(os.Environ(), env...)
	out, _ = cmd.CombinedOutput() // it should fail

	for _, match := range failure.FindAllSubmatch(out, -1) {
		all = append(all, found{atoi(t, string(match[1])), string(match[2])})
	}

	return all, out
}

// first returns the first seed that finds the mutation; ok is false if none does.
func (m mutation) first(t *testing.T, seeds string) (first found, ok bool, out []byte) {
	t.Helper()

	all, out := m.run(t, "ONLY=first", "SEED=", "FROM="+strconv.Itoa(m.from), "SEEDS="+seeds)
	if len(all) == 0 {
		return found{}, false, out
	}

	return all[0], true, out
}

// TestMutations builds the simulation with each mutation, runs the seeds, and prints how many seeds it takes to find the
// mutation. It runs only the mutations whose name matches the regular expression MUTATIONS, if that is set.
func TestMutations(t *testing.T) {
	if os.Getenv("MUTATIONS") == "" {
		t.Skip("it takes a while: make test-simulation MUTATIONS=.")
	}

	wanted := regexp.MustCompile(os.Getenv("MUTATIONS"))
	rows := []string{fmt.Sprintf("%-62s %6s  %s", "mutation", "seeds", "what breaks first")}

	for _, m := range mutations {
		if !wanted.MatchString(m.name) {
			continue
		}

		t.Run(m.name, func(t *testing.T) {
			first, ok, out := m.first(t, strconv.Itoa(number(t, "SEEDS", 2000)))
			row := fmt.Sprintf("%-62s %6s  %s", m.name, "-", "not found")

			if ok {
				row = fmt.Sprintf("%-62s %6d  %.140s", m.name, first.seed+1-m.from, first.what)
			}

			fmt.Fprintln(os.Stderr, row)

			rows = append(rows, row)
			require.True(t, ok, "no seed finds the mutation:\n%s", tail(out))
		})
	}

	t.Log("\n" + strings.Join(rows, "\n"))
}

func tail(out []byte) string { return string(out[max(0, len(out)-2000):]) }
