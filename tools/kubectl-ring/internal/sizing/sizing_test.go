package sizing

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

var update = flag.Bool("update", false, "rewrite the table in docs/sizing.md")

func page(t *testing.T, name string) (path, content string) {
	t.Helper()

	path = filepath.Join(localplane.Root(), "docs", name)
	read, err := os.ReadFile(path)
	require.NoError(t, err)

	return path, string(read)
}

// joinMoves is by how much more objects move than a shard that joins gets.
const joinMoves = 1.07

// TestFiguresAreMeasured compares the constants with docs/performance.md, so that they cannot fall behind.
func TestFiguresAreMeasured(t *testing.T) {
	const number = `([0-9,]*[0-9](?:\.[0-9]+)?)`

	_, performance := page(t, "performance.md")
	_, operations := page(t, "operations.md")
	found := func(content, row string) float64 {
		t.Helper()

		match := regexp.MustCompile(`(?m)` + strings.ReplaceAll(row, "#", number)).FindStringSubmatch(content)
		require.NotNil(t, match, "no %s", row)
		value, err := strconv.ParseFloat(strings.ReplaceAll(match[1], ",", ""), 64)
		require.NoError(t, err)

		return value
	}

	for _, figure := range []struct {
		is  float64
		row string
	}{
		{restCPU, `services use at rest\? \| # ms of CPU per second`},
		{restCPU, `^\| the services at rest with .* objects, .* shards: CPU .*×.* # ms/s \|`},
		{restMemory, `services use at rest\? \| .* # MiB of memory`},
		{restMemory, `^\| the services at rest with .* objects, .* shards: memory .*×.* # MiB \|`},
		{restRequests, `services use at rest\? \| .* # requests per second`},
		{createCPU * 1000, `^\| assigner CPU per admission, 50 shards .*×.* # µs \|`},
		{createCPU, `What does a new object cost\? \| # ms of the assigner's CPU`},
		{updateCPU, `What do updates cost\? \| # ms of the API server's CPU`},
		{deathRate, `^\| objects moved per second after a shard's death, 10000 objects, 3 shards .*×.* # objects/s \|`},
		{joinRate, `^\| join: objects drained and released .*, 10000 objects, 3 shards .*×.* # objects/s \|`},
		{joinMoves, `^\| moved when a shard joins 50 others / what it gets .*1\.00× .* #× [|(]`},
		{moveCPU, `^\| API server CPU per moved object .*×.* # ms [|(]`},
		{rebalancerCPU, `^\| rebalancer CPU per moved object .*≤ .* ms \| # ms [|(]`},
		{bound, `No shard has more than # times the mean`},
		{auditCPU * 1000, `it plans for # µs per object`},
		{auditBudget / 10, `per object, and for #% of a core`},
	} {
		require.InEpsilon(t, found(performance, figure.row), figure.is, 0.35, figure.row)
	}

	peak := found(performance, `^\| rebalancer memory at its peak.*≤ .* MiB \| # MiB \|`)
	without := found(performance, `With 0: .*rebalancer [^;]* # MiB, [^;]*; ringquery`)
	require.InEpsilon(t, moveMemory, peak-without, 0.35)
	require.InDelta(t, renewals, found(operations, `with 3, 50, 500 shards \| 1.5, #, 250`)/50, 0.01)

	every := figures(Load{Objects: 1_000_000, Workers: 1})["auditSeconds"].Value / 60
	require.Contains(t, performance, fmt.Sprintf("with 1,000,000 objects every %.0f minutes", every))
}

// figures returns those of as many shards as a load needs, when one more joins.
func figures(l Load) map[string]Figure {
	n, all := l.Needed(), map[string]Figure{}
	for _, f := range l.Figures(n, Fullest(l.Objects, n), joinMoves*float64(l.Objects)/float64(n+1)) {
		all[f.Name] = f
	}

	return all
}

// TestMostBusy compares with the simulation of tools/load/internal/capacity: workers that need the same time for each
// change, 10,000 changes at random times, of which 99 % begin within a second.
func TestMostBusy(t *testing.T) {
	for _, simulated := range []struct {
		workers int
		work    time.Duration
		busy    float64
	}{
		{1, 100 * time.Millisecond, 0.80}, {2, 300 * time.Millisecond, 0.71}, {4, 300 * time.Millisecond, 0.86},
		{1, 300 * time.Millisecond, 0.50}, {2, time.Second, 0.37}, {4, time.Second, 0.61}, {8, time.Second, 0.77},
		{12, time.Second, 0.83}, {24, time.Second, 0.92}, {12, 3 * time.Second, 0.64}, {50, 3 * time.Second, 0.89},
	} {
		busy := Load{Workers: simulated.workers, Work: simulated.work}.MostBusy()
		require.LessOrEqual(t, busy, simulated.busy, "%+v", simulated)
		require.GreaterOrEqual(t, busy, min(0.8, simulated.busy)-0.3, "%+v", simulated)
	}

	require.InDelta(t, 0.8, Load{Workers: 12, Work: time.Second}.MostBusy(), 0.001)
}

// TestFullest compares with the table of services/internal/hashring: the mean of 10 sets of names.
func TestFullest(t *testing.T) {
	for _, measured := range []struct {
		shards  int
		objects int64
		ratio   float64
	}{
		{1, 100, 1}, {2, 1_000, 1.022}, {3, 10_000, 1.018}, {5, 9_000, 1.037}, {10, 9_000, 1.070}, {20, 100_000, 1.062},
		{50, 10_000, 1.190}, {50, 100_000, 1.094}, {50, 1_000_000, 1.062}, {100, 1_000_000, 1.072}, {300, 1_000_000, 1.111},
	} {
		require.InDelta(t, measured.ratio, Fullest(measured.objects, measured.shards)*float64(measured.shards), 0.015,
			"%+v", measured)
	}
}

func TestNeeded(t *testing.T) {
	l := Load{Objects: 10_000, ChangesPerSecond: 40, Workers: 12, Work: time.Second}
	require.Equal(t, 5, l.Needed())
	require.Greater(t, 40*Fullest(10_000, 4)/12, l.MostBusy(), "one less is not enough")
	require.Equal(t, 1, Load{Workers: 1}.Needed(), "there is no load")

	l.ChangesPerSecond = 1e6
	require.Equal(t, MostShards+1, l.Needed(), "a ring cannot carry it")
}

// TestPage compares the table in docs/sizing.md with the formulas.
func TestPage(t *testing.T) {
	const begin, end = "<!-- sizing -->\n", "<!-- end of sizing -->"

	table := "| objects | changes per second, each of which takes a worker | workers of a shard | shards | objects of the " +
		"fullest | CPU of services and API server | requests | objects of a shard move, once its death is known | a shard joins | audit | settings |\n" +
		strings.Repeat("|---", 11) + "|\n"

	for _, l := range []Load{
		{1_000, 5, 4, time.Second},
		{10_000, 40, 12, time.Second},
		{10_000, 1_000, 10, 20 * time.Millisecond},
		{100_000, 100, 12, time.Second},
		{100_000, 1_000, 10, 100 * time.Millisecond},
		{1_000_000, 500, 12, time.Second},
		{1_000_000, 2_000, 24, 100 * time.Millisecond},
		{3_000_000, 10_000, 50, 100 * time.Millisecond},
	} {
		f := figures(l)
		settings := []string{}

		for _, s := range []struct {
			name, title string
			fallback    float64
		}{
			{"auditBudget", "`--audit-budget`", 0.01}, {"concurrentWrites", "`--concurrent-writes`", 16},
			{"assignerReplicas", "replicas of assigner:", 2},
		} {
			if f[s.name].Value != s.fallback {
				settings = append(settings, s.title+" "+f[s.name].String())
			}
		}

		table += fmt.Sprintf("| %s | %s × %s | %d | **%s** | %s | %s, %s | %s | %s | %s, %s of CPU | every %s | %s |\n",
			commas(float64(l.Objects)), commas(l.ChangesPerSecond), l.Work, l.Workers, f["shards"],
			commas(f["fullestObjects"].Value), f["servicesCPUMillicores"], f["apiServerCPUMillicores"], f["requestsPerSecond"],
			f["deathSeconds"], f["moveSeconds"], f["moveCPUSeconds"], f["auditSeconds"],
			cmp.Or(strings.Join(settings, ", "), "defaults"))
	}

	path, content := page(t, "sizing.md")
	before, rest, ok := strings.Cut(content, begin)
	require.True(t, ok, "there is no mark for the table")
	_, after, ok := strings.Cut(rest, end)
	require.True(t, ok, "there is no mark for the end of the table")

	want := before + begin + table + end + after
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644)) //nolint:gosec // a page of documentation
	} else {
		require.Equal(t, want, content, "go test -update rewrites %s", path)
	}
}

// commas formats a number for people.
func commas(n float64) string {
	text := fmt.Sprintf("%.0f", n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}

	return text
}
