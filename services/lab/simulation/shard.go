package simulation

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
)

// The defaults of package pkg/shard.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	renewEvery    = 4 * time.Second
	holdOff       = 2 * time.Second
	drainTimeout  = 15 * time.Second
	// drainLook is how often a shard that stops looks whether it still has objects.
	drainLook = 200 * time.Millisecond
)

// process is a process that runs under the name of a shard. When it loses its Lease, it ends and is restarted, until it
// leaves or crashes.
type process struct {
	w      *Cluster
	id     types.NamespacedName
	slow   time.Duration
	client *apiserver.Client
	ctx    context.Context //nolint:containedctx // the life of the process
	stop   context.CancelFunc
	leave  chan struct{}
	// announces reports whether it reports that it stops, and works until its objects are drained. It is set before leave
	// is closed.
	announces bool

	// The lock of the cluster guards the remaining fields. began is when the process was started.
	began, frozen, hung time.Time
	// until is when it stops to work unless it renews its Lease before.
	until time.Time
	// term reports whether it works. cache contains what it sees then.
	term  bool
	cache map[apiserver.ID]*metav1.PartialObjectMetadata
	// given are the objects that it has released, with the version in which it last saw each.
	given map[apiserver.ID]int64
	// acknowledging are the objects that it is about to release.
	acknowledging map[apiserver.ID]bool
	works         map[types.UID]apiserver.ID
	// makes is how many objects it is about to create that follow a main object.
	makes map[apiserver.ID]int
}

// join starts a process.
func (w *Cluster) join(ctx context.Context, id types.NamespacedName, slow int) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.processes[id] != nil {
		return
	}

	ctx, cancel := context.WithCancel(ctx)
	p := &process{
		w: w, id: id, began: w.clock.Now(), slow: time.Duration(slow) * time.Second, ctx: ctx, stop: cancel,
		leave:  make(chan struct{}),
		client: w.server.Client("shard/" + id.String()), works: map[types.UID]apiserver.ID{}, makes: map[apiserver.ID]int{},
	}
	w.processes[id] = p
	w.group.Go(func() { p.run(ctx) })
}

// gone records that the process has ended for good.
func (p *process) gone() {
	p.stop()

	p.w.mu.Lock()
	defer p.w.mu.Unlock()

	p.end()

	if p.w.processes[p.id] == p {
		delete(p.w.processes, p.id)
	}
}

// run is the life of the process, and of its successors under the same name.
func (p *process) run(ctx context.Context) {
	defer p.gone()

	for ctx.Err() == nil {
		held, settled := p.acquire(ctx)
		if held == nil {
			return
		}

		if left := p.work(ctx, held, settled); left {
			return
		}

		pause(ctx, p.w.clock, 2*time.Second, nil)
	}
}

// acquire waits until the process holds its Lease; it returns nil if the process has left or ended before. settled
// reports whether the Lease was not free.
func (p *process) acquire(ctx context.Context) (held *coordinationv1.Lease, settled bool) {
	var (
		seen  lease.Record
		since time.Time
	)

	for ctx.Err() == nil {
		if !p.thaw(ctx) || p.leaving() {
			return nil, false
		}

		l := &coordinationv1.Lease{}
		limited, cancel := context.WithTimeout(ctx, renewDeadline/2)
		err := p.client.Leases().Get(limited, p.id, l)
		now := p.w.clock.Now()

		switch record := lease.RecordOf(l); {
		case apierrors.IsNotFound(err):
			if l = p.renewed(nil, now); p.client.Leases().Create(limited, l) == nil {
				err = p.client.Leases().Get(limited, p.id, l)
			}
		case err != nil:
		case record.Holder == p.id.Name || record.Holder == "":
			settled = record.Holder == p.id.Name && record.RenewTime.Sub(record.AcquireTime) >= holdOff
			l = p.renewed(l, now)
			err = p.client.Leases().Update(limited, l)
		case !record.Equal(seen):
			seen, since, err = record, now, errNotHeld
		case now.Sub(since) <= record.Duration:
			err = errNotHeld
		default:
			l, settled = p.renewed(l, now), false
			err = p.client.Leases().Update(limited, l)
		}

		if err == nil {
			err = p.client.Leases().Get(limited, p.id, l)
		}

		cancel()

		if err == nil && lease.RecordOf(l).Holder == p.id.Name {
			return l, settled
		}

		pause(ctx, p.w.clock, 2*time.Second, p.leave)
	}

	return nil, false
}

var errNotHeld = fmt.Errorf("held by another")

// renewed returns the Lease with the renewal of the process.
func (p *process) renewed(l *coordinationv1.Lease, now time.Time) *coordinationv1.Lease {
	if l == nil {
		l = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: p.id.Namespace, Name: p.id.Name, Labels: map[string]string{contract.LabelClusterRing: ringName},
		}}
	}

	l = l.DeepCopy()
	if p.id.Name != plainShard {
		metav1.SetMetaDataAnnotation(&l.ObjectMeta, contract.AnnotationHoldOff, holdOff.String())
	}

	at := metav1.NewMicroTime(now)

	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity != p.id.Name {
		l.Spec.HolderIdentity, l.Spec.AcquireTime = &p.id.Name, &at
		l.Spec.LeaseTransitions = new(1 + lease.RecordOf(l).Transitions%math.MaxInt32)
	}

	l.Spec.RenewTime = &at
	if p.leaving() && p.announces {
		metav1.SetMetaDataAnnotation(&l.ObjectMeta, contract.AnnotationStopping, contract.OfferValue(now))
	}

	l.Spec.LeaseDurationSeconds = new(int32(leaseDuration / time.Second))

	return l
}

func (p *process) leaving() bool {
	select {
	case <-p.leave:
		return true
	default:
		return false
	}
}

// thaw waits while the process is frozen. It returns false if ctx has ended.
func (p *process) thaw(ctx context.Context) bool {
	for {
		p.w.mu.Lock()
		wait := p.frozen.Sub(p.w.clock.Now())
		p.w.mu.Unlock()

		if wait <= 0 || ctx.Err() != nil {
			return ctx.Err() == nil
		}

		pause(ctx, p.w.clock, wait, nil)
	}
}

// work is one term: the process renews its Lease and works until it loses the Lease, ends or leaves.
func (p *process) work(ctx context.Context, held *coordinationv1.Lease, settled bool) (left bool) {
	term, end := context.WithCancel(ctx)
	defer func() {
		end()
		p.w.mu.Lock()
		defer p.w.mu.Unlock()
		p.end()
	}()

	until := held.Spec.RenewTime.Add(renewDeadline)
	p.prolong(until)

	p.w.group.Go(func() {
		if !settled {
			pause(term, p.w.clock, holdOff, nil)
		}

		p.begin(term)
	})

	var told time.Time // when it was told to stop

	for {
		if told.IsZero() {
			pause(term, p.w.clock, min(renewEvery, max(1, until.Sub(p.w.clock.Now()))), p.leave)
		} else {
			pause(term, p.w.clock, min(drainLook, max(1, until.Sub(p.w.clock.Now()))), nil)
		}

		if !p.thaw(term) {
			return true
		}

		if !p.w.clock.Now().Before(until) {
			return false
		}

		announces := p.leaving() && p.announces && told.IsZero()
		if announces {
			told = p.w.clock.Now()
		}

		if p.leaving() && !announces && !p.drains(told) {
			p.w.mu.Lock()
			p.end()
			p.w.mu.Unlock()
			end()

			for p.busy() && ctx.Err() == nil {
				pause(ctx, p.w.clock, drainLook, nil)
			}

			p.release(ctx, held)

			return true
		}

		sent := p.w.clock.Now()
		if !announces && !told.IsZero() && until.Sub(sent) > renewDeadline-renewEvery {
			continue
		}

		next, lost := p.renew(term, held, sent, until)
		if lost {
			return false
		}

		if next != nil {
			held, until = next, sent.Add(renewDeadline)
			p.prolong(until)
		}
	}
}

// drains reports whether the process, which has said at that time that it stops, still waits until its objects are
// drained.
func (p *process) drains(told time.Time) bool {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()

	return !told.IsZero() && p.term && len(p.cache) > 0 && p.w.clock.Since(told) < drainTimeout
}

func (p *process) prolong(until time.Time) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()

	p.until = until
}

// renew renews the Lease once, and waits for the answer at most until the term ends. It returns nil if the renewal
// failed.
func (p *process) renew(ctx context.Context, held *coordinationv1.Lease, now,
	until time.Time) (next *coordinationv1.Lease, lost bool) {
	ctx, cancel := context.WithTimeout(ctx, min(renewDeadline/2, until.Sub(now)))
	defer cancel()

	live := &coordinationv1.Lease{}
	if err := p.client.Leases().Get(ctx, p.id, live); err != nil {
		return nil, apierrors.IsNotFound(err)
	}

	if lease.RecordOf(live).Holder != p.id.Name || live.UID != held.UID {
		return nil, true
	}

	live = p.renewed(live, now)
	if err := p.client.Leases().Update(ctx, live); err != nil {
		return nil, false
	}

	return live, false
}

// release releases the Lease. All workers have stopped before.
func (p *process) release(ctx context.Context, held *coordinationv1.Lease) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()

	live := &coordinationv1.Lease{}
	if err := p.client.Leases().Get(ctx, p.id, live); err != nil || live.UID != held.UID ||
		lease.RecordOf(live).Holder != p.id.Name {
		return
	}

	live.Spec.HolderIdentity = new("")
	live.Spec.RenewTime = new(metav1.NewMicroTime(p.w.clock.Now()))
	_ = p.client.Leases().Update(ctx, live) // otherwise it expires
}

// begin starts to work with caches that are newer than the Lease.
func (p *process) begin(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}

	p.w.mu.Lock()
	p.term = true
	p.cache = map[apiserver.ID]*metav1.PartialObjectMetadata{}
	p.given = map[apiserver.ID]int64{}
	p.acknowledging = map[apiserver.ID]bool{}
	p.w.note("shard %s works", p.id)
	p.w.mu.Unlock()

	for gr := range served {
		p.w.group.Go(func() { p.follow(ctx, gr) })
	}
}

// end stops all work. The lock of the cluster is held.
func (p *process) end() {
	if p.term {
		p.w.note("shard %s works no more", p.id)
	}

	p.term = false
	p.cache = nil
	p.settle()
}

func version(o *metav1.PartialObjectMetadata) int64 {
	v, err := strconv.ParseInt(o.ResourceVersion, 10, 64)
	if err != nil {
		panic("a resource version that is no number: " + o.ResourceVersion)
	}

	return v
}
