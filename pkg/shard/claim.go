package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// margin is what a renewal of a Lease may take.
const margin = 500 * time.Millisecond

// pricing is how often, and with which pauses, the deletion cost of the Pod is written until that succeeds: for about two minutes.
var pricing = wait.Backoff{Duration: time.Second, Factor: 2, Steps: 8, Jitter: 0.1}

// again is when a process looks for a slot again after something has failed. A Lease that changes makes it look at once.
const again = time.Second

// claim waits until this process holds a slot of the ring, and gives the shard its name.
//
// It takes the first of these: the slot that this Pod already holds, a slot that another Pod offers because it stops, a slot that is free, and a
// slot whose Pod has not renewed its Lease for one and a half times the duration. While there is none, this process is a standby: it has no name,
// and works on nothing. It holds a Lease of its own meanwhile, by which a Pod that stops sees that somebody waits for its slot.
//
// Whoever calls it renews the Lease from then on. claim returns an error if it may not read what the number of slots follows, or if ctx ends first. It
// logs what else the API server refuses, and tries again.
func (s *Shard) claim(ctx context.Context, config *rest.Config) error {
	o := s.options

	client, err := o.leases(config, o.RenewDeadline)
	if err != nil {
		return err
	}

	watching, err := o.leases(config, 0)
	if err != nil {
		return err
	}

	c := &claimer{
		shard: s, options: o, client: client, clock: clock.RealClock{}, log: klog.FromContext(ctx).WithName("slots"), slots: o.Slots.of(o.Ring),
		leases: map[string]observed{}, hidden: map[string]int{},
	}
	if o.Slots.from == scaleSlots {
		if err := c.findWorkload(ctx, config); err != nil {
			return fmt.Errorf("wait for a slot of ring %s: %w", o.Ring, err)
		}
	}

	changed, stop := c.watch(ctx, watching)
	defer stop()

	slot, err := c.run(ctx, changed)
	if err == nil {
		s.become(slot)
	}

	return err
}

// claimer is a process that looks for a slot.
type claimer struct {
	shard   *Shard
	options Options
	// workload is what the number of slots follows; nil if the options contain it.
	workload *workload
	// slots are the names of all slots, as many as the workload had replicas when its scale was last read, at the time read.
	slots  []string
	read   time.Time
	client coordinationv1client.LeaseInterface
	clock  clock.Clock
	log    klog.Logger

	// store contains the Leases of the ring, and was complete at the time began.
	store  toolscache.Store
	began  time.Time
	leases map[string]observed // by name
	// hidden is how often a Lease that this process has not seen was found to exist, by name.
	hidden map[string]int
	// refused is true if a slot could not be taken, and denied if that was not because another process was faster.
	refused, denied bool
}

// findWorkload finds what the number of slots follows. If the API server does not answer, it tries again: were the process to end, it would be
// started less and less often, and be away when the API server is back.
func (c *claimer) findWorkload(ctx context.Context, config *rest.Config) error {
	return wait.PollUntilContextCancel(ctx, again, true, func(ctx context.Context) (_ bool, err error) { //nolint:wrapcheck // claim wraps it
		c.workload, err = ownerOf(ctx, config, c.options)
		if err == nil || errors.Is(err, errNoScale) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			return true, err
		}

		c.log.Error(err, "Could not find the workload whose scale the number of slots follows; trying again", "pod", c.options.Pod)

		return false, nil
	})
}

// watch observes the Leases of the ring until stop is called. It returns when it has seen all of them, or the context has ended. The channel receives
// something after a Lease has changed.
func (c *claimer) watch(ctx context.Context, leases coordinationv1client.LeaseInterface) (changed <-chan struct{}, stop func()) {
	selector := labels.SelectorFromSet(labels.Set{contract.LabelClusterRing: c.options.Ring}).String()
	source := &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector

			list, err := leases.List(ctx, o)
			if err != nil && ctx.Err() == nil {
				c.log.Error(err, "Could not list the Leases of the ring; a shard with slots needs list and watch on leases in its namespace")
			}

			return list, err //nolint:wrapcheck // the reflector looks for Gone
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector

			return leases.Watch(ctx, o)
		},
	}
	events, ended := make(chan struct{}, 1), make(chan struct{})
	note := func(any) {
		select {
		case events <- struct{}{}:
		default:
		}
	}
	store, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: source, ObjectType: &coordinationv1.Lease{},
		Handler: toolscache.ResourceEventHandlerFuncs{AddFunc: note, UpdateFunc: func(_, obj any) { note(obj) }, DeleteFunc: note},
	})
	ctx, cancel := context.WithCancel(ctx)

	go func() {
		defer close(ended)

		informer.RunWithContext(ctx)
	}()

	toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced)

	c.store, c.began = store, c.clock.Now()

	return events, func() {
		cancel()
		<-ended
	}
}

// observe notes how the Leases are, and that they were seen now.
func (c *claimer) observe(now time.Time) {
	seen := sets.New[string]()

	for _, obj := range c.store.List() {
		if lease, ok := obj.(*coordinationv1.Lease); ok {
			seen.Insert(lease.Name)
			delete(c.hidden, lease.Name)
			c.leases[lease.Name] = c.leases[lease.Name].then(lease, now)
		}
	}

	for name, o := range c.leases {
		if o.lease != nil && !seen.Has(name) {
			c.leases[name] = o.without(now)
		}
	}
}

// run waits for a slot, takes it, and returns its name.
func (c *claimer) run(ctx context.Context, changed <-chan struct{}) (string, error) {
	standby := &standby{options: c.options, client: c.client, clock: c.clock, log: c.log}
	defer standby.leave()

	for {
		slot, next := c.attempt(ctx)
		if slot != "" {
			return slot, nil
		}

		there := standby.renew(ctx, c.slots)
		// A process that is about to take a slot is no standby: it is ready when it works.
		c.shard.standsBy.Store(there && len(c.slots) > 0 && !c.denied && next > c.missing())

		if c.workload != nil {
			next = min(next, scalePeriod)
		}

		wake := changed
		if c.refused {
			wake, next = nil, min(next, again) // changes must not make it ask all the time
		}

		timer := c.clock.NewTimer(next)

		select {
		case <-ctx.Done():
			timer.Stop()

			return "", fmt.Errorf("wait for one of the %d slots of ring %s: %w", len(c.slots), c.options.Ring, context.Cause(ctx))
		case <-wake:
		case <-timer.C():
		}

		timer.Stop()
	}
}

// attempt takes the best slot. If there is none, it returns how long there will be none unless a Lease changes.
func (c *claimer) attempt(ctx context.Context) (string, time.Duration) {
	c.follow(ctx)

	now := c.clock.Now()
	c.observe(now)

	c.refused, c.denied = false, false
	tried := sets.New[string]()

	for {
		best, next := chooser{
			me: pod{c.options.Pod, c.options.PodUID}, without: tried.Has, now: now, began: c.began, missing: c.missing(),
		}.choose(c.slots, c.leases)
		if best == nil && next.IsZero() || ctx.Err() != nil {
			return "", standbyPeriod
		} else if best == nil {
			return "", min(next.Sub(now), standbyPeriod)
		}

		err := c.take(ctx, best)
		if err == nil {
			c.log.Info("Took a slot", "ring", c.options.Ring, "slot", best.name, "pod", c.options.Pod, "was", best.why.String())
			c.price(ctx, best.name)

			return best.name, 0
		}

		c.refused = true
		tried.Insert(best.name)

		switch {
		case ctx.Err() != nil || apierrors.IsConflict(err):
		case apierrors.IsAlreadyExists(err):
			c.exists(best.name)
		default:
			c.denied = true
			c.log.Error(err, "Could not take a slot; trying again", "slot", best.name, "pod", c.options.Pod)
		}
	}
}

// exists records that the Lease of a slot exists, although this process has seen none. It may be about to see it. If not, it reports that once.
func (c *claimer) exists(slot string) {
	const soon = 3

	if c.hidden[slot]++; c.hidden[slot] == soon {
		c.log.Error(nil, "Nobody can take a slot, because its Lease exists without the label of the ring: rename or delete this Lease, or find out what removes the label",
			"slot", slot, "namespace", c.options.Namespace, "label", contract.LabelClusterRing+"="+c.options.Ring)
	}
}

// follow reads the scale of the workload if that is due. If it cannot be read, the last one counts.
func (c *claimer) follow(ctx context.Context) {
	now := c.clock.Now()
	if c.workload == nil || !c.read.IsZero() && now.Sub(c.read) < scalePeriod {
		return
	}

	c.read = now

	replicas, err := c.workload.replicas(ctx)
	if err != nil {
		c.log.Error(err, "Could not read the number of slots", "ring", c.options.Ring, "slots", len(c.slots))
		return
	}

	if last, problems := lastSlot(c.options.Ring, replicas); len(problems) > 0 {
		c.log.Error(nil, "The name of the ring is too long for so many slots", "ring", c.options.Ring, "slot", last, "slots", len(c.slots))
		return
	}

	c.slots = slotsOf(c.options.Ring, replicas)
}

// price makes the Pods of the highest slots be deleted first when the workload is scaled down. If it cannot, any may be. The slot's Lease must be
// renewed soon, so price does not wait for the API server.
func (c *claimer) price(ctx context.Context, slot string) {
	if c.workload == nil {
		return
	}

	number := slices.Index(c.slots, slot)

	go func() {
		err := wait.ExponentialBackoffWithContext(ctx, pricing, func(ctx context.Context) (bool, error) {
			err := c.workload.price(ctx, c.options.Pod, number)
			if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
				return false, err
			}

			return err == nil, nil
		})
		if err != nil && ctx.Err() == nil {
			c.log.Info("When the workload is scaled down, any Pod may be deleted, not that of the highest slot; this needs the permission to patch pods", "error", err.Error())
		}
	}()
}

// missing is how long a slot's Lease must not exist before this process creates it: as long as a holder that still works may take to create it
// again, if it has the same options.
func (c *claimer) missing() time.Duration {
	return time.Duration(jitter*float64(c.options.RetryPeriod)) + margin
}

// take writes this Pod's name to the Lease of the slot. The write fails if the Lease is not as it was observed: then somebody has renewed or
// taken it.
func (c *claimer) take(ctx context.Context, slot *choice) error {
	l := c.shard.lockFor(c.client, slot.name)
	now := metav1.NewTime(c.clock.Now())

	record := resourcelock.LeaderElectionRecord{
		HolderIdentity: slot.name, LeaseDurationSeconds: int(c.options.LeaseDuration / time.Second), AcquireTime: now, RenewTime: now,
	}
	if l.lease = slot.lease; l.lease != nil {
		before := resourcelock.LeaseSpecToLeaderElectionRecord(&l.lease.Spec)
		record.LeaderTransitions = before.LeaderTransitions + 1

		if l.settled = l.isSettled(before); l.settled && slot.why != free {
			// The slot's name has held the Lease all the time. Otherwise, the Lease was free lately, also for a predecessor that has not held off to the
			// end: who reads it must see that.
			record.AcquireTime = before.AcquireTime
		}
	}

	return l.write(ctx, record)
}
