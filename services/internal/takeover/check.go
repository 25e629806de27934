package takeover

import (
	"github.com/clusterring/clusterring/services/internal/invariants"
)

// check panics if what the guard remembers contradicts its invariants. The caller holds mu.
func (g *Guard) check() {
	if !g.pace.Due(len(g.shards)) {
		return
	}

	for name, s := range g.shards {
		s.check(name)
	}
}

func (s *shard) check(name string) {
	v := s.verdict

	switch {
	case s.allowedTill.After(s.read.began.Add(s.read.trusted())):
		invariants.Violated("1: the answer for shard %s is trusted for %s", name, s.allowedTill.Sub(s.read.began))
	case s.allowedTill.After(v.Until), !v.Allowed && !s.allowedTill.IsZero():
		invariants.Violated("4: objects of shard %s may be taken until %s, and it may work from %s on", name, s.allowedTill, v.Until)
	case !s.read.began.IsZero() && !v.Allowed && v.RetryAfter <= 0:
		invariants.Violated("5: nobody asks again about shard %s", name)
	}

	for namespace, h := range s.holders {
		if h.vanished.IsZero() && !s.held {
			invariants.Violated("2: the Lease of shard %s in %q is held, and the shard holds none", name, namespace)
		}
	}

	if s.held && len(s.holders) == 0 {
		invariants.Violated("2: shard %s holds a Lease of which nothing is known", name)
	}
}
