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
	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
)

// The properties. Each violation begins with one of them.
const (
	// OneWorker is I1: at most one shard works on an object.
	OneWorker = "I1 two shards work on one object"
	// Order is the part of I9 that the rebalancer must ensure.
	Order = "I9 an object comes to a shard before what follows it"
	// NoTaking is I6: no object is taken from a shard that works on it.
	NoTaking = "I6 an object is taken from a shard that works on it"
	// Honest means that a ring which claims convergence has converged.
	Honest = "I10 the ring claims convergence"
	// Found means that audits find only objects that somebody has put into a wrong place.
	Found = "I10 only an audit has found"
	// Alive means that no live shard loses its Lease while it can renew it.
	Alive = "I6 a live shard loses its Lease"
	// Prompt is the "within seconds" of I2, while nothing fails.
	Prompt = "I2 out of place for too long, while nothing fails"
	// Unsaid means that the ring reports why objects are out of their places.
	Unsaid = "I10 the reason is not reported"
	// Together means that in the end objects that belong together are at one shard.
	Together = "objects with one key are at several shards"
	// Placed means that in the end every object is in its place, or the ring reports why not.
	Placed = "I2 out of place in the end"
	// Converged means that the ring claims convergence then.
	Converged = "I10 the ring does not claim convergence in the end"
	// NoLabel means that objects of resources that have left the ring carry no label.
	NoLabel = "I8 the ring is still there"
	// Dead means that a dead shard loses its Lease.
	Dead = "I2 a dead shard holds its Lease"
	// Remembered means that the status remembers nothing that never existed.
	Remembered = "I8 the status remembers a resource that never existed"
	// Rest means that nothing sends requests without need then.
	Rest = "I5 requests at rest"
)

// beginsWork records that a process begins to work on an object, and checks I1. The lock of the cluster is held.
func (w *Cluster) beginsWork(p *process, uid types.UID, id apiserver.ID) {
	if w.working[uid] == nil {
		w.working[uid] = map[*process]bool{}
	}

	now := w.clock.Now()

	for q := range w.working[uid] {
		if q.id.Name != p.id.Name && !w.tampered[uid][q] && !w.unaware(p, uid, id) && !w.unaware(q, uid, id) &&
			now.Before(q.until) && !now.Before(q.frozen) {
			w.violate(OneWorker, "shard %s begins to work on %s while shard %s does", p.id, id, q.id)
		}
	}

	w.working[uid][p] = true
}

// unaware reports whether a process works on an object as it was before a user gave it to another shard. The lock is
// held.
func (w *Cluster) unaware(p *process, uid types.UID, id apiserver.ID) bool {
	o := p.cache[id]

	return o != nil && o.UID == uid && version(o) < w.overridden[uid]
}

// givenUpFor records that a process is about to release an object on which another process of the same name may work:
// processes that share a name also answer for each other. The lock is held.
func (w *Cluster) givenUpFor(p *process, uid types.UID) {
	for q := range w.working[uid] {
		if q != p && q.id.Name == p.id.Name {
			w.excusedUntilSeen(uid, q)
		}
	}
}

func (w *Cluster) stopsWork(p *process, uid types.UID) {
	delete(w.working[uid], p)
	delete(w.tampered[uid], p)

	if len(w.working[uid]) == 0 {
		delete(w.working, uid)
		delete(w.tampered, uid)
	}
}

// checkTaking checks I6 for a write of a client that follows the protocol. The lock of the cluster is held.
func (w *Cluster) checkTaking(write apiserver.Write) {
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

		switch works := now.Before(p.until) && !now.Before(p.frozen); {
		case p.id.Name != from || l == nil || lease.RecordOf(l).Holder != from || !works:
		case now.Before(w.controlled[write.GroupResource]):
			w.excusedUntilSeen(write.Old.UID, p)
		default:
			w.violate(NoTaking, "%s", write.ID)
		}
	}
}

// pursues records the ring that the rebalancer acts for from now on, with its resources. What it has decided before may
// still be written for a while.
func (w *Cluster) pursues(ring *v1alpha1.ClusterRing, set *resources.Set) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.pursued = ring

	for gr := range served {
		soon := w.clock.Now().Add(lately)
		if _, role, _ := set.Find(gr); role == resources.Controlled {
			w.controlled[gr] = soon.Add(forever)
		} else if soon.Before(w.controlled[gr]) {
			w.controlled[gr] = soon
		}
	}
}

// taken checks that no Lease is taken from a live shard: the shard tries to renew it every few seconds, also after an
// outage.
func (w *Cluster) taken(id types.NamespacedName, was lease.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if p := w.processes[id]; p != nil && was.Holder == id.Name && !p.leaving() &&
		p.began.Add(leaseDuration).Before(w.clock.Now()) && !w.disturbed(p) {
		w.violate(Alive, "shard %s", id)
	}
}

// facts determine where objects belong.
type facts struct {
	ring   *v1alpha1.ClusterRing
	view   *membership.View
	teams  map[string]string
	served map[schema.GroupResource]apiserver.Served
	// selector selects the ring's namespaces.
	selector labels.Selector
}

// actual returns the current facts.
func (w *Cluster) actual() facts {
	all := w.server.Resources()

	w.mu.Lock()
	defer w.mu.Unlock()

	return facts{ring: w.ring, view: w.view(), teams: maps.Clone(w.teams), served: all}
}

// outOfPlace returns the objects that are out of their places, with the reason.
func (w *Cluster) outOfPlace(f facts) map[apiserver.ID]string {
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

// wrong returns what is wrong with the place of one object; empty if the object is in its place.
func (f facts) wrong(
	set *resources.Set, id apiserver.ID, o *metav1.PartialObjectMetadata,
	all map[apiserver.ID]*metav1.PartialObjectMetadata,
) string {
	is, belongs := o.Labels[shardLabel], false
	_, drain := o.Labels[drainLabel]

	var (
		want  string
		owner *resources.Owner
	)

	if set != nil {
		if r, role, ok := set.Find(id.GroupResource); ok {
			// stored returns no errors
			kin, ok, _ := set.KinOf(context.Background(), resources.Subject{Resource: r, Role: role, Object: o},
				stored(func(id apiserver.ID) *metav1.PartialObjectMetadata { return all[id] }))
			owner, belongs = kin.Owner, ok && f.covers(r, id.Namespace) && (role != resources.Main || r.Selects(o.Labels)) &&
				!kin.Unselected && (!kin.Orphaned || is != "")
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
		at, exists := all[apiserver.ID{GroupResource: owner.Resource.GroupResource(), Namespace: owner.Namespace,
			Name: owner.Name}]
		if !exists || at.UID != owner.UID {
			want = is
			if !f.view.Works(is) {
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
	// audit is how long an object with a shard label may be out of place without being detected. silence is how long an
	// object without a shard label may be: a watch that has become blind is trusted that long.
	audit   = 90 * time.Second
	silence = 210 * time.Second
	// prompt is how long the move of an object that is known to be out of place may take while nothing else happens: the
	// longest pause between two attempts, and some seconds.
	prompt = 50 * time.Second
	// triedAgain is the time after which everything that failed was retried, and everything that waited for it has had its
	// turn.
	triedAgain = 75 * time.Second
	// known is the longest duration of a Lease with which the death of its shard must be known in the end.
	known = time.Minute
	// bound is the time after all disturbances within which everything must recover.
	bound = 8 * time.Minute
	// resting is how long the time of rest lasts.
	resting = 4 * time.Minute
)

// lies checks whether a ring claims convergence wrongly, of all or of one resource. since contains when each object was
// first seen out of place.
func (w *Cluster) lies(since map[apiserver.ID]time.Time) {
	f, claims := w.steward.claim()
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

		if claims.ConvergedFor(id.GroupResource) && now.Sub(since[id]) > unseen && w.h.Lasting != Flapping {
			w.mu.Lock()
			w.violate(Honest, "%s is %s, since %s", id, wrong[id], since[id].Sub(w.begun))
			w.mu.Unlock()

			since[id] = now.Add(time.Hour) // report it once
		}

		if calm && now.Sub(since[id]) > prompt && w.shouldMove(id, f) {
			w.fail(Prompt, "%s is %s, since %s", id, wrong[id], since[id].Sub(w.begun))

			since[id] = now.Add(time.Hour)
		}
	}
}

// calm reports whether for some time nothing has happened for which anything would have to wait.
func (w *Cluster) calm() bool {
	now := w.now()

	return (w.h.Lasting == Fine || w.h.Lasting == HungShard || w.h.Lasting == Stuck || w.h.Lasting == Hanging) &&
		!slices.ContainsFunc(w.h.Steps, func(s Step) bool {
			after := prompt

			switch {
			case s.For == forever && (s.Act == Hang || s.Act == Disturb && s.Fault.Effect == apiserver.Hang):
				after = prompt - forever // all objects except those of the shard or the resource have to move anyway
			case s.Act == Disturb && s.Fault.Client != "" && s.Fault.Client != "rebalancer":
			case s.Act == Disturb && (s.Fault.Effect == apiserver.Blind || s.Fault.Effect == apiserver.Hang ||
				s.Fault.Effect == apiserver.Stall):
				after = silence
			case s.Act == Disturb:
				after = triedAgain
			}

			return s.At <= now && now <= s.At+s.For+after
		})
}

// shouldMove reports whether nothing prevents the move of an object that is out of place, and no audit is needed to
// find it.
func (w *Cluster) shouldMove(id apiserver.ID, f facts) bool {
	o := w.server.Object(id)
	if o == nil || f.ring == nil || w.hangs(id, o) || w.outlives(o.Labels[shardLabel]) {
		return false
	}

	line := w.line(id, o)
	waits := w.followed(id, func(_ apiserver.ID, o *metav1.PartialObjectMetadata) bool {
		return o.Labels[shardLabel] != "" && !f.view.Works(o.Labels[shardLabel])
	})

	var ownerAt *metav1.PartialObjectMetadata
	if len(line) > 0 {
		ownerAt = w.server.Object(line[len(line)-1])
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	touched := slices.ContainsFunc(append(line, id), func(id apiserver.ID) bool { return w.touched[id.String()] })

	is := o.Labels[shardLabel]
	if is == "" { // but nothing can follow an owner that cannot be taken yet, or move before a follower that cannot move
		return !waits && (ownerAt == nil || ownerAt.Labels[shardLabel] == "" || f.view.Works(ownerAt.Labels[shardLabel]))
	}

	hangs := w.h.Lasting == HungShard && (is == w.h.Whom || ownerAt != nil && ownerAt.Labels[shardLabel] == w.h.Whom) ||
		w.h.Lasting == Stuck && slices.Contains(append(line, id), w.stuck)

	if ownerAt != nil && !f.view.Works(ownerAt.Labels[shardLabel]) {
		return false // the owner is about to get a shard, or is late itself
	}

	return !hangs && !touched && f.view.Works(is)
}

// hampered reports whether requests of the rebalancer have recently failed in a way that may delay an audit.
func (w *Cluster) hampered() bool {
	now := w.now()

	return slices.ContainsFunc(w.h.Steps, func(s Step) bool {
		return s.Act == Disturb && (s.Fault.Client == "" || s.Fault.Client == "rebalancer") && s.At <= now &&
			now <= s.At+s.For+silence
	})
}

// final checks what has to hold in the end. It reports whether there is rest then: whether the history has a lasting
// fault, or every object is in its place.
func (w *Cluster) final() (rests bool) {
	f := w.actual()
	wrong := w.outOfPlace(f)
	_, claims := w.steward.claim()
	report, running := w.steward.report()
	excused := 0

	for _, id := range sortedKeys(wrong) {
		o := w.server.Object(id)
		if o == nil {
			continue
		}

		switch said, is := w.excuse(id, o, f); {
		case !is:
			w.fail(Placed, "%s is %s; the engine reports: %+v", id, wrong[id], report)
		case !said(report):
			w.fail(Unsaid, "%s is %s; the engine reports: %+v", id, wrong[id], report)
		default:
			excused++
		}
	}

	calm := excused == 0 && (w.h.Lasting == Fine || w.h.Lasting == SlowAdmission ||
		w.h.Lasting != Flapping && len(report.Failures) == 0 && len(report.Hanging) == 0 &&
			report.Late == 0 && report.Blocked == 0)

	switch {
	case f.ring != nil && f.ring.DeletionTimestamp != nil && calm:
		w.fail(NoLabel, "the engine runs: %t; it reports: %+v", running, report)
	case f.ring != nil && f.ring.DeletionTimestamp == nil && !claims.Converged && calm:
		w.fail(Converged, "the engine reports: %+v", report)
	case f.ring != nil && f.ring.DeletionTimestamp == nil && calm && !f.misspelt() &&
		fingerprintOf(f.ring) != f.view.Fingerprint():
		w.fail(Converged, "the status does not say so")
	}

	if f.ring != nil && f.ring.Status.Assignment != nil && calm && !f.misspelt() {
		for gr := range resources.Recorded(f.ring.Status.Assignment) {
			if _, is := served[gr]; !is {
				w.fail(Remembered, "%s", gr)
			}
		}
	}

	if f.ring != nil && f.ring.DeletionTimestamp == nil && claims.Converged && calm &&
		len(f.view.AvailableShards()) > 0 {
		w.together(f)
	}

	w.buriedShards()

	return excused == 0 || w.h.Lasting != Fine && w.h.Lasting != SlowAdmission
}

// misspelt reports whether the ring names a resource that does not exist.
func (f facts) misspelt() bool {
	for gr := range resources.Named(f.ring.Spec.Resources) {
		if _, is := f.served[gr]; !is {
			return true
		}
	}

	return false
}

// buriedShards checks that no long-dead shard holds a Lease, unless somebody has made the duration of the Lease so long
// that its death cannot be known yet.
func (w *Cluster) buriedShards() {
	w.mu.Lock()
	defer w.mu.Unlock()

	for _, id := range sortedKeys(w.leases) {
		record := lease.RecordOf(w.leases[id])
		if record.HeldBy(id.Name) && record.Duration <= known && w.processes[id] == nil && w.h.Lasting != Flapping {
			w.violate(Dead, "shard %s", id)
		}
	}
}

// fail records a violation in the end.
func (w *Cluster) fail(property, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.violate(property, format, args...)
}

// rest checks the requests during the time of rest, and how often the engine has announced a new report.
func (w *Cluster) rest(before, after map[string]int, news int) {
	objects := 0
	w.server.Objects(func(apiserver.ID, *metav1.PartialObjectMetadata) { objects++ })

	w.mu.Lock()
	defer w.mu.Unlock()

	if news > 5*int(resting/time.Minute) && (w.h.Lasting == Fine || w.h.Lasting == SlowAdmission) {
		w.violate(Rest, "the engine has announced %d new reports", news)
	}

	for _, what := range slices.Sorted(maps.Keys(after)) {
		n := after[what] - before[what]
		if n > 0 && strings.HasPrefix(what, "rebalancer ") && n > w.allowed(what, objects) {
			w.violate(Rest, "%d times %s", n, what)
		}
	}
}

// allowed returns how often a request may be sent during the time of rest, depending on the lasting fault.
func (w *Cluster) allowed(what string, objects int) int {
	const audits = int(resting / (45 * time.Second))

	verb := strings.Fields(what)[1]

	switch {
	case w.h.Lasting == Flapping:
		return 10_000 // there is no rest
	case strings.Contains(what, "discovery") || strings.HasSuffix(what, rings.String()):
		return int(resting/(2*time.Second)) + 1 // while a resource is missing
	case w.h.Lasting == Namesakes && verb == "list":
		return int(resting/time.Second) + 8*audits // lists of Leases
	case w.h.Lasting == Namesakes && verb == "get":
		return int(resting / time.Second) // one of all objects that wait checks whether it can move
	case (w.h.Lasting == HungShard || w.h.Lasting == Stuck) && verb == "get":
		return 20 * int(resting/limits.DrainTimeout)
	case w.h.Lasting == Hanging && (strings.HasSuffix(what, " "+w.h.Whom) && verb != "list" || verb == "get"):
		return 8 * int(resting/(30*time.Second)) // a few of all objects try, and owners are read before
	case w.h.Lasting == Hanging && strings.HasPrefix(verb, "watch"):
		return audits + int(resting/(30*time.Second)) // those whose writes were executed need to know their followers
	case w.h.Lasting == Hanging && verb == "patch":
		return int(resting / (30 * time.Second)) // what follows them
	case w.h.Lasting == Refused:
		return max(12, objects) * (1 + int(resting/(22*time.Second))) // the longest pause of each that waits
	case verb == "list":
		return 8 * audits // pages
	case verb == "watchlist", verb == "watch":
		return audits
	}

	return 0
}
