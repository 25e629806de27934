package ordinal

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
)

const (
	// AnnotationPlan is on the Lease of a StatefulSet whose processes stop the world. It contains the number of replicas that they have agreed on, or are
	// about to agree on, as JSON.
	AnnotationPlan = "ordinals.alpha.sharding.timebertt.dev/plan"
	// AnnotationProcessPrefix begins the annotations of that Lease in which processes acknowledge the plan. The ordinal follows.
	AnnotationProcessPrefix = "ordinals.alpha.sharding.timebertt.dev/process-"
)

// LeaseName returns the name of the Lease in which the processes of a StatefulSet acknowledge the number of replicas, in its namespace.
func LeaseName(statefulSet string) string { return "ordinals-" + statefulSet }

// plan is a number of replicas to agree on.
type plan struct {
	// Number counts the plans of the Lease from 1.
	Number int64 `json:"number"`
	// Start and Replicas are those of the StatefulSet with this version.
	Start    int    `json:"start"`
	Replicas int    `json:"replicas"`
	Version  string `json:"version"`
	// Unproven is set in a new Lease: there may have been another Lease before, and processes that still work by it.
	Unproven bool `json:"unproven,omitempty"`
}

func (p plan) numbers() numbers {
	return numbers{start: p.Start, replicas: p.Replicas, version: p.Version}
}

// entry is the acknowledgement of one process. Whatever it contains, it only counts that it changes.
type entry struct {
	// ID is that of one life of one process.
	ID string `json:"id"`
	// Plan is the number of the plan that the process works by, or will work by: it has no worker that began under an earlier one.
	Plan int64 `json:"plan"`
	// Beat counts the renewals.
	Beat int64 `json:"beat"`
	// Seconds is the duration of the term of the process.
	Seconds int64 `json:"seconds"`
}

// ledger is the content of the Lease.
type ledger struct {
	plan      plan
	processes map[int]entry
}

// parse reads a ledger from annotations, of which it ignores others.
func parse(annotations map[string]string) (ledger, error) {
	l := ledger{processes: map[int]entry{}}

	if err := json.Unmarshal([]byte(annotations[AnnotationPlan]), &l.plan); err != nil {
		return l, fmt.Errorf("annotation %s: %w", AnnotationPlan, err)
	}

	for key, value := range annotations {
		suffix, is := strings.CutPrefix(key, AnnotationProcessPrefix)
		if !is {
			continue
		}

		ordinal, err := strconv.Atoi(suffix)
		if err != nil {
			return l, fmt.Errorf("annotation %s: %w", key, err)
		}

		var e entry
		if err := json.Unmarshal([]byte(value), &e); err != nil {
			return l, fmt.Errorf("annotation %s: %w", key, err)
		}

		l.processes[ordinal] = e
	}

	return l, nil
}

// write replaces the ledger in annotations.
func (l ledger) write(annotations map[string]string) map[string]string {
	written := map[string]string{AnnotationPlan: text(l.plan)}

	for key, value := range annotations {
		if key != AnnotationPlan && !strings.HasPrefix(key, AnnotationProcessPrefix) {
			written[key] = value
		}
	}

	for ordinal, e := range l.processes {
		written[AnnotationProcessPrefix+strconv.Itoa(ordinal)] = text(e)
	}

	return written
}

// text returns a plan or an entry as JSON.
func text(value any) string {
	written, _ := json.Marshal(value) // numbers and strings

	return string(written)
}

// situation is all that a process decides by.
type situation struct {
	ledger  ledger
	numbers numbers // what the StatefulSet says

	ordinal int
	id      string
	term    time.Duration
	acked   int64 // the plan that this process has acknowledged; 0: it has no entry
	idle    bool  // no worker runs, and none begins
	leaving bool  // the process is to end
	renew   bool  // the entry is to be renewed

	expired func(ordinal int) bool // the entry has not changed for longer than its process works
	proven  bool                   // the Lease has existed for longer than processes work that do not know it
}

// lost reports whether somebody has removed or replaced this process's entry: its term is over.
func (s situation) lost() bool {
	return s.acked > 0 && s.ledger.processes[s.ordinal].ID != s.id
}

// next returns what this process makes of the ledger. If that is what the ledger is already, nothing must be written.
//
//   - A plan for other numbers than the StatefulSet's is replaced, if the StatefulSet is newer.
//   - Entries that have expired are removed.
//   - The process joins if it has a share and its ordinal has no entry of another process.
//   - It acknowledges a plan, or leaves because it has no share in it, when it is idle.
func (s situation) next() ledger {
	next := ledger{plan: s.ledger.plan, processes: maps.Clone(s.ledger.processes)}

	for ordinal := range s.ledger.processes {
		if (ordinal != s.ordinal || s.acked == 0) && s.expired(ordinal) {
			delete(next.processes, ordinal)
		}
	}

	if s.proven {
		next.plan.Unproven = false
	}

	if !s.numbers.same(next.plan.numbers()) && newer(s.numbers.version, next.plan.Version) {
		next.plan.Number++
		next.plan.Start, next.plan.Replicas, next.plan.Version = s.numbers.start, s.numbers.replicas, s.numbers.version
	}

	_, has := next.plan.numbers().share(s.ordinal)
	there, taken := next.processes[s.ordinal]
	own := entry{ID: s.id, Plan: next.plan.Number, Beat: s.ledger.processes[s.ordinal].Beat, Seconds: int64(s.term / time.Second)}

	switch {
	case s.acked == 0:
		// Its own entry may be there without its knowledge: it did not get the answer to the write.
		if has && !s.leaving && (!taken || there.ID == s.id) {
			own.Beat++
			next.processes[s.ordinal] = own
		}
	case s.idle && (s.leaving || !has):
		delete(next.processes, s.ordinal)
	case s.idle && s.acked < s.ledger.plan.Number:
		own.Beat++
		next.processes[s.ordinal] = own
	case s.renew:
		own.Plan = s.acked
		own.Beat++
		next.processes[s.ordinal] = own
	}

	return next
}

// agreed reports whether the process may work by the plan: all processes of the Lease have acknowledged it.
func (l ledger) agreed(ordinal int, id string) bool {
	if l.plan.Unproven || l.processes[ordinal].ID != id {
		return false
	}

	for _, e := range l.processes {
		if e.Plan != l.plan.Number {
			return false
		}
	}

	return true
}

func (l ledger) equal(o ledger) bool {
	return l.plan == o.plan && maps.Equal(l.processes, o.processes)
}
