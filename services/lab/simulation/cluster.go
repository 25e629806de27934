package simulation

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
	"github.com/clusterring/clusterring/services/rebalancer/move"
)

// tables are the hash rings of all clusters: they depend only on the names of shards, of which there are few.
var tables = hashring.NewCache(256)

// Cluster is the simulated cluster in which a history runs.
type Cluster struct {
	h      History
	clock  clock.Clock
	begun  time.Time
	server *apiserver.Server
	group  sync.WaitGroup

	assigners []*assigner
	steward   *steward
	monitor   *monitor

	// mu is held only briefly, and never during a call of the server.
	mu        sync.Mutex
	lines     []string
	ring      *v1alpha1.ClusterRing   // nil if there is none; the stored object never changes
	labelled  []v1alpha1.RingResource // the resources that may carry its labels
	pursued   *v1alpha1.ClusterRing   // the ring as the rebalancer's engine knows it; nil before the first
	ringsMade int
	told      int
	asked     int
	admitted  bool // whether the assigner has labeled the object that is being written
	assigned  bool // whether the label was correct
	// whether the assigner has asked the shard for the object that is being written, because of its new key
	drained    bool
	ringSeen   []func(r *v1alpha1.ClusterRing)
	teams      map[string]string
	teamSeen   []func(name, team string)
	leases     map[types.NamespacedName]*coordinationv1.Lease
	processes  map[types.NamespacedName]*process
	working    map[types.UID]map[*process]bool
	tampered   map[types.UID]map[*process]bool
	overridden map[types.UID]int64 // the last version that was written by a user who follows no protocol
	unrelated  map[types.UID]schema.GroupResource
	controlled map[schema.GroupResource]time.Time // until when the rebalancer may think that a resource is controlled
	touched    map[string]bool
	changed    map[types.UID]time.Time // the last write of a user
	givenUp    map[types.UID]time.Time // when an object last lost its shard
	moved      map[types.UID]time.Time // when the rebalancer has last given an object another shard
	noWebhook  time.Time
	stuck      apiserver.ID // the object that its shard does not release
	buried     map[apiserver.ID]*metav1.PartialObjectMetadata
	violations []string
	over       bool
}

// newCluster returns a cluster in which nothing has happened yet. It must be called in a bubble.
func newCluster(h History) *Cluster {
	w := &Cluster{
		h: h, clock: clock.RealClock{}, teams: map[string]string{},
		leases:    map[types.NamespacedName]*coordinationv1.Lease{},
		processes: map[types.NamespacedName]*process{},
		working:   map[types.UID]map[*process]bool{}, tampered: map[types.UID]map[*process]bool{},
		overridden: map[types.UID]int64{},
		unrelated:  map[types.UID]schema.GroupResource{}, touched: map[string]bool{}, changed: map[types.UID]time.Time{},
		controlled: map[schema.GroupResource]time.Time{}, givenUp: map[types.UID]time.Time{},
		moved: map[types.UID]time.Time{}, buried: map[apiserver.ID]*metav1.PartialObjectMetadata{},
	}
	w.begun = w.clock.Now()

	config := apiserver.Config{Seed: h.Seed, Page: h.Page, Streaming: h.Streaming, Admit: w.admit, Written: w.written}
	if h.Verbose {
		config.Asked = func(client, verb, resource, what string) {
			if strings.HasPrefix(client, "rebalancer/") {
				w.say("%s: %s %s %s", client, verb, resource, what)
			}
		}
	}

	w.server = apiserver.New(config)

	for gr, how := range served {
		w.server.Serve(gr, how)
	}

	maps.Copy(w.teams, namespaces)

	w.makeRing(h.Spec)

	return w
}

// start runs the services until ctx ends.
func (w *Cluster) start(ctx context.Context) {
	w.server.FollowLeases("world", func(id types.NamespacedName, l *coordinationv1.Lease, _ time.Duration) {
		w.mu.Lock()
		defer w.mu.Unlock()

		if old := w.leases[id]; old == nil || l == nil || holderOf(old) != holderOf(l) {
			w.note("Lease %s is %s", id, holderOf(l))
		}

		keep(w.leases, id, l)
	})

	served := discovery{w.server.Client("assigner/0")}
	known := resources.NewResolver(served.GroupsAndResources, clock.RealClock{}, logr.Discard())
	w.group.Go(func() { _ = known.Start(ctx) })

	for i := range 2 {
		w.assigners = append(w.assigners, newAssigner(w, fmt.Sprintf("assigner/%d", i), known))
	}

	w.group.Go(func() { w.collect(ctx) })

	w.monitor = newMonitor(w)
	w.group.Go(func() { w.monitor.run(ctx) })

	w.steward = newSteward(w)
	w.group.Go(func() { w.steward.run(ctx) })
}

func holderOf(l *coordinationv1.Lease) string {
	if l == nil {
		return "deleted"
	}

	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
		return "released"
	}

	return "held by " + *l.Spec.HolderIdentity
}

// now returns the time since the beginning.
func (w *Cluster) now() time.Duration { return w.clock.Since(w.begun) }

// note adds a line to the trace. mu is held.
func (w *Cluster) note(format string, args ...any) {
	if w.over {
		return
	}

	w.lines = append(w.lines, fmt.Sprintf("%12.6fs  ", w.now().Seconds())+fmt.Sprintf(format, args...))
}

// say adds a line to the trace.
func (w *Cluster) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.note(format, args...)
}

// violate records that a property was violated. mu is held.
func (w *Cluster) violate(property, format string, args ...any) {
	text := property + ": " + fmt.Sprintf(format, args...)
	w.note("VIOLATED %s", text)
	w.violations = append(w.violations, text)
}

// written is called for every change of an object, with the lock of the server held.
func (w *Cluster) written(write apiserver.Write) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.note("%s %ss %s: %s -> %s", write.Client, write.Verb, write.ID, placed(write.Old), placed(write.New))

	if write.Old != nil && write.New != nil && write.Old.Labels[shardLabel] != "" && write.New.Labels[shardLabel] == "" {
		w.givenUp[write.New.UID] = w.clock.Now()
	}

	if strings.HasPrefix(write.Client, "user/") || strings.HasPrefix(write.Client, "gc/") {
		if write.New != nil {
			w.changed[write.New.UID] = w.clock.Now()
		}

		w.tamper(write)
	} else {
		if write.Old == nil {
			w.made(write)
		}

		w.checkTaking(write)
		w.checkOrder(write)
	}
}

func placed(o *metav1.PartialObjectMetadata) string {
	if o == nil {
		return "nothing"
	}

	text := "no shard"
	if shard, ok := o.Labels[shardLabel]; ok {
		text = shard
	}

	if drain, ok := o.Labels[drainLabel]; ok {
		text += " draining:" + drain
	}

	for _, r := range o.OwnerReferences {
		text += " of " + r.Name
	}

	return text + " v" + o.ResourceVersion
}

// tamper records a write by somebody who follows no protocol: a shard that works on the object now may continue until
// it has seen the write. mu is held.
func (w *Cluster) tamper(write apiserver.Write) {
	if write.Old != nil && write.New != nil && rekeyed(write) && w.samePlace(write.Old, write.New) {
		return // that is allowed at any time, and excuses nobody
	}

	for _, o := range []*metav1.PartialObjectMetadata{write.Old, write.New} {
		if o == nil {
			continue
		}

		for p := range w.working[o.UID] {
			w.excusedUntilSeen(o.UID, p)
		}
	}

	if write.New == nil {
		return
	}

	if write.Old != nil && !w.samePlace(write.Old, write.New) {
		w.overridden[write.New.UID] = version(write.New)
	}

	if write.Old == nil && labelled(write.New) && !w.assigned || write.Old != nil && !w.samePlace(write.Old, write.New) {
		w.touch(write.ID)
	}

	// The ring is not concerned with labels that a user writes on objects of resources that it does not remember, or that
	// are about to leave.
	if labelled(write.New) && (write.Old == nil || !labelled(write.Old)) && !w.admitted &&
		!w.concerned(write.GroupResource) {
		w.unrelated[write.New.UID] = write.GroupResource
	}
}

// excusedUntilSeen records that a process may continue to work on an object until it has seen that the object has
// moved. mu is held.
func (w *Cluster) excusedUntilSeen(uid types.UID, p *process) {
	if w.tampered[uid] == nil {
		w.tampered[uid] = map[*process]bool{}
	}

	w.tampered[uid][p] = true
}

// rekeyed reports whether a write changes the label that may be the key of the object.
func rekeyed(write apiserver.Write) bool {
	return write.Old != nil && write.New != nil && write.Old.Labels[keyLabel] != write.New.Labels[keyLabel]
}

// samePlace reports whether somebody who follows no protocol has changed nothing that determines where an object is or
// belongs. mu is held.
func (w *Cluster) samePlace(a, b *metav1.PartialObjectMetadata) bool {
	x, y := metav1.GetControllerOfNoCopy(a), metav1.GetControllerOfNoCopy(b)

	return a.Labels[shardLabel] == b.Labels[shardLabel] && (w.drained || a.Labels[drainLabel] == b.Labels[drainLabel]) &&
		(x == nil && y == nil || x != nil && y != nil && x.UID == y.UID)
}

// labelled reports whether the object carries a label of the ring.
func labelled(o *metav1.PartialObjectMetadata) bool {
	_, shard := o.Labels[shardLabel]
	_, drain := o.Labels[drainLabel]

	return shard || drain
}

// concerned reports whether the ring cares for objects of the resource permanently: it names the resource, and its
// status knows. mu is held.
func (w *Cluster) concerned(gr schema.GroupResource) bool {
	if w.ring == nil || w.ring.DeletionTimestamp != nil {
		return false
	}

	_, names := roleIn(w.ring.Spec.Resources, gr)

	return names && resources.Recorded(w.ring.Status.Assignment).Has(gr)
}

func roleIn(list []v1alpha1.RingResource, gr schema.GroupResource) (role resources.Role, ok bool) {
	for i := range list {
		r := &list[i]
		if (schema.GroupResource{Group: r.Group, Resource: r.Resource}) == gr {
			return resources.Main, true
		}

		for _, c := range r.ControlledResources {
			if (schema.GroupResource{Group: c.Group, Resource: c.Resource}) == gr {
				role, ok = resources.Controlled, true
			}
		}
	}

	return role, ok
}

// view returns the view of the current Leases. mu is held.
func (w *Cluster) view() *membership.View { return viewOf(w.leases) }

func viewOf(leases map[types.NamespacedName]*coordinationv1.Lease) *membership.View {
	all := make([]*coordinationv1.Lease, 0, len(leases))
	for _, l := range leases {
		all = append(all, l)
	}

	return membership.NewView(ringName, all, tables)
}

// setRing replaces the ring; nil deletes it. All services that follow rings learn this later. mu is held.
func (w *Cluster) setRing(r *v1alpha1.ClusterRing) {
	w.ring, w.labelled = r, nil
	if r != nil {
		spec, _ := move.ScopeOf(r)
		w.labelled = spec.Resources
	}

	// The rebalancer cares for the objects of these resources, no matter who has labeled them.
	maps.DeleteFunc(w.unrelated, func(_ types.UID, gr schema.GroupResource) bool { return w.concerned(gr) })

	for _, seen := range w.ringSeen {
		seen(r)
	}
}

func (w *Cluster) makeRing(spec int) {
	w.ringsMade++
	r := &v1alpha1.ClusterRing{Spec: w.h.spec(spec)}
	r.Name, r.UID, r.Generation = ringName, types.UID(fmt.Sprintf("ring-%d", w.ringsMade)), 1
	w.setRing(r)
}

// followRing calls seen through the feed for the current ring and for each change.
func (w *Cluster) followRing(client string, f *courier, seen func(r *v1alpha1.ClusterRing)) {
	hand := func(r *v1alpha1.ClusterRing) { f.put(w.lag(client, rings), func() { seen(r) }) }

	w.mu.Lock()
	defer w.mu.Unlock()

	w.ringSeen = append(w.ringSeen, hand)
	hand(w.ring)
}

// followTeams does the same for every namespace.
func (w *Cluster) followTeams(client string, f *courier, seen func(name, team string)) {
	hand := func(name, team string) {
		f.put(w.lag(client, schema.GroupResource{Resource: "namespaces"}), func() { seen(name, team) })
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	w.teamSeen = append(w.teamSeen, hand)

	for _, name := range slices.Sorted(maps.Keys(w.teams)) {
		hand(name, w.teams[name])
	}
}

// lag returns the delay after which a client learns a change of something that the server does not store. mu is held.
func (w *Cluster) lag(client string, gr schema.GroupResource) time.Duration {
	w.told++

	class, _, _ := strings.Cut(client, "/")
	lag := time.Millisecond + time.Duration(chance(w.h.Seed, "lag "+client, w.told)%uint64(30*time.Millisecond))

	for _, s := range w.h.Steps {
		f, now := s.Fault, w.now()
		if s.Act == Disturb && f.Effect == apiserver.Stall && (f.Client == "" || f.Client == class) &&
			(f.Resource == "" || f.Resource == gr.String()) && now >= s.At && now < s.At+s.For {
			lag = max(lag, s.At+s.For-now)
		}
	}

	return lag
}

// chance returns a number that depends on the seed, a text and a number.
func chance(seed uint64, text string, n int) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %d", seed, text, n)

	return rand.New(rand.NewPCG(h.Sum64(), seed)).Uint64() //nolint:gosec // it has to be reproducible
}

// sortedKeys returns the keys of a map, sorted by their text.
func sortedKeys[K interface {
	comparable
	fmt.Stringer
}, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}

	slices.SortFunc(keys, func(a, b K) int { return strings.Compare(a.String(), b.String()) })

	return keys
}

// courier delivers news late, but in order.
type courier struct {
	clock clock.WithDelayedExecution

	mu      sync.Mutex
	last    time.Time // when the last news is due
	telling sync.Mutex
}

func newCourier() *courier { return &courier{clock: clock.RealClock{}} }

// put schedules a call of tell after the delay, and after everything that was put before. It may be called with any
// lock held.
func (f *courier) put(delay time.Duration, tell func()) {
	f.mu.Lock()
	defer f.mu.Unlock()

	now := f.clock.Now()
	if due := now.Add(delay); due.After(f.last) {
		f.last = due
	} else {
		f.last = f.last.Add(1)
	}

	f.clock.AfterFunc(f.last.Sub(now), func() {
		f.telling.Lock()
		defer f.telling.Unlock()

		tell()
	})
}

// pause waits for the time, for a message on wake, or for the end of ctx.
func pause(ctx context.Context, c clock.Clock, d time.Duration, wake <-chan struct{}) {
	timer := c.NewTimer(max(d, 1))
	defer timer.Stop()

	select {
	case <-timer.C():
	case <-wake:
	case <-ctx.Done():
	}
}
