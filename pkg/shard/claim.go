package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/shard/internal/elect"
)

// margin is what a renewal of a Lease may take.
const margin = 500 * time.Millisecond

// again is when a process looks for a slot again after a failure. A Lease that changes makes it look at once.
const again = time.Second

// claim waits until this process holds a slot of the ring, and gives the shard its name. It takes the first of these:
// the slot that this Pod already holds, one that another Pod offers because it stops, one that is free, and one whose
// Pod has not renewed its Lease for one and a half times the duration. While there is none, this process is a standby:
// it has no name, works on nothing, and holds a Lease of its own, by which a Pod that stops sees that somebody waits.
//
// The caller renews the Lease from then on. claim returns an error if it may not read what the number of slots follows,
// or if ctx ends first. It logs what else the API server refuses, and tries again.
func (s *Shard) claim(ctx context.Context, config *rest.Config) error {
	o := s.options

	leases, err := o.leases(config, o.RenewDeadline)
	if err != nil {
		return err
	}

	watching, err := elect.Client(config, "shard-lease", 0)
	if err != nil {
		return err
	}

	c := &claimer{
		shard: s, options: o, client: leases, clock: clock.RealClock{}, log: klog.FromContext(ctx).WithName("slots"),
		slots:  o.Slots.of(o.Ring),
		leases: map[string]observed{},
	}
	if o.Slots.from == scaleSlots {
		if err := c.findWorkload(ctx, config); err != nil {
			return fmt.Errorf("wait for a slot of ring %s: %w", o.Ring, err)
		}
	}

	defer c.watch(ctx, watching.RESTClient())()

	return c.run(ctx)
}

type claimer struct {
	shard   *Shard
	options Options
	// workload is what the number of slots follows; nil if the options contain it.
	workload *workload
	// slots are the names of all slots, as many as the workload had replicas when its scale was last read, read.
	slots  []string
	read   time.Time
	client coordinationv1client.LeaseInterface
	clock  clock.Clock
	log    klog.Logger

	// leases are the Leases of the ring, by name. They were complete at the time began, and changes follow.
	leases  map[string]observed
	began   time.Time
	changes <-chan watch.Event
}

// findWorkload finds what the number of slots follows. If the API server does not answer, it tries again: were the
// process to end, it would be started less and less often, and be away when the API server is back.
func (c *claimer) findWorkload(ctx context.Context, config *rest.Config) error {
	//nolint:wrapcheck // claim wraps it
	return wait.PollUntilContextCancel(ctx, again, true, func(ctx context.Context) (_ bool, err error) {
		c.workload, err = ownerOf(ctx, config, c.options)
		if err == nil || errors.Is(err, errNoScale) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			return true, err
		}

		c.log.Error(err, "Could not find the workload whose scale the slots follow; trying again", "pod", c.options.Pod)

		return false, nil
	})
}

// watch sees all Leases of the ring, unless the context ends. It watches them until the returned function is called.
func (c *claimer) watch(ctx context.Context, client toolscache.Getter) (stop func()) {
	source := toolscache.NewFilteredListWatchFromClient(client, "leases", c.options.Namespace,
		func(o *metav1.ListOptions) {
			o.LabelSelector = contract.LabelClusterRing + "=" + c.options.Ring
		})
	store, informer, events, ended := watchtools.NewIndexerInformerWatcherWithLogger(klog.FromContext(ctx), source,
		&coordinationv1.Lease{})

	toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced)

	c.began, c.changes = c.clock.Now(), events.ResultChan()

	for _, obj := range store.List() {
		if lease, ok := obj.(*coordinationv1.Lease); ok {
			c.see(watch.Event{Type: watch.Added, Object: lease})
		}
	}

	return func() {
		events.Stop()
		<-ended
	}
}

func (c *claimer) see(event watch.Event) {
	lease, ok := event.Object.(*coordinationv1.Lease)

	switch now := c.clock.Now(); {
	case !ok:
	case event.Type == watch.Deleted:
		c.leases[lease.Name] = c.leases[lease.Name].without(now)
	default:
		c.leases[lease.Name] = c.leases[lease.Name].then(lease, now)
	}
}

func (c *claimer) run(ctx context.Context) error {
	standby := &standby{options: c.options, client: c.client, clock: c.clock, log: c.log}
	defer standby.leave()

	// refused are the slots that were not taken since the last wait, and denied is true if not because another process was
	// faster.
	refused, denied := sets.New[string](), false

	for ctx.Err() == nil {
		c.follow(ctx)

		now, next := c.clock.Now(), standbyPeriod

		best, at := chooser{
			me: pod{c.options.Pod, c.options.PodUID}, without: refused.Has, now: now, began: c.began, missing: c.missing(),
		}.choose(c.slots, c.leases)
		if best != nil {
			err := c.take(ctx, best)
			if err == nil {
				c.log.Info("Took a slot", "ring", c.options.Ring, "slot", best.name, "pod", c.options.Pod)
				c.price(ctx, best.name)
				c.shard.become(best.name)

				return nil
			}

			refused.Insert(best.name)

			denied = c.denied(ctx, best.name, err) || denied

			continue
		}

		if !at.IsZero() {
			next = min(next, at.Sub(now))
		}

		there := standby.renew(ctx, c.slots)
		// A process that is about to take a slot is no standby: it is ready when it works.
		c.shard.standsBy.Store(there && len(c.slots) > 0 && !denied && next > c.missing())

		if c.workload != nil {
			next = min(next, scalePeriod)
		}

		c.wait(ctx, next, len(refused) > 0)
		refused.Clear()

		denied = false
	}

	return fmt.Errorf("wait for one of the %d slots of ring %s: %w", len(c.slots), c.options.Ring, context.Cause(ctx))
}

// wait returns after the time, or when a Lease has changed. If a slot was refused, changes do not make it ask all the
// time.
func (c *claimer) wait(ctx context.Context, limit time.Duration, refused bool) {
	if refused {
		limit = min(limit, again)
	}

	for over := c.clock.After(limit); ; {
		select {
		case <-ctx.Done():
			return
		case <-over:
			return
		case event := <-c.changes:
			if c.see(event); !refused {
				return
			}
		}
	}
}

// denied reports why a slot could not be taken, and whether that is not because another process was faster.
func (c *claimer) denied(ctx context.Context, slot string, err error) bool {
	if ctx.Err() != nil || apierrors.IsConflict(err) {
		return false
	}

	if !apierrors.IsAlreadyExists(err) {
		c.log.Error(err, "Could not take a slot; trying again", "slot", slot, "pod", c.options.Pod)

		return true
	}

	// Usually, this process is about to see the Lease.
	lease, err := c.client.Get(ctx, slot, metav1.GetOptions{})
	if err == nil && lease.Labels[contract.LabelClusterRing] != c.options.Ring {
		c.log.Error(nil, "Nobody can take a slot, because its Lease exists without the label of the ring: rename or "+
			"delete this Lease, or find out what removes the label",
			"slot", slot, "namespace", c.options.Namespace, "label", contract.LabelClusterRing+"="+c.options.Ring)
	}

	return false
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

	if slots := slotsOf(c.options.Ring, replicas); len(slots) > 0 && shardName(slots[len(slots)-1]) != nil {
		c.log.Error(nil, "The name of the ring is too long for so many slots", "ring", c.options.Ring,
			"slot", slots[len(slots)-1], "slots", len(c.slots))
	} else {
		c.slots = slots
	}
}

// price makes the Pods of the highest slots be deleted first when the workload is scaled down. If it cannot, any may
// be. The slot's Lease must be renewed soon, so price does not wait for the API server.
func (c *claimer) price(ctx context.Context, slot string) {
	if c.workload == nil {
		return
	}

	number := slices.Index(c.slots, slot)

	go func() {
		if err := c.workload.price(ctx, c.options.Pod, number); err != nil && ctx.Err() == nil {
			c.log.Info("When the workload is scaled down, any Pod may be deleted, not that of the highest slot; this needs "+
				"the permission to patch pods", "error", err.Error())
		}
	}()
}

// missing is how long a slot's Lease must not exist before this process creates it: as long as a holder that still
// works may take to create it again, if it has the same options.
func (c *claimer) missing() time.Duration {
	return time.Duration(jitter*float64(c.options.RetryPeriod)) + margin
}

// take writes this Pod's name to the Lease of the slot. It fails if somebody has renewed or taken the Lease.
func (c *claimer) take(ctx context.Context, slot *choice) error {
	l := c.shard.lockFor(c.client, slot.name)
	now := metav1.NewTime(c.clock.Now())

	record := resourcelock.LeaderElectionRecord{
		HolderIdentity: slot.name, LeaseDurationSeconds: int(c.options.LeaseDuration / time.Second), AcquireTime: now,
		RenewTime: now,
	}
	if l.lease = slot.lease; l.lease != nil {
		before := resourcelock.LeaseSpecToLeaderElectionRecord(&l.lease.Spec)
		record.LeaderTransitions = before.LeaderTransitions + 1

		if l.settled = l.isSettled(before); l.settled && slot.why != free {
			// The slot's name has held the Lease all the time. Otherwise, the Lease was free lately, also for a predecessor that
			// has not held off to the end: who reads it must see that.
			record.AcquireTime = before.AcquireTime
		}
	}

	return l.write(ctx, record)
}

const (
	// scalePeriod is how often a process that waits for a slot reads the scale. One that holds a slot does not read it.
	scalePeriod = 5 * time.Second
	// scaleTimeout limits a request. A process that waits for one cannot take a slot that is offered for 5 s.
	scaleTimeout = 2 * time.Second
	// mostOwners bounds the owners of a Pod: a ReplicaSet, its Deployment, and two that others may have put above.
	mostOwners = 4
	// deletionCost is how ReplicaSets choose which of their Pods to delete: that with the lowest cost first.
	deletionCost = "controller.kubernetes.io/pod-deletion-cost"
)

var (
	errNoScale = errors.New("it has no owner with a scale")
	podKind    = corev1.SchemeGroupVersion.WithKind("Pod")
)

// workload is what owns the Pods of shards, or such a Pod.
type workload struct {
	client client.Client
	object *unstructured.Unstructured
}

// ownerOf returns the topmost owner of the Pod that has a scale and may be read: a Deployment, for example, and neither
// its ReplicaSet, nor a custom resource that controls it and whose scale this process may not read.
func ownerOf(ctx context.Context, config *rest.Config, o Options) (*workload, error) {
	limited := rest.CopyConfig(config)
	limited.Timeout = scaleTimeout

	reader, err := client.New(limited, client.Options{})
	if err != nil {
		return nil, fmt.Errorf("create the client for scales: %w", err)
	}

	var owners []*workload

	for child := workloadOf(reader, podKind, o.Namespace, o.Pod); child != nil && len(owners) < mostOwners; {
		above, err := child.owner(ctx)
		if err != nil && (len(owners) == 0 || !child.mayBeHidden(err)) {
			return nil, fmt.Errorf("find the workload of Pod %s/%s, which takes the permission to get the Pod and what owns "+
				"it: %w", o.Namespace, o.Pod, err)
		}

		if child = above; above != nil {
			owners = append(owners, above)
		}
	}

	for _, w := range slices.Backward(owners) {
		_, err := w.replicas(ctx)
		if err == nil {
			return w, nil
		}

		if !apierrors.IsNotFound(err) && !w.mayBeHidden(err) {
			return nil, err // what is below it would be the wrong one
		}
	}

	return nil, fmt.Errorf("pod %s/%s: %w: set a number of slots", o.Namespace, o.Pod, errNoScale)
}

func workloadOf(c client.Client, kind schema.GroupVersionKind, namespace, name string) *workload {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	object.SetNamespace(namespace)
	object.SetName(name)

	return &workload{client: c, object: object}
}

// owner returns what controls the object; nil if nothing does. What controls a Deployment may be in no namespace.
func (w *workload) owner(ctx context.Context) (*workload, error) {
	if err := w.client.Get(ctx, client.ObjectKeyFromObject(w.object), w.object); err != nil {
		return nil, fmt.Errorf("read %s %s: %w", w.object.GetKind(), w.object.GetName(), err)
	}

	ref := metav1.GetControllerOf(w.object)
	if ref == nil {
		return nil, nil //nolint:nilnil // nothing controls it
	}

	return workloadOf(w.client, schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind), w.object.GetNamespace(),
		ref.Name), nil
}

// mayBeHidden reports whether the error means that this process may not read the workload, and need not: it is not one
// of Kubernetes' own, whose scale would be the right one.
func (w *workload) mayBeHidden(err error) bool {
	return w.object.GroupVersionKind().Group != appsv1.GroupName &&
		(apierrors.IsForbidden(err) || meta.IsNoMatchError(err))
}

func (w *workload) replicas(ctx context.Context) (int, error) {
	var (
		scale    unstructured.Unstructured
		replicas int64
	)

	err := w.client.SubResource("scale").Get(ctx, w.object, &scale)
	if err == nil {
		replicas, _, err = unstructured.NestedInt64(scale.Object, "spec", "replicas")
	}

	if err == nil && (replicas < 0 || replicas > contract.MaxSlots) {
		err = fmt.Errorf("%d replicas are more than the %d slots that a ring may have", replicas, contract.MaxSlots)
	}

	if err != nil {
		return 0, fmt.Errorf("read the scale of %s %s: %w", w.object.GetKind(), w.object.GetName(), err)
	}

	return int(replicas), nil
}

// price tells ReplicaSets to delete the Pod of the highest slot first, and those without one, of cost 0, before that.
func (w *workload) price(ctx context.Context, pod string, slot int) error {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, deletionCost, contract.MaxSlots-slot)

	object := workloadOf(w.client, podKind, w.object.GetNamespace(), pod).object
	if err := w.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("annotate Pod %s with %s: %w", pod, deletionCost, err)
	}

	return nil
}
