package shard

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// The metrics of shards are registered with controller-runtime's registry, so that a manager serves them.
var (
	waitingObjects = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "clusterring_shard_waiting_objects",
		Help: "Objects that the shard does not work on yet, because its cache does not show all that follows them.",
	}, []string{"ring"})
	waitedSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "clusterring_shard_wait_seconds",
		Help: "How long objects waited until the cache showed all that follows them. Those that did not are not counted.",
		// From a watch that is slightly late to a watch that has to start again.
		Buckets: prometheus.ExponentialBuckets(0.01, 4, 8), // 10 ms to 160 s
	}, []string{"ring"})
	running = &exporter{}
)

func init() { metrics.Registry.MustRegister(waitingObjects, waitedSeconds, running) }

// exporter exports the state of all shards that run in this process, as it is when metrics are read. It is registered
// once: collectors for one shard each would collide in the registry, because a shard gets its name with a slot.
type exporter struct {
	mu     sync.Mutex
	shards []*Shard
}

// add exports the shard until the returned function is called.
func (e *exporter) add(s *Shard) (remove func()) {
	e.mu.Lock()
	defer e.mu.Unlock()

	e.shards = append(e.shards, s)

	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()

		e.shards = slices.DeleteFunc(e.shards, func(other *Shard) bool { return other == s })
	}
}

// emit exports a value with the labels of a metric that follow ring and shard.
type emit func(value float64, labels ...string)

type exported struct {
	*prometheus.Desc

	is   prometheus.ValueType
	read func(*Shard, emit)
}

func exports(name, help string, read func(*Shard, emit), labels ...string) exported {
	is := prometheus.GaugeValue
	if strings.HasSuffix(name, "_total") {
		is = prometheus.CounterValue
	}

	return exported{prometheus.NewDesc("clusterring_shard_"+name, help, append([]string{"ring", "shard"}, labels...),
		nil), is, read}
}

// ofShards are the metrics of each shard, except those of objects that wait.
var ofShards = []exported{
	exports("info", "1, with the slot and the Pod of the shard.", func(s *Shard, to emit) {
		slot := ""
		if s.options.Slots.any() {
			slot = s.Name()
		}
		to(1, slot, cmp.Or(s.options.Pod, s.Name()))
	}, "slot", "pod"),
	exports("standby", "1 if the process waits for a slot.", func(s *Shard, to emit) { to(number(s.Name() == "")) }),
	exports("lease_held", "1 if the process holds the Lease of the shard.", func(s *Shard, to emit) {
		held, _, _ := s.term.lease()
		to(number(held))
	}),
	exports("lease_renewal_age_seconds", "Time since the last successful renewal of the Lease was sent.",
		func(s *Shard, to emit) {
			if _, age, known := s.term.lease(); known {
				to(age.Seconds())
			}
		}),
	exports("objects", "Objects of the shard in its cache.", func(s *Shard, to emit) {
		for kind, n := range s.stores.count() {
			to(float64(n), kind.String())
		}
	}, "kind"),
	exports("held_back_objects", "Objects that the shard does not reconcile, because that has ended a process twice.",
		func(s *Shard, to emit) {
			for kind, n := range s.heldBack() {
				to(float64(n), kind.String())
			}
		}, "kind"),
	exports("drains_seen_total", "Drains that the shard has seen.",
		func(s *Shard, to emit) { to(float64(s.guard.pending().seen)) }),
	exports("drains_released_total", "Objects that the shard has released.",
		func(s *Shard, to emit) { to(float64(s.released.Load())) }),
	exports("drains_waiting", "Objects that the shard has to release.",
		func(s *Shard, to emit) { to(float64(s.guard.pending().waiting)) }),
	exports("oldest_drain_seconds", "How long the oldest of these waits, and for which controller.",
		func(s *Shard, to emit) {
			if p := s.guard.pending(); p.waiting > 0 {
				to(s.guard.clock.Since(p.since).Seconds(), s.progress.inside(p.oldest))
			}
		}, "controller"),
	exports("stalled_seconds", "How long no worker of the controller has returned while one worked.",
		func(s *Shard, to emit) {
			for controller, since := range s.progress.stalled(s.term.clock.Now()) {
				to(since.Seconds(), controller)
			}
		}, "controller"),
	exports("refused_reconciles_total", "Reconciles that did not run.", func(s *Shard, to emit) {
		s.progress.each(s.progress.reconciles, to)
	}, "controller", "reason"),
	exports("refused_writes_total", "Writes that the client of the shard has refused.", func(s *Shard, to emit) {
		s.progress.each(s.progress.writes, to)
	}, "verb", "reason"),
}

func number(is bool) float64 {
	if is {
		return 1
	}

	return 0
}

func (*exporter) Describe(descs chan<- *prometheus.Desc) {
	for _, m := range ofShards {
		descs <- m.Desc
	}
}

// Collect implements prometheus.Collector. Of several shards with one name, as a test has them, it exports the one that
// started last.
func (e *exporter) Collect(out chan<- prometheus.Metric) {
	e.mu.Lock()
	defer e.mu.Unlock()

	done := map[[2]string]bool{}

	for _, s := range slices.Backward(e.shards) {
		name := [2]string{s.Ring(), s.Name()}
		if done[name] {
			continue
		}

		done[name] = true

		for _, m := range ofShards {
			m.read(s, func(value float64, labels ...string) {
				out <- prometheus.MustNewConstMetric(m.Desc, m.is, value, append(name[:], labels...)...)
			})
		}
	}
}

type progress struct {
	mu       sync.Mutex
	visits   map[*visit]struct{}  // of reconciles that have not returned
	returned map[string]time.Time // when one did last, by controller
	// reconciles and writes count what was refused, by controller or verb, and reason.
	reconciles, writes map[[2]string]int
}

func newProgress() *progress {
	return &progress{visits: map[*visit]struct{}{}, returned: map[string]time.Time{}, reconciles: map[[2]string]int{},
		writes: map[[2]string]int{}}
}

func (p *progress) begins(v *visit) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.visits[v] = struct{}{}
}

func (p *progress) ends(v *visit) {
	p.mu.Lock()
	defer p.mu.Unlock()

	delete(p.visits, v)
	p.returned[v.controller] = v.shard.term.clock.Now()
}

func (p *progress) into(v *visit, key objectKey) {
	p.mu.Lock()
	defer p.mu.Unlock()

	v.keys = append(v.keys, key)
}

// refused counts what was refused, if there is a reason.
func (p *progress) refused(counts map[[2]string]int, what, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if reason != "" {
		counts[[2]string{what, reason}]++
	}
}

func (p *progress) each(counts map[[2]string]int, to emit) {
	p.mu.Lock()
	defer p.mu.Unlock()

	for labels, n := range counts {
		to(float64(n), labels[:]...)
	}
}

// inside returns the controller that has been inside an object for the longest time; empty: none is.
func (p *progress) inside(key objectKey) (controller string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	var began time.Time

	for v := range p.visits {
		if slices.Contains(v.keys, key) && (began.IsZero() || v.began.Before(began)) {
			controller, began = v.controller, v.began
		}
	}

	return controller
}

func (p *progress) stalled(now time.Time) map[string]time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()

	all := make(map[string]time.Duration, len(p.returned))
	for controller := range p.returned {
		all[controller] = 0
	}

	for v := range p.visits {
		all[v.controller] = max(all[v.controller], min(now.Sub(v.began), now.Sub(p.returned[v.controller])))
	}

	return all
}

// controllerOf returns the name of the controller that a worker belongs to: that of the manager, or the default.
func (w *wrapped) controllerOf(m mark) string {
	if m.controller != "" {
		return m.controller
	}

	return strings.ToLower(w.kind.gvk.Kind)
}

// reasonOf returns why a reconcile does not run, or "" if it may.
func reasonOf(may verdict, unseen bool, err error) string {
	switch {
	case errors.Is(err, ErrLost):
		return "lost"
	case errors.Is(err, ErrNotHeld):
		return "not_held"
	case errors.Is(err, ErrNotAdded):
		return "not_added"
	case errors.Is(err, errBehind):
		return "behind"
	case errors.Is(err, errUndeclared):
		return "undeclared"
	case err != nil:
		return "error"
	case may == drained:
		return "draining"
	case may == foreign || may == gone:
		return "moved"
	case may == unclear && unseen:
		return "controller"
	case may == unclear:
		return "unclear"
	default:
		return ""
	}
}
