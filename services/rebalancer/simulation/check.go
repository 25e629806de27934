package simulation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/simulation/apiserver"
)

// The properties, as violations begin with them.
const (
	// OneWorker is I1.
	OneWorker = "I1 two shards work on one object"
	// Order is what I9 asks of the rebalancer.
	Order = "I9 an object comes to a shard before what follows it"
	// NoTaking is I6.
	NoTaking = "I6 an object is taken from a shard that works on it"
	// Honest means that a ring that is said to have converged has.
	Honest = "I10 said to have converged"
	// Found means that audits find nothing but what somebody has put in a wrong place.
	Found = "I10 only an audit has found"
	// Alive means that no shard loses its Lease that lives and can renew it.
	Alive = "I6 a shard that lives loses its Lease"
	// Prompt is the "within seconds" of I2, while nothing goes wrong.
	Prompt = "I2 out of place for long, while nothing goes wrong"
	// Unsaid means that it is said what keeps objects out of their places.
	Unsaid = "I10 it is not said why"
	// Placed means that in the end every object is where it belongs, or it is said why not.
	Placed = "I2 out of place in the end"
	// Converged means that this is said then.
	Converged = "I10 not said to have converged in the end"
	// Nothing means that what has left the ring carries no label.
	NoLabel = "I8 the ring is still there"
	// Dead means that a shard which is dead loses its Lease.
	Dead = "I2 a shard that is dead holds its Lease"
	// Remembered means that the status remembers nothing that never was.
	Remembered = "I8 the status remembers what never was"
	// Rest means that nothing is asked then.
	Rest = "I5 no rest in the end"
)

// beginsWork notes that a process begins to work on an object, and checks I1; the lock of the world is held.
func (w *World) beginsWork(p *process, uid types.UID, id apiserver.ID) {
	if w.working[uid] == nil {
		w.working[uid] = map[*process]bool{}
	}

	now := w.clock.Now()

	for q := range w.working[uid] {
		if q.id.Name != p.id.Name && !w.tampered[uid][q] && !w.unaware(p, uid, id) && !w.unaware(q, uid, id) && now.Before(q.until) && !now.Before(q.frozen) {
			w.violate(OneWorker, "shard %s begins to work on %s while shard %s does", p.id, id, q.id)
		}
	}

	w.working[uid][p] = true
}

// unaware reports whether a process works on an object as it was before a user has given it to somebody else. The lock is held.
func (w *World) unaware(p *process, uid types.UID, id apiserver.ID) bool {
	o := p.cache[id]

	return o != nil && o.UID == uid && version(o) < w.overridden[uid]
}

// givenUpFor notes that a process is about to give an object up that another one of the same name may work on: who lets two processes have
// one name lets one answer for the other. The lock is held.
func (w *World) givenUpFor(p *process, uid types.UID) {
	for q := range w.working[uid] {
		if q != p && q.id.Name == p.id.Name {
			w.excusedUntilSeen(uid, q)
		}
	}
}

func (w *World) stopsWork(p *process, uid types.UID) {
	delete(w.working[uid], p)
	delete(w.tampered[uid], p)

	if len(w.working[uid]) == 0 {
		delete(w.working, uid)
		delete(w.tampered, uid)
	}
}

// checkTaking checks I6 for a write of who is bound to the protocol; the lock of the world is held.
func (w *World) checkTaking(write apiserver.Write) {
	if write.Old == nil || write.New == nil || !strings.HasPrefix(write.Client, "rebalancer/") {
		return
	}

	from := write.Old.Labels[shardLabel]
	if from == "" || from == write.New.Labels[shardLabel] || !w.isMain(write.ID, write.Old) {
		return
	}

	now := w.clock.Now()

	for p := range w.working[write.Old.UID] {
		l := w.leases[p.id]
		if p.id.Name == from && l != nil && lease.RecordOf(l).Holder == from && now.Before(p.until) && !now.Before(p.frozen) {
			w.violate(NoTaking, "%s", write.ID)
		}
	}
}

// taken checks that a Lease is not taken from a shard that lives: it tries every few seconds to renew it, also after an outage.
func (w *World) taken(id types.NamespacedName, was lease.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if p := w.processes[id]; p != nil && was.Holder == id.Name && !p.leaving() && p.began.Add(leaseDuration).Before(w.clock.Now()) && !w.disturbed(p) {
		w.violate(Alive, "shard %s", id)
	}
}

// facts are what decides about where objects belong.
type facts struct {
	ring   *v1alpha1.ClusterRing
	view   *membership.View
	teams  map[string]string
	served map[schema.GroupResource]apiserver.Served
	// selector selects the ring's namespaces.
	selector labels.Selector
}

// actual are the facts as they are.
func (w *World) actual() facts {
	all := w.server.Resources()

	w.mu.Lock()
	defer w.mu.Unlock()

	return facts{ring: w.ring, view: w.view(), teams: maps.Clone(w.teams), served: all}
}

// outOfPlace returns the objects that are not where they belong, with what is wrong.
func (w *World) outOfPlace(f facts) map[apiserver.ID]string {
	found := map[apiserver.ID]string{}
	objects := map[apiserver.ID]*metav1.PartialObjectMetadata{}

	w.server.Objects(func(id apiserver.ID, o *metav1.PartialObjectMetadata) { objects[id] = o })

	w.mu.Lock()
	unrelated := maps.Clone(w.unrelated)
	w.mu.Unlock()

	var set *resources.Set
	if f.ring != nil && f.ring.DeletionTimestamp == nil {
		set = resources.Resolve(mapperOf(f.served), f.ring.Spec)

		var err error
		if f.selector, err = metav1.LabelSelectorAsSelector(f.ring.Spec.EffectiveNamespaceSelector()); err != nil {
			panic("a selector that is not valid: " + err.Error())
		}
	}

	for id, o := range objects {
		if how, is := f.served[id.GroupResource]; !is || how.Down {
			continue
		}

		if _, is := unrelated[o.UID]; is {
			continue
		}

		if wrong := f.wrong(set, id, o, objects); wrong != "" {
			found[id] = wrong
		}
	}

	return found
}

// wrong says what is wrong with the place of one object; nothing if it is right.
func (f facts) wrong(
	set *resources.Set, id apiserver.ID, o *metav1.PartialObjectMetadata, all map[apiserver.ID]*metav1.PartialObjectMetadata,
) string {
	is, belongs := o.Labels[shardLabel], false
	_, drain := o.Labels[drainLabel]

	var (
		want  string
		owner *resources.Owner
	)

	if set != nil {
		if r, role, ok := set.Find(id.GroupResource); ok {
			kin, ok, _ := set.KinOf(context.Background(), resources.Subject{Resource: r, Role: role, Object: o}, stored(func(id apiserver.ID) *metav1.PartialObjectMetadata { return all[id] })) // they have no errors
			owner, belongs = kin.Owner, ok && f.covers(r, id.Namespace)
			want, _ = f.view.Owner(kin.Key)
		}
	}

	switch {
	case !belongs && labelled(o):
		return fmt.Sprintf("at %q, and should have no label", is)
	case !belongs || len(f.view.AvailableShards()) == 0:
		return ""
	case drain:
		return fmt.Sprintf("at %q, draining", is)
	}

	if owner != nil {
		at, exists := all[apiserver.ID{GroupResource: owner.Resource.GroupResource(), Namespace: owner.Namespace, Name: owner.Name}]
		if !exists || at.UID != owner.UID {
			want = is
			if !f.view.Available(is) {
				want = "any"
			}
		} else {
			want = at.Labels[shardLabel]
		}
	}

	if is != want {
		return fmt.Sprintf("at %q, and belongs to %q", is, want)
	}

	return ""
}

// covers reports whether the ring covers objects of the resource in the namespace.
func (f facts) covers(r resources.Resource, namespace string) bool {
	return !r.Namespaced || f.selector.Matches(labels.Set(namespaceLabels(namespace, f.teams[namespace])))
}

const (
	// audit is how long an object with a shard label may be out of place with nobody knowing it; silence is how long one without
	// may, for a watch that has become blind is believed that long.
	audit   = 90 * time.Second
	silence = 210 * time.Second
	// prompt is how long it may take to move an object that is known to be out of place, while nothing else happens: as long as the longest
	// pause between two attempts, and some seconds.
	prompt = 50 * time.Second
	// triedAgain is after what time all has been tried again that has failed, and who had to wait for that has had its turn.
	triedAgain = 75 * time.Second
	// bound is how long it may take, after all disturbances, until everything is right.
	bound = 8 * time.Minute
	// resting is how long nothing may be asked then.
	resting = 4 * time.Minute
)

// lies looks whether a ring is said to have converged that has not. Since is when each object was first seen out of place.
func (w *World) lies(since map[apiserver.ID]time.Time) {
	f, converged := w.steward.claim()
	if f.ring == nil {
		clear(since)
		return
	}

	now, wrong := w.clock.Now(), w.outOfPlace(f)
	calm := w.calm()

	for id := range since {
		if _, still := wrong[id]; !still {
			delete(since, id)
		}
	}

	for _, id := range sortedKeys(wrong) {
		if _, known := since[id]; !known {
			since[id] = now
		}

		unseen := audit
		if o := w.server.Object(id); o != nil && !labelled(o) || w.hampered() {
			unseen = silence
		}

		if converged && now.Sub(since[id]) > unseen && w.h.Lasting != Flapping {
			w.mu.Lock()
			w.violate(Honest, "%s is %s, since %s", id, wrong[id], since[id].Sub(w.begun))
			w.mu.Unlock()

			since[id] = now.Add(time.Hour) // said once
		}

		if calm && now.Sub(since[id]) > prompt && w.shouldMove(id, f) {
			w.fail(Prompt, "%s is %s, since %s", id, wrong[id], since[id].Sub(w.begun))

			since[id] = now.Add(time.Hour)
		}
	}
}

// calm reports whether for some time nothing has happened that anybody would have to wait for.
func (w *World) calm() bool {
	now := w.now()

	return (w.h.Lasting == Fine || w.h.Lasting == HungShard) && !slices.ContainsFunc(w.h.Steps, func(s Step) bool {
		after := prompt

		switch {
		case s.Act == Hang && s.For == forever:
			after = prompt - forever // all but its own objects are to move all the same
		case s.Act == Disturb && s.Fault.Client != "" && s.Fault.Client != "rebalancer":
		case s.Act == Disturb && (s.Fault.Effect == apiserver.Blind || s.Fault.Effect == apiserver.Hang || s.Fault.Effect == apiserver.Stall):
			after = silence
		case s.Act == Disturb:
			after = triedAgain
		}

		return s.At <= now && now <= s.At+s.For+after
	})
}

// shouldMove reports whether nothing is in the way of an object that is out of place, and no audit is needed to find it.
func (w *World) shouldMove(id apiserver.ID, f facts) bool {
	o := w.server.Object(id)
	if o == nil || f.ring == nil {
		return false
	}

	line := w.line(id, o)
	waits := w.followed(id, func(_ apiserver.ID, o *metav1.PartialObjectMetadata) bool {
		return o.Labels[shardLabel] != "" && !f.view.Available(o.Labels[shardLabel])
	})

	var ownerAt *metav1.PartialObjectMetadata
	if len(line) > 0 {
		ownerAt = w.server.Object(line[len(line)-1])
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	touched := slices.ContainsFunc(append(line, id), func(id apiserver.ID) bool { return w.touched[id.String()] })

	is := o.Labels[shardLabel]
	if is == "" { // whoever has seen to that; but nothing can follow an owner that cannot be taken yet, nor go before what follows it and cannot be
		return !waits && (ownerAt == nil || ownerAt.Labels[shardLabel] == "" || f.view.Available(ownerAt.Labels[shardLabel]))
	}

	hangs := w.h.Lasting == HungShard && (is == w.h.Whom || ownerAt != nil && ownerAt.Labels[shardLabel] == w.h.Whom)

	if ownerAt != nil && !f.view.Available(ownerAt.Labels[shardLabel]) {
		return false // it is about to get one, or is late itself
	}

	return !hangs && !touched && f.view.Available(is)
}

// hampered reports whether requests of the rebalancer have gone wrong lately in a way that may make an audit take longer.
func (w *World) hampered() bool {
	now := w.now()

	return slices.ContainsFunc(w.h.Steps, func(s Step) bool {
		return s.Act == Disturb && (s.Fault.Client == "" || s.Fault.Client == "rebalancer") && s.At <= now && now <= s.At+s.For+silence
	})
}

// final checks what shall be true in the end.
func (w *World) final() {
	f := w.actual()
	wrong := w.outOfPlace(f)
	_, converged := w.steward.claim()
	report, running := w.steward.report()
	excused := 0

	for _, id := range sortedKeys(wrong) {
		o := w.server.Object(id)
		if o == nil {
			continue
		}

		switch said, is := w.excuse(id, o, f); {
		case !is:
			w.fail(Placed, "%s is %s; the engine says: %+v", id, wrong[id], report)
		case !said(report):
			w.fail(Unsaid, "%s is %s; the engine says: %+v", id, wrong[id], report)
		default:
			excused++
		}
	}

	calm := w.h.Lasting == Fine || w.h.Lasting == SlowAdmission ||
		w.h.Lasting != Flapping && excused == 0 && len(report.Failures) == 0 && report.Late == 0 && report.Blocked == 0

	switch {
	case f.ring != nil && f.ring.DeletionTimestamp != nil && calm:
		w.fail(NoLabel, "the engine runs: %t; it says: %+v", running, report)
	case f.ring != nil && f.ring.DeletionTimestamp == nil && !converged && calm:
		w.fail(Converged, "the engine says: %+v", report)
	case f.ring != nil && f.ring.DeletionTimestamp == nil && calm && !f.misspelt() && fingerprintOf(f.ring) != f.view.Fingerprint():
		w.fail(Converged, "the status does not say so")
	}

	if f.ring != nil && f.ring.Status.Assignment != nil && calm && !f.misspelt() {
		for gr := range resources.Recorded(f.ring.Status.Assignment) {
			if _, is := served[gr]; !is {
				w.fail(Remembered, "%s", gr)
			}
		}
	}

	w.buriedShards()
}

// misspelt reports whether the ring names a resource that there is not.
func (f facts) misspelt() bool {
	for gr := range resources.Named(f.ring.Spec.Resources) {
		if _, is := f.served[gr]; !is {
			return true
		}
	}

	return false
}

// buriedShards checks that no Lease is held by a shard that is long dead, unless somebody has made it so long that nobody can know yet.
func (w *World) buriedShards() {
	w.mu.Lock()
	defer w.mu.Unlock()

	for _, id := range sortedKeys(w.leases) {
		record := lease.RecordOf(w.leases[id])
		if record.HeldBy(id.Name) && record.Duration <= time.Minute && w.processes[id] == nil && w.h.Lasting != Flapping {
			w.violate(Dead, "shard %s", id)
		}
	}
}

// fail notes that something is not as it must be.
func (w *World) fail(property, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.violate(property, format, args...)
}

// rest checks what was asked in the time of rest, and how often the engine has said that it has something to report.
func (w *World) rest(before, after map[string]int, news int) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if news > 5*int(resting/time.Minute) && (w.h.Lasting == Fine || w.h.Lasting == SlowAdmission) {
		w.violate(Rest, "%d times the engine says that something has changed", news)
	}

	for _, what := range slices.Sorted(maps.Keys(after)) {
		n := after[what] - before[what]
		if n > 0 && strings.HasPrefix(what, "rebalancer ") && n > w.allowed(what) {
			w.violate(Rest, "%d times %s", n, what)
		}
	}
}

// allowed is how often something may be asked while all is at rest, but for what lasts.
func (w *World) allowed(what string) int {
	const audits = int(resting / (45 * time.Second))

	verb := strings.Fields(what)[1]

	switch {
	case w.h.Lasting == Flapping:
		return 10_000 // no rest
	case strings.Contains(what, "discovery") || strings.HasSuffix(what, rings.String()):
		return int(resting/(2*time.Second)) + 1 // while a resource is missing
	case w.h.Lasting == Namesakes && verb == "list":
		return int(resting/time.Second) + 8*audits // of Leases
	case w.h.Lasting == Namesakes && verb == "get":
		return int(resting / time.Second) // one of all that wait looks whether it can be moved
	case w.h.Lasting == HungShard && verb == "get":
		return 20 * int(resting/limits.DrainTimeout)
	case w.h.Lasting == Refused:
		return 12 * int(resting/(30*time.Second))
	case verb == "list":
		return 8 * audits // pages
	case verb == "watchlist", verb == "watch":
		return audits
	}

	return 0
}
