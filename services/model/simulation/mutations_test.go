package simulation

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mutation puts a fault back into the source.
type mutation struct {
	// name says what goes wrong.
	name  string
	edits []replacement
}

// replacement replaces a text that occurs once in a file, whose path begins at services/.
type replacement struct{ file, old, becomes string }

const (
	table    = "rebalancer/obligation/table.go"
	outcome  = "rebalancer/obligation/outcome.go"
	cause    = "rebalancer/obligation/cause.go"
	slots    = "rebalancer/obligation/slots.go"
	passes   = "rebalancer/engine/passes.go"
	state    = "rebalancer/engine/state.go"
	report   = "rebalancer/engine/report.go"
	sources  = "rebalancer/engine/sources.go"
	lost     = "rebalancer/engine/lost.go"
	stream   = "rebalancer/source/stream.go"
	move     = "rebalancer/move/move.go"
	turns    = "rebalancer/move/turns.go"
	placing  = "rebalancer/placement/placement.go"
	guard    = "rebalancer/takeover/takeover.go"
	resolver = "internal/resources/resolver.go"
	plan     = "internal/plan/plan.go"
	sight    = "internal/lease/sight.go"
	client   = "rebalancer/objects/objects.go"
	listing  = "rebalancer/objects/stream.go"
)

var mutations = []mutation{
	{"a write that fails is forgotten", []replacement{{outcome, "\tcase Failed:\n\t\te.failures++\n\t\tt.after(now, e, e.pause(out.Brief))\n\tcase Blocked:", "\tcase Failed:\n\t\tt.end(now, e)\n\t\treturn Late{}, false\n\tcase Blocked:"}}},
	{"a conflict is forgotten", []replacement{{outcome, "\tcase Failed:\n\t\te.failures++\n\t\tt.after(now, e, e.pause(out.Brief))\n\tcase Blocked:", "\tcase Failed:\n\t\tif out.Brief {\n\t\t\tt.end(now, e)\n\t\t\treturn Late{}, false\n\t\t}\n\t\te.failures++\n\t\tt.after(now, e, e.pause(out.Brief))\n\tcase Blocked:"}}},
	{"a write whose answer is lost is not looked up", []replacement{{move, "\t\tout.Stale = true // it may have been carried out all the same\n", ""}}},
	{"an acknowledged drain leaves no debt, nor is there an audit", []replacement{{passes, "auditEvery = time.Minute", "auditEvery = 1000 * time.Hour"}, {table, "\tt.debt.Unseen = true\n\tt.moved++\n\tt.end(now, e)", "\tt.end(now, e)"}}},
	{"a drain that nobody wants is not withdrawn", []replacement{{plan, "\tcase o.Draining:\n\t\treturn Action{Verb: Withdraw}\n\t}\n\n\treturn Action{Verb: None}\n}\n\n// leave frees", "\t}\n\n\treturn Action{Verb: None}\n}\n\n// leave frees"}}},
	{"a source that cannot be read says nothing", []replacement{{state, "\t\tif err != nil {\n\t\t\ts.failures[source] = err.Error()", "\t\tif false {\n\t\t\ts.failures[source] = err.Error()"}}},
	{"silence is believed", []replacement{{stream, "silence = 150 * time.Second", "silence = 150 * time.Hour"}}},
	{"discovery is not asked again", []replacement{
		{resolver, "lookEvery = 15 * time.Second", "lookEvery = 15 * time.Hour"},
		{resolver, "missingEvery = 5 * time.Second", "missingEvery = 5 * time.Hour"},
		{resolver, "\tcase r.asked <- struct{}{}:\n\tdefault:", "\tdefault:"},
	}},
	{"404 says that an object is gone", []replacement{{client, "return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)", "return apierrors.IsNotFound(err)"}}},
	{"a forced move may take a second", []replacement{{move, "verdict.Until.Sub(m.Clock.Now())", "time.Second"}}},
	{"a drain that hangs holds a slot of all", []replacement{{slots, "t.slots.own[shard] < t.limits.PerShard && t.slots.inTime", "len(t.slots.late) == 0 && t.slots.inTime"}}},
	{"a change of shards begins all lists anew", []replacement{{sources, "\twanted := sets.New[string]()\n", "\twanted := sets.New[string]()\n\tfor name, f := range s.all {\n\t\ts.drop(name, f)\n\t}\n"}}},
	{"what lost shards had is listed once", []replacement{{lost, "\tl.pending = l.pending.Union(shards)\n", ""}}},
	{"what cannot move is tried all the time", []replacement{{outcome, "\tcase Blocked:\n\t\te.cause = out.Cause\n\t\te.failures = 0\n", "\tcase Blocked:\n\t\te.cause = out.Cause\n\t\te.failures = 0\n\t\tout.RetryAfter = 50e6\n"}}},
	{"a child of what is not covered belongs", []replacement{{placing, "a.Belongs = a.Belongs && a.OwnerBelongs", "_ = a.OwnerBelongs"}}},
	{"there is no audit", []replacement{{passes, "auditEvery = time.Minute", "auditEvery = 1000 * time.Hour"}}},
	{"only what a change concerns is gone over", []replacement{{passes, "shards, all = among(p.suspects)\n", "shards, all = among(p.suspects)\n\t\tall = false\n"}, {passes, "\tcase !p.verified && still:\n\t\tk, at = check", "\tcase !p.verified && still && p.verified:\n\t\tk, at = check"}, {passes, "if !p.verified && still && !p.began.IsZero() && p.moved == t.Moved() && !p.suspects.any() && !p.began.Before(p.since.Add(p.settle)) {", "if !p.verified && still && !p.suspects.any() {"}, {passes, "auditEvery = time.Minute", "auditEvery = 1000 * time.Hour"}}},
	{"converged without a look at all", []replacement{{passes, "if !p.verified && still && !p.began.IsZero() && p.moved == t.Moved() && !p.suspects.any() && !p.began.Before(p.since.Add(p.settle)) {", "if !p.verified {"}}},
	{"a pass that failed has seen all", []replacement{{passes, "e.finish(k, p, owed, errors.Join(errs...))", "e.finish(k, p, owed, nil)"}}},
	{"a Lease that nobody saw is taken as one that nobody renewed", []replacement{{sight, "gaps = [...]time.Duration{3 * time.Second, 5 * time.Second, 10 * time.Second}", "gaps = [...]time.Duration{3 * time.Hour, 5 * time.Hour, 10 * time.Hour}"}}},
	{"what was seen earlier replaces what was seen later", []replacement{{table, "\tcase objects.Older(o.ResourceVersion, e.seen), o.Res", "\tcase o.Res"}}},
	{"objects are taken without a look at the Lease", []replacement{{guard, "\t\tif rec := lease.RecordOf(&leases[i]); rec.Holder == name {", "\t\tif rec := lease.RecordOf(&leases[i]); rec.Holder == name && false {"}}},
	{"a Lease that was deleted is taken for a death", []replacement{{guard, "if wait := s.absent(at.began); wait > 0 {", "if wait := s.absent(at.began); wait > time.Hour {"}}},
	{"a waiting child is not woken", []replacement{
		{table, "\tt.Wake(OwnerOf(e.object.ID))\n", ""}, {table, "\tif changed {\n\t\tt.Wake(OwnerOf(o.ID))\n\t}\n", ""},
	}},
	{"slots are not handed on", []replacement{{table, "\tt.hold(now, e, \"\")\n\tt.wakeSlots(now)\n", "\tt.hold(now, e, \"\")\n"}}},
	{"history that is gone is waited for", []replacement{{stream, "\tif history(err) {\n\t\treturn nil, errRelist\n\t}\n", ""}, {stream, "\t\tif history(err) {\n\t\t\treturn version, errRelist\n\t\t}\n", ""}}},
	{"a list ends with its first page", []replacement{{client, "\t\tif list.Continue == \"\" {\n", "\t\tif true {\n"}}},
	{"what changes its namespace's labels is not looked for", []replacement{{placing, "t.Revision != o.Revision ||", ""}}},
	{"what is woken while a worker has it is lost", []replacement{{table, "\t\t\te.left = !keep(id)\n\t\t\te.anew()\n", "\t\t\te.left = !keep(id)\n"}}},
}

// apply writes the files of a mutation into a directory, and returns what go build needs to use them.
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

// Each mutation is still one: what it replaces is there.
func TestMutationsApply(t *testing.T) {
	for _, m := range mutations {
		m.apply(t, t.TempDir())
	}
}

var firstFailure = regexp.MustCompile(`first: seed (\d+): (.*)`)

// TestMutations builds the simulation with each mutation and lets the seeds find it; it prints how many that takes. It runs if MUTATIONS
// is a regular expression that some names match.
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
			dir := t.TempDir()
			binary := filepath.Join(dir, "mutated.test")

			out, err := exec.Command("go", "test", "-c", "-overlay", m.apply(t, dir), "-o", binary, ".").CombinedOutput()
			require.NoError(t, err, "%s", out)

			cmd := exec.Command(binary, "-test.run", "^TestSeeds$", "-test.v", "-test.timeout", "10m")
			cmd.Env = append(os.Environ(), "FIRST=1", "SEED=", "SEEDS="+fmt.Sprint(number(t, "SEEDS", 2000)))
			out, _ = cmd.CombinedOutput() // it fails if all is well

			found := firstFailure.FindSubmatch(out)
			row := fmt.Sprintf("%-62s %6s  %s", m.name, "-", "nobody notices")

			if found != nil {
				row = fmt.Sprintf("%-62s %6d  %.140s", m.name, atoi(t, string(found[1]))+1, found[2])
			}

			fmt.Fprintln(os.Stderr, row)

			rows = append(rows, row)
			require.NotNil(t, found, "no seed notices the mutation:\n%s", tail(out))
		})
	}

	t.Log("\n" + strings.Join(rows, "\n"))
}

func tail(out []byte) string { return string(out[max(0, len(out)-2000):]) }
