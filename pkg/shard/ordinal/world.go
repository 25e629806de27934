package ordinal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// beats is how often a process renews its acknowledgement per term, looks how often it looks at what it knows, without a request.
	beats, looks = 5, 40
	idLength     = 8
)

var (
	errPlan = errors.New("the number of replicas changes: waiting until all processes have acknowledged it")
	errJoin = errors.New("waiting until this process has joined the others")
)

// world lets the process work only by numbers of replicas that all processes have acknowledged. See the invariants of the package.
type world struct {
	process *Process
	gate    *gate
	clock   clock.WithTicker
	leases  coordinationclient.LeaseInterface
	name    string
	id      string
	term    time.Duration

	mu    sync.Mutex
	lease *coordinationv1.Lease // the newest that was seen; nil: none
	wake  chan struct{}

	// What follows is only used by run.

	acked     int64
	leaving   bool
	sent      time.Time // when the last renewal was sent that succeeded
	uid       types.UID
	since     time.Time // when the Lease with this uid was first seen
	sightings map[int]sighting
	told      string // what was last logged
}

// sighting is when an entry was first seen as it is.
type sighting struct {
	entry entry
	since time.Time
}

func newWorld(p *Process) *world {
	return &world{
		process: p, gate: p.gate, clock: p.clock, term: p.options.TermDuration,
		leases: p.set.client.CoordinationV1().Leases(p.options.Namespace), name: LeaseName(p.options.StatefulSet),
		id: p.options.PodName + "/" + utilrand.String(idLength), wake: make(chan struct{}, 1), sightings: map[int]sighting{},
	}
}

// run takes part until the context ends, and then until no worker runs and the entry is removed. It returns an ErrLost if the term is over.
func (w *world) run(ctx context.Context) error {
	w.gate.shut(errJoin)
	defer w.gate.rest()

	informer, err := w.informer()
	if err != nil {
		return err
	}

	staying, stop := watch(ctx, informer)
	defer stop()

	changes := w.gate.listen()

	ticker := w.clock.NewTicker(w.term / looks)
	defer ticker.Stop()

	for stopped := ctx.Done(); ; {
		if err := w.step(staying); err != nil {
			return err
		}

		if w.leaving && w.acked == 0 {
			return nil
		}

		select {
		case <-stopped:
			stopped, w.leaving = nil, true
			w.gate.stop()
		case <-w.process.news:
		case <-w.wake:
		case <-changes:
		case <-ticker.C():
		}
	}
}

// informer returns an informer of the Lease.
func (w *world) informer() (toolscache.SharedIndexInformer, error) {
	name := types.NamespacedName{Namespace: w.process.options.Namespace, Name: w.name}
	informer := informerOf(w.process.set.client.CoordinationV1().RESTClient(), "leases", name, &coordinationv1.Lease{})
	see := func(obj any) {
		if lease, ok := obj.(*coordinationv1.Lease); ok {
			w.see(lease)
		}
	}

	_, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) },
		DeleteFunc: func(any) { w.forget() },
	})
	if err != nil {
		return nil, fmt.Errorf("watch Lease %s: %w", w.name, err)
	}

	return informer, nil
}

func (w *world) see(lease *coordinationv1.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.lease == nil || newer(lease.ResourceVersion, w.lease.ResourceVersion) {
		w.lease = lease

		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// forget makes the next step read the Lease.
func (w *world) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.lease = nil
}

func (w *world) newest() *coordinationv1.Lease {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.lease
}

// step does what is due. It returns an error if the term is over. Requests that fail are sent again in a later step: if none succeeds, the term
// ends by the clock.
func (w *world) step(ctx context.Context) error {
	if err := w.gate.over(); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, w.term/beats)
	defer cancel()

	lease, err := w.read(ctx)
	if err == nil {
		err = w.act(ctx, lease)
	}

	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		w.forget() // somebody else was first
	case err != nil:
		w.tell(ctx, err.Error())
	}

	return w.gate.over()
}

// read returns the Lease, of which it creates one if none exists.
func (w *world) read(ctx context.Context) (*coordinationv1.Lease, error) {
	if lease := w.newest(); lease != nil {
		return lease, nil
	}

	lease, err := w.leases.Get(ctx, w.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && w.acked > 0:
		w.gate.lose(fmt.Errorf("lease %s was deleted", w.name))
	case apierrors.IsNotFound(err):
		n := w.process.numbers()
		first := ledger{plan: plan{Number: 1, Start: n.start, Replicas: n.replicas, Version: n.version, Unproven: true}}
		lease, err = w.leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: w.name, Annotations: first.write(nil)},
		}, metav1.CreateOptions{})
	}

	if err != nil {
		return nil, w.explain(err)
	}
	w.see(lease)

	return lease, nil
}

// explain adds to an error of a request for the Lease which permission is missing, if one is.
func (w *world) explain(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("the service account may not keep Lease %s/%s: grant create on leases (API group coordination.k8s.io), and get, list, watch, and update on "+
			"the resource name %s, in namespace %s by a Role: %w", w.process.options.Namespace, w.name, w.name, w.process.options.Namespace, err)
	}

	return err
}

// act decides by the Lease, and writes it if necessary.
func (w *world) act(ctx context.Context, lease *coordinationv1.Lease) error {
	l, err := parse(lease.Annotations)
	if err != nil {
		return fmt.Errorf("lease %s cannot be read; delete it: %w", w.name, err)
	}
	w.sight(lease.UID, l)

	s := w.situation(l)
	if s.lost() {
		if w.leaving && s.idle { // it did not get the answer to the write by which it left
			w.acked = 0

			return nil
		}

		w.gate.lose(fmt.Errorf("another process has taken the place of ordinal %d in Lease %s, or removed it because it was not renewed", s.ordinal, w.name))

		return nil
	}

	if s.acked > 0 && l.plan.Number > s.acked {
		w.gate.shut(errPlan)
		s.idle = w.gate.idle()
	}

	if next := s.next(); !next.equal(l) {
		sent := w.clock.Now()

		if err := w.update(ctx, lease, next); err != nil {
			return err
		}

		l = next
		w.wrote(l, sent)
	}

	w.conclude(ctx, l)

	return nil
}

func (w *world) situation(l ledger) situation {
	_, _, closed := w.gate.now()
	now := w.clock.Now()

	return situation{
		ledger: l, numbers: w.process.numbers(),
		ordinal: w.process.ordinal, id: w.id, term: w.term, acked: w.acked, leaving: w.leaving,
		idle:  closed != nil && w.gate.idle(),
		renew: now.Sub(w.sent) >= w.term/beats,
		expired: func(ordinal int) bool {
			s := w.sightings[ordinal]
			return now.Sub(s.since) >= patienceWith(time.Duration(s.entry.Seconds)*time.Second)
		},
		proven: now.Sub(w.since) >= patienceWith(w.term),
	}
}

// patienceWith returns how long others wait for a process with this term: a quarter longer than the term.
func patienceWith(term time.Duration) time.Duration { return term + term/4 } //nolint:mnd // a quarter

// sight takes note of what has changed in the Lease.
func (w *world) sight(uid types.UID, l ledger) {
	now := w.clock.Now()

	if w.uid != uid {
		w.uid, w.since, w.sightings = uid, now, map[int]sighting{}
	}

	for ordinal, e := range l.processes {
		if s, seen := w.sightings[ordinal]; !seen || s.entry != e {
			w.sightings[ordinal] = sighting{e, now}
		}
	}

	for ordinal := range w.sightings {
		if _, exists := l.processes[ordinal]; !exists {
			delete(w.sightings, ordinal)
		}
	}
}

func (w *world) update(ctx context.Context, lease *coordinationv1.Lease, next ledger) error {
	lease = lease.DeepCopy()
	lease.Annotations = next.write(lease.Annotations)

	lease, err := w.leases.Update(ctx, lease, metav1.UpdateOptions{})
	if err != nil {
		return w.explain(err)
	}
	w.see(lease)

	return nil
}

// wrote takes note of a write of the Lease that was sent at the given time.
func (w *world) wrote(l ledger, sent time.Time) {
	w.sight(w.uid, l)

	own, has := l.processes[w.process.ordinal]
	if !has || own.ID != w.id {
		w.acked = 0
		w.gate.rest() // without a term: it has no worker

		return
	}

	w.acked, w.sent = own.Plan, sent
	w.gate.renewed(sent)
}

// conclude opens the gate if all have acknowledged the plan.
func (w *world) conclude(ctx context.Context, l ledger) {
	s, has := l.plan.numbers().share(w.process.ordinal)

	switch {
	case w.leaving:
	case w.acked == l.plan.Number && l.agreed(w.process.ordinal, w.id):
		w.gate.open(s)
		w.tell(ctx, fmt.Sprintf("Working: all processes have acknowledged %d replicas", l.plan.Replicas))
	case w.acked == 0 && !has:
		err := w.process.outside(l.plan.numbers())
		w.gate.shut(err)
		w.tell(ctx, err.Error())
	default:
		_, _, closed := w.gate.now()
		if closed != nil {
			w.tell(ctx, closed.Error())
		}
	}
}

// tell logs what has not just been logged.
func (w *world) tell(ctx context.Context, what string) {
	if w.told != what {
		w.told = what
		log.FromContext(ctx).Info("Stop-the-world: "+what, "lease", w.name)
	}
}
