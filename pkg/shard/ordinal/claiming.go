package ordinal

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/shard"
)

const (
	// claimers is how many objects are claimed at a time.
	claimers = 8
	// byController indexes objects by the uid of their controller.
	byController = "controller"
	// longestRetry bounds the wait after failures.
	firstRetry, longestRetry = 50 * time.Millisecond, 10 * time.Second
)

// claims gives labels to objects that have none, as long as the ring does not exist. It watches only such objects: when all have a label, the watches
// are empty.
type claims struct {
	process *Process
	shard   *shard.Shard
	client  metadata.Interface
	key     string // the shard label
	kinds   map[schema.GroupKind]*claimed
	// namespaces are those of [Claims].
	namespaces []string
	queue      workqueue.TypedRateLimitingInterface[claim]

	ring atomic.Bool // whether the ring exists, as far as is known
}

// claimed is a kind of which objects are claimed.
type claimed struct {
	kind                   schema.GroupKind
	resource               schema.GroupVersionResource
	controlled, namespaced bool
	// unlabelled are informers of the objects without a label, by namespace; that of the empty namespace is one of all.
	unlabelled map[string]toolscache.SharedIndexInformer
}

// claim is an object that may have to be claimed.
type claim struct {
	schema.GroupKind
	types.NamespacedName
}

// Start implements manager.Runnable: it claims objects until the context ends. It begins when the shard holds its Lease, so that somebody works on them.
func (c *claims) Start(ctx context.Context) error {
	logger := log.Log.WithName("ordinal").WithValues("shard", c.shard.Name(), "ring", c.shard.Ring())
	ctx = log.IntoContext(ctx, logger)
	changes := c.process.listen()
	c.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[claim](firstRetry, longestRetry))

	var running sync.WaitGroup
	defer running.Wait()

	for _, k := range c.kinds {
		if err := c.watch(k); err != nil {
			return err
		}

		for _, informer := range k.unlabelled {
			running.Go(func() { informer.RunWithContext(ctx) })
		}
	}

	for range claimers {
		running.Go(func() {
			for c.next(ctx) {
			}
		})
	}

	defer c.queue.ShutDown()

	running.Go(func() { wait.UntilWithContext(ctx, c.lookForRing, ringPeriod) })

	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changes:
			c.all()
		}
	}
}

// watch sets up the watches of the objects without a label.
func (c *claims) watch(k *claimed) error {
	for _, namespace := range c.watchedNamespaces(k) {
		if err := c.watchIn(k, namespace); err != nil {
			return err
		}
	}

	return nil
}

// watchedNamespaces returns the namespaces in which objects of the kind are watched.
func (c *claims) watchedNamespaces(k *claimed) []string {
	if len(c.namespaces) == 0 || !k.namespaced {
		return []string{metav1.NamespaceAll}
	}

	return c.namespaces
}

func (c *claims) watchIn(k *claimed, namespace string) error {
	informer := metadatainformer.NewFilteredMetadataInformer(c.client, k.resource, namespace, 0, toolscache.Indexers{byController: controllerOf},
		func(o *metav1.ListOptions) { o.LabelSelector = "!" + c.key }).Informer()
	k.unlabelled[namespace] = informer

	add := func(obj any) {
		if object, ok := obj.(*metav1.PartialObjectMetadata); ok {
			c.add(k, object)
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }}); err != nil {
		return fmt.Errorf("watch %s: %w", k.resource.Resource, err)
	}

	return nil
}

// controllerOf is the function of the index byController.
func controllerOf(obj any) ([]string, error) {
	object, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return nil, nil
	}

	if controller := metav1.GetControllerOfNoCopy(object); controller != nil {
		return []string{string(controller.UID)}, nil
	}

	return nil, nil
}

func (c *claims) add(k *claimed, obj *metav1.PartialObjectMetadata) {
	if len(c.namespaces) == 0 && (obj.Namespace == metav1.NamespaceSystem || obj.Namespace == contract.SystemNamespace) {
		return
	}

	c.queue.Add(claim{k.kind, types.NamespacedName{Namespace: obj.Namespace, Name: obj.Name}})
}

// all looks at all objects without a label.
func (c *claims) all() {
	for _, k := range c.kinds {
		for _, informer := range k.unlabelled {
			for _, obj := range informer.GetStore().List() {
				if object, ok := obj.(*metav1.PartialObjectMetadata); ok {
					c.add(k, object)
				}
			}
		}
	}
}

// lookForRing finds out whether the ring exists. While it does, labels are the rebalancer's.
func (c *claims) lookForRing(ctx context.Context) {
	exists, err := c.ringExists(ctx)
	if err != nil {
		if ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Claiming as before, because it is not known whether the ring exists")
		}

		return
	}

	switch changed := c.ring.Swap(exists) != exists; {
	case changed && exists:
		log.FromContext(ctx).Info("The ring exists: the rebalancer gives labels")
	case changed:
		log.FromContext(ctx).Info("The ring does not exist: claiming the objects of the ordinal", "ordinal", c.process.ordinal)
		c.all()
	}
}

func (c *claims) next(ctx context.Context) bool {
	item, ended := c.queue.Get()
	if ended {
		return false
	}
	defer c.queue.Done(item)

	err := c.decide(ctx, item)

	switch {
	case err == nil || ctx.Err() != nil:
		c.queue.Forget(item)
	case apierrors.IsConflict(err):
		c.queue.AddRateLimited(item) // its event may come first
	default:
		log.FromContext(ctx).Error(err, "Cannot claim an object; trying again")
		c.queue.AddRateLimited(item)
	}

	return true
}

// decide claims the object if it is this process's.
func (c *claims) decide(ctx context.Context, item claim) error {
	k := c.kinds[item.GroupKind]

	obj, err := k.find(item.NamespacedName)
	if err != nil || obj == nil || c.ring.Load() {
		return err
	}

	mine, err := c.owns(ctx, k, obj)
	if err != nil || !mine {
		return err
	}

	// After the object was seen without a label: what the ring's shards have released since then has changed since then.
	if exists, err := c.ringExists(ctx); err != nil || exists {
		return err
	}

	if err := c.label(ctx, k, obj); err != nil {
		return err
	}

	return c.addControlled(obj)
}

// find returns an object without a label, or nil if there is no such object.
func (k *claimed) find(name types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
	informer := k.unlabelled[name.Namespace]
	if informer == nil {
		informer = k.unlabelled[metav1.NamespaceAll]
	}

	found, _, err := informer.GetStore().GetByKey(toolscache.NewObjectName(name.Namespace, name.Name).String())
	if err != nil {
		return nil, fmt.Errorf("look for an object without a label: %w", err)
	}

	obj, _ := found.(*metav1.PartialObjectMetadata)

	return obj, nil
}

// owns reports whether the object is to get the label of this process: a main object by its ordinal, a controlled object by the label of its controller.
func (c *claims) owns(ctx context.Context, k *claimed, obj *metav1.PartialObjectMetadata) (bool, error) {
	if !k.controlled {
		return c.process.share().owns(c.process.options.Hash(k.kind, obj)), nil
	}

	controller := metav1.GetControllerOfNoCopy(obj)
	if controller == nil {
		return false, nil
	}

	group, err := schema.ParseGroupVersion(controller.APIVersion)
	if err != nil {
		return false, nil //nolint:nilerr // no kind of the ring
	}

	above := c.kinds[schema.GroupKind{Group: group.Group, Kind: controller.Kind}]
	if above == nil {
		return false, nil
	}

	namespace := obj.Namespace
	if !above.namespaced {
		namespace = ""
	}

	owner, err := c.client.Resource(above.resource).Namespace(namespace).Get(ctx, controller.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil // it is about to be collected
	}

	if err != nil {
		return false, fmt.Errorf("read what controls %s %s/%s: %w", k.resource.Resource, obj.Namespace, obj.Name, err)
	}

	// An owner without a label leads here again when it gets one.
	return owner.UID == controller.UID && owner.Labels[c.key] == c.shard.Name(), nil
}

// addControlled looks at what an object controls that was just claimed.
func (c *claims) addControlled(obj *metav1.PartialObjectMetadata) error {
	for _, k := range c.kinds {
		if !k.controlled {
			continue
		}

		for _, informer := range k.unlabelled {
			found, err := informer.GetIndexer().ByIndex(byController, string(obj.UID))
			if err != nil {
				return fmt.Errorf("look for what %s controls: %w", obj.Name, err)
			}

			for _, child := range found {
				if object, ok := child.(*metav1.PartialObjectMetadata); ok {
					c.add(k, object)
				}
			}
		}
	}

	return nil
}
