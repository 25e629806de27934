package check

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

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

	check := func(at time.Duration) {
		for _, uid := range slices.Sorted(maps.Keys(objects)) {
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

		if v.Kind == Lease {
			now.see(v)
		} else {
			objects[v.UID] = v
		}
		check(v.At)
	}
	check(r.End)

	return found
}
