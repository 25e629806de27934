package simulation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
)

// drawing is a history that is being drawn.
type drawing struct {
	*rand.Rand
	h      History
	length time.Duration
	mains  []apiserver.ID
	others []apiserver.ID
	shards []string
}

// Draw returns the history of a seed.
func Draw(seed uint64) History {
	d := &drawing{Rand: rand.New(rand.NewPCG(seed, 0x5eed))} //nolint:gosec // it has to be reproducible
	d.length = time.Duration(1+d.IntN(8)) * time.Minute
	d.h = History{Seed: seed, Page: pick(d, 0, 3, 7), Streaming: d.IntN(4) > 0, Crowd: d.IntN(4) == 0, End: d.length}

	if d.IntN(3) > 0 {
		d.h.Spec = d.IntN(len(specs))
	}

	d.begin()

	for _, act := range []func(){d.disturbShards, d.disturbUsers, d.disturbRing, d.disturbResources, d.disturbServers,
		d.disturbServices} {
		if d.IntN(5) > 1 {
			act()
		}
	}

	d.last()

	if d.IntN(2) == 0 {
		d.storm()
	}

	if d.h.Keyed = chance(seed, "keyed", 0)%4 == 0; d.h.Keyed {
		d.Rand = rand.New(rand.NewPCG(seed, 0x4e75)) //nolint:gosec // as above; the other draws do not change
		d.disturbKeys()
	}

	if chance(seed, "makes", 0)%3 == 0 {
		d.Rand = rand.New(rand.NewPCG(seed, 0xc41d)) //nolint:gosec // as above
		d.makeChildren()
	}

	d.h.End += time.Second
	slices.SortStableFunc(d.h.Steps, func(a, b Step) int { return int(a.At - b.At) })

	return d.h
}

func pick[T any](d *drawing, from ...T) T { return from[d.IntN(len(from))] }

// at draws a time at which something may happen.
func (d *drawing) at() time.Duration {
	// It is often shortly after another event, because that causes the most problems.
	if n := len(d.h.Steps); n > 0 && d.IntN(2) == 0 {
		return min(d.length, d.h.Steps[d.IntN(n)].At+time.Duration(d.Int64N(int64(3*time.Second))))
	}

	return time.Duration(d.Int64N(int64(d.length)))
}

// span draws how long something may last.
func (d *drawing) span() time.Duration {
	return pick(d, 200*time.Millisecond, 2*time.Second, 10*time.Second, 40*time.Second, 2*time.Minute) +
		time.Duration(d.Int64N(int64(time.Second)))
}

func (d *drawing) step(s Step) {
	if s.At+s.For > d.h.End {
		d.h.End = s.At + s.For
	}

	d.h.Steps = append(d.h.Steps, s)
}

// begin draws the initial cluster: shards and objects.
func (d *drawing) begin() {
	for i := range 2 + d.IntN(3) {
		name := fmt.Sprintf("shard-%c", 'a'+i)
		d.shards = append(d.shards, name)

		if i < 2 || d.IntN(2) == 0 {
			d.step(Step{At: time.Duration(1 + d.Int64N(int64(time.Second))), Act: Join, Who: name, N: d.IntN(3)})
		}
	}

	for i := range 4 + d.IntN(10) {
		gr := pick(d, websites, websites, databases, tenants)
		d.mains = append(d.mains, object(gr, pick(d, "n1", "n1", "n2", "n3"), fmt.Sprintf("%s-%d", gr.Resource[:1], i)))
	}

	for i := range 3 + d.IntN(10) {
		gr := pick(d, configMaps, configMaps, secrets)
		d.others = append(d.others, object(gr, pick(d, "n1", "n1", "n2", "n3", "kube-system"),
			fmt.Sprintf("%s-%d", gr.Resource[:1], i)))
	}

	for _, id := range slices.Concat(d.mains, d.others) {
		if d.IntN(6) > 0 {
			at := time.Duration(1+d.Int64N(int64(5*time.Second))) + 100*time.Millisecond
			if slices.Contains(d.others, id) {
				at += 6 * time.Second // after its owner
			}

			d.step(d.create(id, at))
		}
	}
}

func object(gr schema.GroupResource, namespace, name string) apiserver.ID {
	if !served[gr].Namespaced {
		namespace = ""
	}

	return apiserver.ID{GroupResource: gr, Namespace: namespace, Name: name}
}

func (d *drawing) create(id apiserver.ID, at time.Duration) Step {
	s := Step{At: at, Act: Create, Object: id, Around: d.IntN(3) == 0}

	if slices.Contains(d.others, id) && d.IntN(4) > 0 {
		s.Owner = d.owner(id)
	}

	if d.IntN(8) == 0 {
		s.Value = d.label()
	}

	return s
}

// owner draws an object that may own another one: a main object of the same namespace, or a cluster-scoped one;
// sometimes a ConfigMap that owns a Secret.
func (d *drawing) owner(of apiserver.ID) apiserver.ID {
	main := d.main(of)

	between := slices.DeleteFunc(slices.Clone(d.others), func(id apiserver.ID) bool {
		return id.GroupResource != configMaps || id.Namespace != of.Namespace
	})
	// independent of the other draws, which must not change
	drawn := chance(d.h.Seed, "who owns "+of.String(), len(d.h.Steps))

	if of.GroupResource == secrets && len(between) > 0 && drawn%2 == 0 {
		return between[drawn/2%uint64(len(between))]
	}

	return main
}

// main draws a main object that may own the object.
func (d *drawing) main(of apiserver.ID) apiserver.ID {
	fits := slices.DeleteFunc(slices.Clone(d.mains), func(id apiserver.ID) bool {
		return id.Namespace != "" && id.Namespace != of.Namespace
	})
	if len(fits) == 0 {
		return apiserver.ID{}
	}

	return fits[d.IntN(len(fits))]
}

// label draws a shard that somebody may write.
func (d *drawing) label() string {
	return pick(d, d.shards[d.IntN(len(d.shards))], d.shards[d.IntN(len(d.shards))], "shard-unknown")
}

func (d *drawing) disturbShards() {
	for range 1 + d.IntN(8) {
		s := Step{At: d.at(), Act: pick(d, Join, Join, Leave, Crash, Crash, Freeze, Hang),
			Who: d.shards[d.IntN(len(d.shards))]}

		switch s.Act { //nolint:exhaustive // the others need no parameters
		case Join:
			s.N = d.IntN(3)

			if d.IntN(6) == 0 {
				s.Value = "n2" // a namesake
				d.step(s)
				s = Step{At: s.At + d.span(), Act: pick(d, Leave, Crash), Who: s.Who, Value: s.Value}
			}
		case Freeze, Hang:
			s.For = d.span()
		}

		d.step(s)

		if s.Act == Leave || s.Act == Crash {
			if d.IntN(2) == 0 {
				d.step(Step{At: s.At + d.span(), Act: Join, Who: s.Who, N: d.IntN(3)})
			}
		}
	}
}

func (d *drawing) disturbUsers() {
	all := slices.Concat(d.mains, d.others)

	for range 1 + d.IntN(15) {
		id := all[d.IntN(len(all))]
		s := Step{
			At: d.at(), Object: id, Around: d.IntN(3) == 0,
			Act: pick(d, Create, Create, Restore, Delete, Orphan, Relabel, Relabel, Drain, Undrain, Reparent, Touch,
				Touch, Touch),
		}

		switch s.Act { //nolint:exhaustive // the others need no parameters
		case Create, Restore:
			act := s.Act
			s = d.create(id, s.At)
			s.Act = act

			if act == Restore && d.IntN(2) == 0 {
				s.Value = d.label()
			}
		case Relabel:
			s.Value = pick(d, "", d.label(), d.label())
		case Reparent:
			if s.Object = d.others[d.IntN(len(d.others))]; d.IntN(4) > 0 {
				s.Owner = d.owner(s.Object)
			}
		case Touch:
			s.N = pick(d, 1, 20, 200, 200, 1000, 3000)
		}

		d.step(s)
	}
}

// disturbKeys makes users change the labels that are the keys of objects, of some of them again and again.
func (d *drawing) disturbKeys() {
	for range 2 + d.IntN(12) {
		d.step(Step{
			At: d.at(), Act: Rekey, Object: d.mains[d.IntN(len(d.mains))], Around: d.IntN(6) == 0,
			Value: pick(d, "", "customer-1", "customer-2", "customer-3"),
		})
	}

	for range d.IntN(3) { // only the keys change, unless another spec was drawn in the meantime
		d.step(Step{At: d.at(), Act: EditRing, N: d.h.Spec + len(specs)*(1+d.IntN(5))})
	}
}

func (d *drawing) disturbRing() {
	for range 1 + d.IntN(4) {
		switch d.IntN(6) {
		case 0:
			s := Step{At: d.at(), Act: DeleteRing}
			d.step(s)

			if d.IntN(3) > 0 {
				d.step(Step{At: s.At + d.span(), Act: CreateRing, N: d.IntN(len(specs))})
			}
		case 1:
			d.step(Step{At: d.at(), Act: Team, Who: pick(d, "n1", "n2", "n3"), Value: pick(d, "a", "b")})
		default:
			d.step(Step{At: d.at(), Act: EditRing, N: d.IntN(len(specs))})
		}
	}
}

func (d *drawing) disturbResources() {
	for range 1 + d.IntN(3) {
		gr := pick(d, websites, websites, databases, tenants, configMaps)
		s := Step{At: d.at(), Object: apiserver.ID{GroupResource: gr}}

		switch d.IntN(6) {
		case 0:
			s.Act, s.For = Withdraw, time.Duration(1+d.Int64N(int64(800*time.Millisecond)))
		case 2:
			s.Act, s.For = Break, d.span()
		case 3:
			if s.Act, s.For = Remove, d.span(); gr == configMaps {
				continue
			}
		case 1:
			if s.Act = Rescope; gr == configMaps {
				continue
			}
		default:
			s.Act, s.Value, s.N = Serve, pick(d, "v1", "v2"), d.IntN(2)

			if gr == configMaps {
				continue
			}
		}

		d.step(s)
	}
}

func (d *drawing) disturbServers() {
	for range 1 + d.IntN(6) {
		s := Step{At: d.at(), Act: Disturb, For: d.span(), Fault: apiserver.Fault{
			Client:   pick(d, "rebalancer", "rebalancer", "rebalancer", "shard", "monitor", ""),
			Resource: pick(d, "", websites.String(), configMaps.String(), databases.String(), "leases.coordination.k8s.io"),
		}}
		f := &s.Fault

		switch d.IntN(8) {
		case 0, 1:
			f.Effect, f.Verb = apiserver.Refuse, pick(d, "write", "write", "list", "watch", "get", "")
			f.Code = pick(d, 403, 404, 429, 500, 500, 503, 504)
		case 2:
			f.Effect, f.Verb = apiserver.Lose, "write"
		case 3:
			f.Effect, f.Verb = apiserver.Hang, pick(d, "write", "list", "watch", "get", "")
		case 4:
			f.Effect, f.Verb = apiserver.Slow, pick(d, "write", "write", "list", "get")
			f.Delay = pick(d, 300*time.Millisecond, 1200*time.Millisecond, 1200*time.Millisecond, 4*time.Second)
		case 5:
			f.Effect, f.Client = apiserver.Blind, "rebalancer"
		case 6:
			f.Effect = apiserver.Stall
			f.Client = pick(d, "rebalancer", "shard", "assigner", "assigner", "monitor", "")
		default:
			s = Step{At: s.At, Act: pick(d, Cut, Cut, Compact), Who: "rebalancer", Value: pick(d, "closed", "expired", "failed")}
		}

		if f.Effect == apiserver.Refuse || f.Effect == apiserver.Hang {
			f.Percent = pick(d, 0, 0, 50)
		}

		d.step(s)
	}
}

func (d *drawing) disturbServices() {
	for range 1 + d.IntN(3) {
		d.step(Step{
			At: d.at(), For: d.span(), Act: pick(d, RestartRebalancer, RestartRebalancer, RestartMonitor,
				NoAdmission, NoAdmission),
		})
	}
}

// making is how long a shard at most works on a main object before it creates what follows the object.
const making = 3 * time.Second

// make lets the shard that works on a main object create an object that follows it. Nothing happens if there is no such
// shard.
func (w *Cluster) make(s Step) {
	owner := w.scoped(s.Owner)

	w.mu.Lock()

	p := w.worker(owner)
	if p != nil {
		p.makes[owner]++
	}
	w.mu.Unlock()

	if p == nil {
		return
	}

	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()

		p.makes[owner]--
	}()

	references := w.references(s)
	pause(p.ctx, w.clock, time.Duration(chance(w.h.Seed, "makes "+s.Object.String(), int(s.At))%uint64(making)), nil)

	w.mu.Lock()
	until := p.until
	w.mu.Unlock()

	if references == nil || !p.thaw(p.ctx) || !p.inTerm() {
		return
	}

	ctx, cancel := context.WithDeadline(p.ctx, until)
	defer cancel()

	o := &metav1.PartialObjectMetadata{}
	o.OwnerReferences = references
	_ = p.client.Create(ctx, w.scoped(s.Object), o)
}

// worker returns the process that works on a main object; nil if there is none. The lock is held.
func (w *Cluster) worker(on apiserver.ID) *process {
	for _, id := range sortedKeys(w.processes) {
		for _, at := range w.processes[id].works {
			if at == on {
				return w.processes[id]
			}
		}
	}

	return nil
}

func (p *process) inTerm() bool {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()

	return p.term && p.w.clock.Now().Before(p.until)
}

// guards reports whether the process releases an object only when all its workers have left it. One of another library
// looks only at the worker that sees the drain.
func (p *process) guards() bool { return p.id.Name != plainShard }

// busy reports whether the process creates anything.
func (p *process) busy() bool {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()

	for _, n := range p.makes {
		if n > 0 {
			return true
		}
	}

	return false
}

// writerOf returns the Pod of a shard that writes; empty for another client.
func writerOf(client string) types.NamespacedName {
	id, _ := strings.CutPrefix(client, "shard/")
	if id == client {
		return types.NamespacedName{}
	}

	namespace, name, _ := strings.Cut(id, "/")

	return types.NamespacedName{Namespace: namespace, Name: name}
}

// made records that a shard has created an object. If the shard worked then, and the object has come to where its owner
// is, the rebalancer must not lose sight of it. Otherwise it is like one that a user has created: without a label, a
// watch finds it, and with a wrong label only an audit may. The lock is held.
func (w *Cluster) made(write apiserver.Write) {
	var at string

	owner := metav1.GetControllerOfNoCopy(write.New).UID

	write.Others(func(_ apiserver.ID, o *metav1.PartialObjectMetadata) {
		if o.UID == owner {
			at = o.Labels[shardLabel]
		}
	})

	p, shard := w.processes[writerOf(write.Client)], write.New.Labels[shardLabel]
	if shard != "" && shard == at && p != nil && p.id.Name == shard && p.term && w.clock.Now().Before(p.until) {
		return
	}

	if w.changed[write.New.UID] = w.clock.Now(); shard != "" {
		w.touch(write.ID)
	}
}

// settling is how long nothing moves that exists at first.
const settling = 12 * time.Second

// makeChildren makes shards create objects that follow main objects, most of them when main objects begin to move.
func (d *drawing) makeChildren() {
	moves := slices.DeleteFunc(slices.Clone(d.h.Steps), func(s Step) bool {
		return s.Act != Join && s.Act != Leave && s.Act != Rekey || s.At < settling
	})

	for i := range 10 + d.IntN(30) {
		owner := d.mains[d.IntN(len(d.mains))]
		child := object(pick(d, configMaps, configMaps, secrets), or(owner.Namespace, pick(d, "n1", "n2")),
			fmt.Sprint("made-", i))

		at := settling + d.at()
		if len(moves) > 0 && d.IntN(4) > 0 {
			at = moves[d.IntN(len(moves))].At + time.Duration(d.Int64N(int64(making))) - making/2
		}

		d.step(Step{At: at, Act: Make, Object: child, Owner: owner})
	}
}
