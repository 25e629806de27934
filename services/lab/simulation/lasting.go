package simulation

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
)

// Condition is a fault that lasts forever. Everything that it does not affect must recover anyway, and the ring must
// report what it affects.
type Condition string

// The conditions.
const (
	// Fine is no fault.
	Fine Condition = ""
	// SlowAdmission makes every write of an object take longer than a second.
	SlowAdmission Condition = "admission is slow"
	// HungShard makes a shard acknowledge nothing.
	HungShard Condition = "a shard hangs"
	// Stuck makes a shard acknowledge no drain of one object: the first that it is asked for.
	Stuck Condition = "an object is stuck"
	// Namesakes makes two processes use the same name, in two namespaces.
	Namesakes Condition = "two shards have one name"
	// Refused makes the API server refuse the rebalancer's requests for a resource.
	Refused Condition = "a resource is refused"
	// Hanging makes the API server answer no write of the rebalancer to a resource.
	Hanging Condition = "writes of a resource hang"
	// Flapping makes a shard join and leave every few seconds, while lists take a while.
	Flapping Condition = "a shard comes and goes"
)

// forever is longer than any history.
const forever = 24 * time.Hour

// handover is how long an object that moves repeatedly may have no shard, while slow lists search for its followers:
// the one in progress when it loses its shard proves nothing, and a list of four pages takes 16 s.
const handover = 40 * time.Second

// flapper is the shard that joins and leaves.
const flapper = "shard-z"

// excuse returns the property by which the report must explain an object that is out of place. excused is false if the
// object must not be out of place.
func (w *Cluster) excuse(id apiserver.ID, o *metav1.PartialObjectMetadata, f facts) (said func(engine.Report) bool,
	excused bool) {
	is := o.Labels[shardLabel]
	if w.outlives(is) {
		return func(r engine.Report) bool { return r.Late+r.Blocked > 0 }, true
	}

	switch w.h.Lasting {
	case HungShard:
		return func(r engine.Report) bool { return r.Late > 0 }, w.concerns(id, o,
			func(_ apiserver.ID, o *metav1.PartialObjectMetadata) bool {
				return o.Labels[shardLabel] == w.h.Whom
			})
	case Stuck:
		w.mu.Lock()
		stuck := w.stuck
		w.mu.Unlock()

		return func(r engine.Report) bool { return r.Late > 0 }, w.concerns(id, o,
			func(id apiserver.ID, _ *metav1.PartialObjectMetadata) bool {
				return id == stuck
			})
	case Namesakes:
		held := func(_ apiserver.ID, o *metav1.PartialObjectMetadata) bool { return o.Labels[shardLabel] == w.h.Whom }

		return func(r engine.Report) bool { return r.Blocked > 0 }, w.concerns(id, o, held) ||
			slices.ContainsFunc(append(w.line(id, o), id), func(id apiserver.ID) bool { return w.followed(id, held) })
	case Refused:
		is := func(id apiserver.ID, _ *metav1.PartialObjectMetadata) bool {
			return id.GroupResource.String() == w.h.Whom
		}
		if !w.concerns(id, o, is) { // it waits for a follower that was seen before, and cannot be written
			return func(r engine.Report) bool { return r.Failing > 0 }, w.followed(id, is)
		}

		gone := f.ring == nil && slices.ContainsFunc(w.h.Steps, func(s Step) bool {
			return s.For == forever && s.Fault.Code == http.StatusNotFound // as if it was not served anymore
		})

		return func(r engine.Report) bool { return gone || len(r.Failures) > 0 }, true
	case Hanging:
		return func(r engine.Report) bool { return len(r.Hanging) > 0 }, w.hangs(id, o)
	case Flapping:
		others := slices.DeleteFunc(f.view.AvailableShards(), func(name string) bool { return name == flapper })

		w.mu.Lock()
		between := w.clock.Since(w.givenUp[o.UID]) < handover
		w.mu.Unlock()

		// Without another shard, each list ends with the shard for which it began.
		return func(engine.Report) bool { return true }, is == flapper || f.view.Available(is) || len(others) == 0 || between
	case SlowAdmission:
		return func(r engine.Report) bool { return r.Failing > 0 }, !f.view.Works(is) && w.unkept(is)
	case Fine:
	}

	return nil, false
}

// unkept reports whether the lease monitor cannot keep a Lease of this name from its shard for long, because it is one
// of several, or is being deleted. A write that is slower than a second then never gets enough time.
func (w *Cluster) unkept(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()

	n := 0

	for id, l := range w.leases {
		if id.Name == name {
			if n++; n > 1 || l.DeletionTimestamp != nil {
				return true
			}
		}
	}

	return false
}

// outlives reports whether somebody has made the duration of a dead shard's Lease so long that its death cannot be
// known yet.
func (w *Cluster) outlives(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()

	for id, l := range w.leases {
		if id.Name == name && w.processes[id] == nil && lease.RecordOf(l).Duration > known {
			return true
		}
	}

	return false
}

// hangs reports whether writes of an object hang, of one that it follows, or of one that moves before it.
func (w *Cluster) hangs(id apiserver.ID, o *metav1.PartialObjectMetadata) bool {
	is := func(id apiserver.ID, _ *metav1.PartialObjectMetadata) bool {
		return id.GroupResource.String() == w.h.Whom
	}

	return w.h.Lasting == Hanging && (w.concerns(id, o, is) ||
		slices.ContainsFunc(append(w.line(id, o), id), func(id apiserver.ID) bool { return w.followed(id, is) }))
}

// concerns reports whether a condition affects an object: the object itself, or an object that it follows.
func (w *Cluster) concerns(id apiserver.ID, o *metav1.PartialObjectMetadata,
	is func(apiserver.ID, *metav1.PartialObjectMetadata) bool) bool {
	if is(id, o) {
		return true
	}

	return slices.ContainsFunc(w.line(id, o), func(owner apiserver.ID) bool {
		at := w.server.Object(owner)

		return at != nil && is(owner, at)
	})
}

// followed reports whether a condition affects an object that follows the given one, and moves before it.
func (w *Cluster) followed(id apiserver.ID,
	is func(apiserver.ID, *metav1.PartialObjectMetadata) bool) (concerned bool) {
	all := map[apiserver.ID]*metav1.PartialObjectMetadata{}
	w.server.Objects(func(id apiserver.ID, o *metav1.PartialObjectMetadata) { all[id] = o })

	for other, o := range all {
		concerned = concerned || is(other, o) && slices.Contains(w.line(other, o), id)
	}

	return concerned
}

// last draws a condition.
func (d *drawing) last() {
	at := time.Duration(d.Int64N(int64(d.length)))
	lasts := func(s Step) {
		s.At = at
		d.h.Steps = append(d.h.Steps, s)
	}

	fault := func(f apiserver.Fault) { lasts(Step{Act: Disturb, For: forever, Fault: f}) }

	d.h.Lasting = pick(d, Fine, Fine, Fine, Fine, SlowAdmission, SlowAdmission, HungShard, HungShard, Namesakes,
		Refused, Flapping)
	if d.h.Lasting == HungShard && chance(d.h.Seed, "stuck", 0)%2 == 0 {
		d.h.Lasting = Stuck
	}

	switch d.h.Lasting {
	case Fine:
		if chance(d.h.Seed, "hanging", 0)%4 != 0 { // not drawn, so that the draws of other histories stay as they are
			break
		}

		gr := []schema.GroupResource{websites, configMaps, secrets, databases}[chance(d.h.Seed, "what hangs", 0)%4]
		d.h.Lasting, d.h.Whom = Hanging, gr.String()
		fault(apiserver.Fault{Effect: apiserver.Hang, Verb: "write", Resource: gr.String(), Client: "rebalancer"})
	case SlowAdmission:
		for gr := range served {
			fault(apiserver.Fault{Effect: apiserver.Slow, Verb: "write", Resource: gr.String(), Client: "rebalancer",
				Delay: 1200 * time.Millisecond})
		}
	case HungShard, Stuck:
		d.h.Whom = d.shards[0]
		lasts(Step{Act: Join, Who: d.h.Whom})

		if d.h.Lasting == HungShard {
			lasts(Step{Act: Hang, Who: d.h.Whom, For: forever})
		}

		// These shards make the others release objects, while drains of this one are late.
		for i := range d.IntN(3) {
			d.step(Step{At: at + d.span() + time.Duration(i)*time.Minute, Act: Join,
				Who: fmt.Sprintf("shard-%c", 'w'+i), N: d.IntN(3)})
		}
	case Namesakes:
		d.h.Whom = d.shards[0]
		lasts(Step{Act: Join, Who: d.h.Whom})
		lasts(Step{Act: Join, Who: d.h.Whom, Value: "n2"})
	case Refused:
		gr := pick(d, websites, configMaps, secrets, databases)
		d.h.Whom = gr.String()
		fault(apiserver.Fault{
			Effect: apiserver.Refuse, Verb: pick(d, "", "list",
				"watch"), Resource: gr.String(), Client: "rebalancer", Code: pick(d, 403, 404, 500, 503),
		})
	case Flapping:
		slow := pick(d, 600*time.Millisecond, 4*time.Second) // some lists take longer than the shard stays

		for gr := range served {
			fault(apiserver.Fault{Effect: apiserver.Slow, Verb: "list", Resource: gr.String(),
				Client: "rebalancer", Delay: slow})
		}

		lasts(Step{Act: Flap, Who: flapper})
	case Hanging: // drawn with Fine
	}
}

// disturbed reports whether a shard recently could not renew its Lease for a reason that the lease monitor could not
// know. The lease monitor may then take the Lease.
func (w *Cluster) disturbed(p *process) bool {
	now, lately := w.now(), 2*leaseDuration+renewDeadline

	if !p.frozen.IsZero() && p.frozen.Add(lately).After(w.clock.Now()) {
		return true
	}

	for _, s := range w.h.Steps {
		f := s.Fault
		if s.Act != Disturb || now < s.At || now > s.At+s.For+lately ||
			f.Resource != "" && f.Resource != leases.String() || f.Client != "" && f.Client != "shard" ||
			f.Effect == apiserver.Stall {
			continue
		}

		seenByMonitor := f.Client == "" && (f.Verb == "" || f.Verb == "get") && f.Percent == 0 &&
			f.Effect != apiserver.Slow && f.Effect != apiserver.Lose &&
			f.Code != http.StatusNotFound // 404 means that there is no such Lease
		if !seenByMonitor {
			return true
		}
	}

	return false
}

// leases is the resource name of Leases.
var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// auditFound records that an audit has found an object, according to the engine's log. This is allowed only for an
// object that somebody has put into a wrong place, for a child of a deleted owner, which stays where it is, and only a
// read of its owner shows why, while the rebalancer does not know of an edit of the ring, and while watches show
// nothing.
func (w *Cluster) auditFound(object string) {
	var (
		of  apiserver.ID
		its *metav1.PartialObjectMetadata
	)

	w.server.Objects(func(id apiserver.ID, o *metav1.PartialObjectMetadata) {
		if id.String() == object {
			of, its = id, o
		}
	})

	unseen := slices.ContainsFunc(w.h.Steps, func(s Step) bool {
		until := s.At + s.For
		if s.Fault.Effect == apiserver.Blind {
			until += silence
		}

		return s.Act == Disturb && (s.Fault.Effect == apiserver.Stall || s.Fault.Effect == apiserver.Blind) &&
			s.At <= w.now() && w.now() <= until
	})

	line, orphan := w.line(of, its), false
	for _, owner := range line {
		ref, at := metav1.GetControllerOfNoCopy(its), w.server.Object(owner)
		orphan = orphan || at == nil || at.UID != ref.UID
		its = at
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	outdated := w.ring == nil || w.pursued == nil || w.ring.UID != w.pursued.UID ||
		w.ring.Generation != w.pursued.Generation

	touched := func(id apiserver.ID) bool { return w.touched[id.String()] }
	if !orphan && !outdated && !unseen && !slices.ContainsFunc(append(line, of), touched) {
		w.violate(Found, "%s", object)
	}
}

// touch records that somebody has put an object into a wrong place, or may have. The lock is held.
func (w *Cluster) touch(id apiserver.ID) { w.touched[id.String()] = true }
