// Package check decides from the records of a run whether sharding kept its guarantees.
//
// Its input is what the API server stored (versions of objects and Leases), the versions by which shards released
// objects, and the reconciles that shards recorded. Its output is a list of [Violation]s. It is pure: the same records
// give the same result, so a failed run can be checked again.
//
// The invariants, by the numbers of docs/guarantees.md:
//
//	I1  At most one process at a time works on a main object and on the objects that it controls. No process begins a
//	    reconcile after its Lease was seen with another holder.
//	I2  While a shard is available, an object is without an available shard for a bounded time only.
//	I6  While a shard holds its Lease, a main object leaves it only by the shard's own write, after a drain; a controlled
//	    object leaves it only after its owner. A deleted Lease counts as held for twice its duration.
//	I7  At the end, all objects are in place: see [Final].
//	I9  A Fleet never has more Ships than its spec demands: nothing deletes Ships, and none is created twice.
//
// There is one documented exception: a process that was frozen may finish the reconciles that it had begun before.
package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/testkit/history"
)

// The values of [Version.Kind].
const (
	// Lease is the Lease of a shard. It has the name of the shard.
	Lease = "Lease"
	// Website is a main object.
	Website = "Website"
	// ConfigMap is a controlled object, if it has an owner.
	ConfigMap = "ConfigMap"
	// Fleet is a main object with a number of Ships.
	Fleet = "Fleet"
	// Ship is an object with a generated name that a Fleet controls.
	Ship = "Ship"
)

// isMain reports whether objects of the kind are main objects.
func isMain(kind string) bool { return kind == Website || kind == Fleet }

// Version is one stored version of an object.
type Version struct {
	Kind, Namespace, Name, UID string
	// Number is the resourceVersion. Numbers order all versions of one API server.
	Number uint64
	// At is when the watch reported it, by the machine's monotonic clock.
	At time.Duration
	// Deleted is true if this version is the deletion of the object.
	Deleted bool

	// Shard is the value of the shard label, Draining the presence of the drain label.
	Shard    string
	Draining bool
	// Owner is the UID of the controller of a controlled object.
	Owner string
	// Complete is true if the work on the current spec of a main object is done.
	Complete bool
	// Replicas is the desired number of Ships of a Fleet.
	Replicas int

	// Holder, Duration, and State, which the lease monitor writes, are of Leases.
	Holder   string
	Duration time.Duration
	State    string
	// Renewed is the last renewal of a Lease in this version or in a later one that differs in nothing else, by the
	// holder's clock.
	Renewed time.Time
}

// String is one line of an excerpt.
func (v Version) String() string {
	text := fmt.Sprintf("%12s  v%-6d %-9s %s", v.At.Round(time.Microsecond*100), v.Number, v.Kind, v.Name)
	if v.Kind == Lease {
		text += fmt.Sprintf(" holder=%q", v.Holder)
	} else {
		text += fmt.Sprintf(" shard=%q", v.Shard)
	}

	if v.Draining {
		text += " draining"
	}

	if v.Deleted {
		text += " deleted"
	}

	return text
}

// Worker is a process that reconciles.
type Worker = history.Worker

// Span is one reconcile of one object. Times are by the machine's monotonic clock.
type Span = history.Span

// Frozen is a period in which a process was frozen.
type Frozen = history.Pause

// Run contains the records of one run.
type Run struct {
	// Versions are those of the main and controlled objects and of the Leases, in any order.
	Versions []Version
	// GivenUp maps the versions by which shards released objects to these shards.
	GivenUp map[uint64]string
	// Spans are the reconciles of all processes. Interrupted reconciles end with their process.
	Spans  []Span
	Frozen []Frozen
	// Bound limits the time that an object is without an available shard while a shard is available.
	Bound time.Duration
	// End is when the deletion of the ring begins, after which objects need no shard. Zero means never.
	End time.Duration
}

// Violation is a violated guarantee.
type Violation struct {
	// Invariant is I1, I2, I6, I7, or I9.
	Invariant string
	// Text describes what happened.
	Text string
	// Excerpt contains the related records in chronological order.
	Excerpt []string
}

// String returns all of it.
func (v Violation) String() string {
	return v.Invariant + ": " + v.Text + "\n    " + strings.Join(v.Excerpt, "\n    ")
}

// Check returns the violations of I1, I2, I6, and I9.
func Check(r Run) []Violation {
	r.Versions = slices.Clone(r.Versions)
	slices.SortFunc(r.Versions, func(a, b Version) int { return cmp.Compare(a.Number, b.Number) })

	return slices.Concat(r.overlaps(), r.lateStarts(), r.leavings(), r.unowned(), r.excess())
}

// excerpt returns the versions of some objects and Leases, and the spans of the objects, between two times.
func (r Run) excerpt(from, until time.Duration, uids, shards []string) []string {
	const around = 2 * time.Second

	type line struct {
		at   time.Duration
		text string
	}

	var lines []line

	for _, v := range r.Versions {
		wanted := slices.Contains(uids, v.UID) || v.Kind == Lease && slices.Contains(shards, v.Name)
		if wanted && v.At >= from-around && v.At <= until+around {
			lines = append(lines, line{v.At, v.String()})
		}
	}

	for _, s := range r.Spans {
		if slices.Contains(uids, s.UID) && s.End >= from-around && s.Start <= until+around {
			lines = append(lines, line{s.Start, fmt.Sprintf("%12s  %s", s.Start.Round(time.Microsecond*100), s)})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })

	const most = 60

	var texts []string
	for _, l := range lines[:min(most, len(lines))] {
		texts = append(texts, l.text)
	}

	return texts
}

// made returns the last versions of the Fleets, and the first versions of all Ships that were ever created for each.
// Both are by UID.
func made(versions []Version) (fleets map[string]Version, ships map[string]map[string]Version) {
	fleets, ships = map[string]Version{}, map[string]map[string]Version{}

	for _, v := range versions {
		switch v.Kind {
		case Fleet:
			fleets[v.UID] = v
		case Ship:
			if ships[v.Owner] == nil {
				ships[v.Owner] = map[string]Version{}
			}

			if _, known := ships[v.Owner][v.UID]; !known {
				ships[v.Owner][v.UID] = v
			}
		}
	}

	return fleets, ships
}

// Excess returns the total numbers of excess and missing Ships.
func Excess(versions []Version) (excess, missing int) {
	fleets, ships := made(versions)
	for uid := range fleets {
		got, want := len(ships[uid]), fleets[uid].Replicas
		excess += max(got-want, 0)
		missing += max(want-got, 0)
	}

	return excess, missing
}

// excess finds Fleets with excess Ships.
func (r Run) excess() []Violation {
	fleets, ships := made(r.Versions)

	var found []Violation

	for _, uid := range slices.Sorted(maps.Keys(fleets)) {
		fleet, made := fleets[uid], ships[uid]
		if len(made) <= fleet.Replicas {
			continue
		}

		all := slices.SortedFunc(maps.Values(made), func(a, b Version) int { return int(a.Number) - int(b.Number) }) //nolint:gosec // far from their limits
		first := all[fleet.Replicas]
		found = append(found, Violation{
			Invariant: "I9",
			Text: fmt.Sprintf("%d Ships of Fleet %s were created, but its spec demands %d; the first excess Ship is %s, in version %d",
				len(made), fleet.Name, fleet.Replicas, first.Name, first.Number),
			Excerpt: r.excerpt(first.At, first.At, append(slices.Collect(maps.Keys(made)), uid), nil),
		})
	}

	return found
}

// Moves counts the moves of Fleets to other shards.
func Moves(versions []Version) int {
	at, moves := map[string]string{}, 0

	for _, v := range versions {
		if v.Kind != Fleet || v.Shard == "" {
			continue
		}

		if before := at[v.UID]; before != "" && before != v.Shard {
			moves++
		}

		at[v.UID] = v.Shard
	}

	return moves
}

// State is the stored state at the end of a run.
type State struct {
	// Versions are the newest versions of all objects, including deleted ones.
	Versions []Version
	// Available are the shards that hold their Leases.
	Available []string
}

// Final returns what is not in place: objects without an available shard or with a drain label; main objects whose work
// is not done or that have no controlled object; controlled objects with another shard than their owner.
func Final(s State) []Violation {
	var problems []string

	mains, children := map[string]Version{}, map[string]int{}

	for _, v := range s.Versions {
		if isMain(v.Kind) && !v.Deleted {
			mains[v.UID] = v
		}
	}

	for _, v := range s.Versions {
		if v.Deleted || v.Kind == Lease || v.Kind == ConfigMap && v.Owner == "" {
			continue
		}

		name := v.Kind + " " + v.Name
		if !slices.Contains(s.Available, v.Shard) {
			problems = append(problems, fmt.Sprintf("%s is at shard %q, which is not available", name, v.Shard))
		}

		if v.Draining {
			problems = append(problems, name+" is still draining")
		}

		if owner, exists := mains[v.Owner]; exists {
			children[v.Owner]++
			if owner.Shard != v.Shard {
				problems = append(problems, fmt.Sprintf("%s is at %s, its owner at %s", name, v.Shard, owner.Shard))
			}
		}
	}

	for _, uid := range slices.Sorted(maps.Keys(mains)) {
		switch got, want := children[uid], mains[uid].Replicas; {
		case mains[uid].Kind == Fleet && got != want:
			problems = append(problems, fmt.Sprintf("Fleet %s has %d Ships, not %d", mains[uid].Name, got, want))
		case mains[uid].Kind != Fleet && got == 0:
			problems = append(problems, mains[uid].Kind+" "+mains[uid].Name+" has no ConfigMap")
		}

		if !mains[uid].Complete {
			problems = append(problems, mains[uid].Kind+" "+mains[uid].Name+" does not report that the work on it is done")
		}
	}

	var found []Violation
	for _, p := range problems {
		found = append(found, Violation{Invariant: "I7", Text: p})
	}

	return found
}

// leases contains the current version of each Lease during a replay.
type leases map[string]Version

// see records the next version.
func (l leases) see(v Version) {
	if v.Kind != Lease {
		return
	}

	if v.Deleted {
		// The last holder and duration count.
		v.Holder, v.Duration = l[v.Name].Holder, l[v.Name].Duration
	}

	l[v.Name] = v
}

// holds reports whether the shard may be working at the time of a version.
func (l leases) holds(shard string, at Version) bool {
	v, known := l[shard]
	return known && v.Holder == shard && (!v.Deleted || at.At-v.At < 2*v.Duration)
}

// available reports whether the shard is available.
func (l leases) available(shard string) bool {
	v, known := l[shard]
	return known && v.Holder == shard && !v.Deleted
}

func (l leases) some() bool {
	for shard := range l {
		if l.available(shard) {
			return true
		}
	}

	return false
}

// leavings finds objects that left a shard that held its Lease, without being released by it.
func (r Run) leavings() []Violation {
	now, objects := leases{}, map[string]Version{}

	var found []Violation

	for _, v := range r.Versions {
		if v.Kind == Lease {
			now.see(v)
			continue
		}

		before, known := objects[v.UID]

		objects[v.UID] = v
		if !known || v.Deleted || before.Shard == "" || before.Shard == v.Shard || !now.holds(before.Shard, v) {
			continue
		}

		if problem := r.unasked(before, v, objects); problem != "" {
			found = append(found, Violation{
				Invariant: "I6",
				Text: fmt.Sprintf("%s %s left %s, which held its Lease, for %q in version %d: %s",
					v.Kind, v.Name, before.Shard, v.Shard, v.Number, problem),
				Excerpt: r.excerpt(before.At, v.At, []string{v.UID, v.Owner}, []string{before.Shard, v.Shard}),
			})
		}
	}

	return found
}

// unasked returns why an object must not have left a shard that held its Lease; empty if it was allowed to.
func (r Run) unasked(before, after Version, objects map[string]Version) string {
	if after.Owner != "" {
		owner, exists := objects[after.Owner]
		if exists && !owner.Deleted && owner.Shard == before.Shard {
			return "its owner had not left"
		}

		return ""
	}

	switch {
	case !before.Draining:
		return "it was not draining"
	case r.GivenUp[after.Number] != before.Shard:
		return fmt.Sprintf("the shard did not give it up (%q did)", r.GivenUp[after.Number])
	}

	return ""
}

// unowned finds objects that had no available shard for too long.
func (r Run) unowned() []Violation {
	now, objects, since := leases{}, map[string]Version{}, map[string]time.Duration{}

	var found []Violation

	check := func(at time.Duration, uids ...string) {
		for _, uid := range uids {
			o := objects[uid]
			owned := o.Deleted || o.Kind == ConfigMap && o.Owner == "" || now.available(o.Shard) || !now.some()

			begin, waiting := since[uid]
			switch {
			case !owned && !waiting:
				since[uid] = at
			case owned && waiting || !owned && at == r.End:
				delete(since, uid)

				if at-begin > r.Bound {
					found = append(found, Violation{
						Invariant: "I2",
						Text:      fmt.Sprintf("%s %s had no available shard for %s (at most %s)", o.Kind, o.Name, at-begin, r.Bound),
						Excerpt:   r.excerpt(begin, at, []string{uid}, slices.Sorted(maps.Keys(now))),
					})
				}
			}
		}
	}

	for _, v := range r.Versions {
		if r.End > 0 && v.At > r.End {
			break
		}

		// Leases change which shards are available, and with it what all objects have.
		if v.Kind == Lease {
			now.see(v)
			check(v.At, slices.Sorted(maps.Keys(objects))...)
		} else {
			objects[v.UID] = v
			check(v.At, v.UID)
		}
	}
	check(r.End, slices.Sorted(maps.Keys(objects))...)

	return found
}

// Safety returns the violations of I1, I6, and I9: of all invariants that do not depend on the speed of the machine. It
// makes no exception for frozen processes: a reconcile must not continue after the freeze while others work. If
// [Run.GivenUp] is nil, each release of a draining object counts as a write of its shard.
func Safety(r Run) []Violation {
	r.Versions = slices.Clone(r.Versions)
	slices.SortFunc(r.Versions, func(a, b Version) int { return cmp.Compare(a.Number, b.Number) })

	if r.GivenUp == nil {
		r.GivenUp = Releases(r.Versions)
	}

	working := r
	working.Frozen = nil

	for _, f := range r.Frozen {
		working.Spans = history.Without(working.Spans, f)
	}

	return slices.Concat(working.overlaps(), r.lateStarts(), r.leavings(), r.excess())
}

// Releases maps the versions in which draining objects left their shard to these shards. The versions must be in order.
func Releases(versions []Version) map[uint64]string {
	newest, released := map[string]Version{}, map[uint64]string{}

	for _, v := range versions {
		if before := newest[v.UID]; before.Draining && before.Shard != v.Shard {
			released[v.Number] = before.Shard
		}

		newest[v.UID] = v
	}

	return released
}

// units maps the UID of each object to the UID of its main object: itself or its owner.
func (r Run) units() map[string]string {
	units := map[string]string{}
	for _, v := range r.Versions {
		units[v.UID] = cmp.Or(v.Owner, v.UID)
	}

	return units
}

// overlaps finds two processes that worked on one unit at the same time.
func (r Run) overlaps() []Violation {
	units := r.units()

	var found []Violation

	for _, o := range history.Overlaps(r.Spans, func(s Span) string { return cmp.Or(units[s.UID], s.UID) }) {
		if !r.excused(o.First, o.Second.Start) && !r.excused(o.Second, o.First.Start) {
			found = append(found, r.overlap(o.First, o.Second))
		}
	}

	return found
}

func (r Run) overlap(a, b Span) Violation {
	return Violation{
		Invariant: "I1",
		Text: fmt.Sprintf("%s (process %d) and %s (process %d) worked on %s %s and %s %s at the same time, from %s to %s",
			a.Shard, a.PID, b.Shard, b.PID, a.Kind, a.Name, b.Kind, b.Name, b.Start, min(a.End, b.End)),
		Excerpt: r.excerpt(b.Start, min(a.End, b.End), []string{a.UID, b.UID}, []string{a.Shard, b.Shard}),
	}
}

// excused reports whether the process was frozen during the span before the other span began.
func (r Run) excused(s Span, other time.Duration) bool {
	return slices.ContainsFunc(r.Frozen, func(f Frozen) bool {
		return f.PID == s.PID && s.Start <= f.From && f.From < s.End && f.From <= other
	})
}

// lateStarts finds reconciles that began after the Lease of their process was seen with another holder.
func (r Run) lateStarts() []Violation {
	lost := map[string][]Version{}
	held := map[string]bool{}

	for _, v := range r.Versions {
		if v.Kind != Lease {
			continue
		}

		holds := v.Holder == v.Name && !v.Deleted
		// A deletion proves nothing about the process, unlike another holder.
		if held[v.Name] && !holds && !v.Deleted {
			lost[v.Name] = append(lost[v.Name], v)
		}

		held[v.Name] = holds
	}

	first := map[Worker]time.Duration{}
	for _, s := range r.Spans {
		if known, ok := first[s.Worker]; !ok || s.Start < known {
			first[s.Worker] = s.Start
		}
	}

	var found []Violation

	for _, s := range r.Spans {
		for _, v := range lost[s.Shard] {
			if first[s.Worker] < v.At && v.At < s.Start {
				found = append(found, Violation{
					Invariant: "I1",
					Text: fmt.Sprintf("%s (process %d) began to work on %s %s at %s, though its Lease was %q's since %s at the latest",
						s.Shard, s.PID, s.Kind, s.Name, s.Start, v.Holder, v.At),
					Excerpt: r.excerpt(v.At, s.Start, []string{s.UID}, []string{s.Shard}),
				})

				break
			}
		}
	}

	return found
}
