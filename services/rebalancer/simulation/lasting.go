package simulation

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/simulation/apiserver"
)

// Condition is something that goes wrong for ever. All that it does not concern has to come right all the same, and what it does concern
// has to be said.
type Condition string

// The conditions.
const (
	// Fine is none.
	Fine Condition = ""
	// SlowAdmission has every write of an object take longer than a second.
	SlowAdmission Condition = "admission is slow"
	// HungShard has a shard acknowledge nothing.
	HungShard Condition = "a shard hangs"
	// Namesakes have two processes call themselves by one name, in two namespaces.
	Namesakes Condition = "two shards have one name"
	// Refused has the API server refuse to tell the rebalancer of a resource.
	Refused Condition = "a resource is refused"
	// Flapping has a shard come and go every few seconds, while lists take a while.
	Flapping Condition = "a shard comes and goes"
)

// forever is longer than any history.
const forever = 24 * time.Hour

// handover is how long an object that moves again and again may be nobody's, while what follows it is looked for by slow lists.
const handover = 20 * time.Second

// flapper is the shard that comes and goes.
const flapper = "shard-z"

// excuse says by which property of the report an object that is out of place has to be explained; excused is false if it must not be.
func (w *World) excuse(id apiserver.ID, o *metav1.PartialObjectMetadata, f facts) (said func(engine.Report) bool, excused bool) {
	is := o.Labels[shardLabel]

	switch w.h.Lasting {
	case HungShard:
		return func(r engine.Report) bool { return r.Late > 0 }, w.concerns(id, o, func(_ apiserver.ID, o *metav1.PartialObjectMetadata) bool {
			return o.Labels[shardLabel] == w.h.Whom
		})
	case Namesakes:
		held := func(_ apiserver.ID, o *metav1.PartialObjectMetadata) bool { return o.Labels[shardLabel] == w.h.Whom }

		return func(r engine.Report) bool { return r.Blocked > 0 }, w.concerns(id, o, held) ||
			slices.ContainsFunc(append(w.line(id, o), id), func(id apiserver.ID) bool { return w.followed(id, held) })
	case Refused:
		return func(r engine.Report) bool { return len(r.Failures) > 0 }, w.concerns(id, o, func(id apiserver.ID, _ *metav1.PartialObjectMetadata) bool {
			return id.GroupResource.String() == w.h.Whom
		})
	case Flapping:
		others := slices.DeleteFunc(f.view.AvailableShards(), func(name string) bool { return name == flapper })

		w.mu.Lock()
		between := w.clock.Since(w.givenUp[o.UID]) < handover
		w.mu.Unlock()

		// Where there is no other shard, each list ends with the shard that it was begun for.
		return func(engine.Report) bool { return true }, is == flapper || f.view.Available(is) || len(others) == 0 || between
	case Fine, SlowAdmission:
	}

	return nil, false
}

// concerns reports whether a condition concerns an object: itself, or whom it follows.
func (w *World) concerns(id apiserver.ID, o *metav1.PartialObjectMetadata, is func(apiserver.ID, *metav1.PartialObjectMetadata) bool) bool {
	if is(id, o) {
		return true
	}

	return slices.ContainsFunc(w.line(id, o), func(owner apiserver.ID) bool {
		at := w.server.Object(owner)

		return at != nil && is(owner, at)
	})
}

// followed reports whether a condition concerns something that follows an object, and that goes before it.
func (w *World) followed(id apiserver.ID, is func(apiserver.ID, *metav1.PartialObjectMetadata) bool) (concerned bool) {
	all := map[apiserver.ID]*metav1.PartialObjectMetadata{}
	w.server.Objects(func(id apiserver.ID, o *metav1.PartialObjectMetadata) { all[id] = o })

	for other, o := range all {
		concerned = concerned || is(other, o) && slices.Contains(w.line(other, o), id)
	}

	return concerned
}

// last draws a condition that lasts.
func (d *drawing) last() {
	at := time.Duration(d.Int64N(int64(d.length)))
	lasts := func(s Step) {
		s.At = at
		d.h.Steps = append(d.h.Steps, s)
	}

	fault := func(f apiserver.Fault) { lasts(Step{Act: Disturb, For: forever, Fault: f}) }

	switch d.h.Lasting = pick(d, Fine, Fine, Fine, Fine, SlowAdmission, SlowAdmission, HungShard, HungShard, Namesakes, Refused, Flapping); d.h.Lasting {
	case SlowAdmission:
		for gr := range served {
			fault(apiserver.Fault{Effect: apiserver.Slow, Verb: "write", Resource: gr.String(), Client: "rebalancer", Delay: 1200 * time.Millisecond})
		}
	case HungShard:
		d.h.Whom = d.shards[0]
		lasts(Step{Act: Join, Who: d.h.Whom})
		lasts(Step{Act: Hang, Who: d.h.Whom, For: forever})

		// What the others have to give up, while drains of this one are late.
		for i := range d.IntN(3) {
			d.step(Step{At: at + d.span() + time.Duration(i)*time.Minute, Act: Join, Who: fmt.Sprintf("shard-%c", 'w'+i), N: d.IntN(3)})
		}
	case Namesakes:
		d.h.Whom = d.shards[0]
		lasts(Step{Act: Join, Who: d.h.Whom})
		lasts(Step{Act: Join, Who: d.h.Whom, Value: "n2"})
	case Refused:
		gr := pick(d, websites, configMaps, secrets, databases)
		d.h.Whom = gr.String()
		fault(apiserver.Fault{
			Effect: apiserver.Refuse, Verb: pick(d, "", "list", "watch"), Resource: gr.String(), Client: "rebalancer", Code: pick(d, 403, 404, 500, 503),
		})
	case Flapping:
		slow := pick(d, 600*time.Millisecond, 4*time.Second) // some lists take longer than a shard stays

		for gr := range served {
			fault(apiserver.Fault{Effect: apiserver.Slow, Verb: "list", Resource: gr.String(), Client: "rebalancer", Delay: slow})
		}

		lasts(Step{Act: Flap, Who: flapper})
	case Fine:
	}
}

// disturbed reports whether a shard could not renew its Lease lately for a reason that the lease monitor could not know: then it is right to
// take the Lease.
func (w *World) disturbed(p *process) bool {
	now, lately := w.now(), 2*leaseDuration+renewDeadline

	if !p.frozen.IsZero() && p.frozen.Add(lately).After(w.clock.Now()) {
		return true
	}

	for _, s := range w.h.Steps {
		f := s.Fault
		if s.Act != Disturb || now < s.At || now > s.At+s.For+lately ||
			f.Resource != "" && f.Resource != leases.String() || f.Client != "" && f.Client != "shard" || f.Effect == apiserver.Stall {
			continue
		}

		seenByMonitor := f.Client == "" && (f.Verb == "" || f.Verb == "get") && f.Percent == 0 && f.Effect != apiserver.Slow && f.Effect != apiserver.Lose &&
			f.Code != http.StatusNotFound // which says that there is no such Lease
		if !seenByMonitor {
			return true
		}
	}

	return false
}

// leases are what Leases are called.
var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// auditFound takes note of what the engine logs that an audit has found: that may only be what somebody has put there who should not have, or
// what is left of an owner that was deleted: it stays where it is, but who has not looked for its owner does not know that.
func (w *World) auditFound(object string) {
	var (
		of  apiserver.ID
		its *metav1.PartialObjectMetadata
	)

	w.server.Objects(func(id apiserver.ID, o *metav1.PartialObjectMetadata) {
		if id.String() == object {
			of, its = id, o
		}
	})

	line, orphan := w.line(of, its), false
	for _, owner := range line {
		ref, at := metav1.GetControllerOfNoCopy(its), w.server.Object(owner)
		orphan = orphan || at == nil || at.UID != ref.UID
		its = at
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	if !orphan && !slices.ContainsFunc(append(line, of), func(id apiserver.ID) bool { return w.touched[id.String()] }) {
		w.violate(Found, "%s", object)
	}
}

// touch notes that somebody has put an object where it does not belong, or may have; the lock is held.
func (w *World) touch(id apiserver.ID) { w.touched[id.String()] = true }
