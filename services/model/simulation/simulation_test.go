package simulation

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestOne(t *testing.T) {
	seed, _ := strconv.ParseUint(os.Getenv("SEED"), 10, 64)
	h := Draw(seed)
	h.Verbose = os.Getenv("VERBOSE") != ""
	begin := time.Now()
	r := Run(t, h)
	t.Log(time.Since(begin))
	t.Log(h.String())
	t.Log(strings.Join(r.Trace, "\n"))
	for k, n := range r.Requests {
		t.Log(k, n)
	}
	for _, v := range r.Violations {
		t.Log(v)
	}
	t.Log(r.Hash)
}

func TestDiff(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("N"))
	from, _ := strconv.Atoi(os.Getenv("SEED"))
	bad := 0
	begin := time.Now()
	kinds := map[string]int{}
	for seed := from; seed < from+n; seed++ {
		h := Draw(uint64(seed))
		a, b := Run(t, h), Run(t, h)
		if a.Hash != b.Hash {
			bad++
			for i := range a.Trace {
				if i >= len(b.Trace) || a.Trace[i] != b.Trace[i] {
					t.Logf("seed %d differs at line %d of %d:\n%s\n%s", seed, i, len(a.Trace), a.Trace[i], append(b.Trace, "end")[min(i, len(b.Trace))])
					break
				}
			}
		}
		seen := map[string]bool{}
		for _, v := range a.Violations {
			k, _, _ := strings.Cut(v, ":")
			if !seen[k] {
				kinds[k]++
				if kinds[k] < 4 {
					t.Logf("seed %d: %s", seed, v)
				}
			}
			seen[k] = true
		}
	}
	t.Logf("%d of %d differ; %s; %v", bad, n, time.Since(begin), kinds)
}
