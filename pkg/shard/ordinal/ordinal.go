// Package ordinal leads from ordinals to a ring: from a controller in a StatefulSet whose Pods share the objects by a
// hash and their ordinals, to shards, without a stop, and without an object that has two processes or none. See
// docs/ordinals.md for the steps, and [AddClaims].
package ordinal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	appsv1client "k8s.io/client-go/kubernetes/typed/apps/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/pkg/shard"
)

const (
	// claimers is how many objects are claimed at a time, and passes how often a second a process looks at most.
	claimers, passes = 8, 10
	// passPeriod is how often a process looks at least, and when it looks again after a failure, or while the ring exists.
	passPeriod = 5 * time.Second
)

// Claims are the objects that the ring is going to have. The kinds are given by empty objects.
type Claims struct {
	// Hash is that by which the previous version of the controller shares the main objects. Default: [Key].
	Hash Hash
	// Main are the kinds of the ring's resources. At least one.
	Main []client.Object
	// Controlled are those of its controlled resources.
	Controlled []client.Object
	// Namespaces are those that the ring is going to select and the manager caches. Nobody works on objects in others.
	// Default: all but kube-system and sharding-system, as for a ring. Objects without a namespace are always claimed.
	Namespaces []string
}

// claims gives labels to objects that have none, as long as the ring does not exist. It watches only such objects: when
// all have a label, the watches are empty. It looks at all of them after each event, and from time to time.
type claims struct {
	pod        pod
	hash       Hash
	shard      *shard.Shard
	elected    <-chan struct{}
	label      string // the key of the shard label
	kinds      []claimed
	namespaces []string // those of [Claims]; one that is empty stands for all
	live       client.Client
	unlabelled cache.Cache // the metadata of objects without a label
	changed    chan struct{}
	foreign    sync.Map // the uids of objects that have the label of another shard, and control objects without one
}

type claimed struct {
	schema.GroupVersionKind

	controlled bool
}

// AddClaims adds to the manager of a shard what leads from ordinals to a ring: as long as the ring does not exist, this
// process gives the label of the shard to the objects without a label that belong to the ordinal of its Pod, and to
// what they control. The shard must have the name of the Pod. Declare only the main kinds in shard.Options: what
// controllers of this process create has no label until it is claimed, and they must see it.
//
// Why no object has two processes, if the order in docs/ordinals.md is kept:
//
//  1. While some Pods run the previous version, the number of replicas does not change. A Pod of the previous version
//     works on objects of its ordinal. This process gives labels only to objects of its own ordinal.
//  2. When all Pods run this version, the label alone decides who works on an object. A label is given on the condition
//     that the object has not changed since it was seen without.
//  3. The ring is created after that. The rebalancer gives labels on the same condition. An object without a label that
//     is on its way from one shard to another is never claimed: a claim looks for the ring after it has seen the
//     object, and a label that the object had in between would have changed it.
//
// AddClaims returns an error if the ring exists already when this Pod becomes a shard for the first time, although a
// Pod of a lower ordinal is no shard of it yet: that Pod may run the previous version. It does the same if there is no
// ring, but an object has the label of this shard that does not belong to its ordinal, and if the Pod has no ordinal.
//
// In addition to what the shard needs, the process needs get on the ClusterRing, on the Leases of the other Pods, and
// on the StatefulSet, and list and watch on the kinds.
func AddClaims(ctx context.Context, mgr *shard.Manager, of Claims) error {
	s := mgr.Shard()
	c := &claims{hash: of.Hash, shard: s, elected: mgr.Elected(), label: s.LabelKeys().Shard, namespaces: of.Namespaces,
		changed: make(chan struct{}, 1)}

	err := c.configure(mgr, of)
	if err == nil {
		err = c.checkOrder(ctx)
	}

	if err == nil {
		err = errors.Join(mgr.Add(c.unlabelled), mgr.Add(c))
	}

	if err != nil {
		return fmt.Errorf("claim objects for ring %s: %w", s.Ring(), err)
	}

	return nil
}

func (c *claims) configure(mgr *shard.Manager, of Claims) error {
	if len(of.Main) == 0 {
		return errors.New("name at least one main kind")
	}

	if c.hash == nil {
		c.hash = Key
	}

	apps, err := appsv1client.NewForConfig(mgr.GetConfig())
	if err == nil {
		c.pod, err = podOf(c.shard.Name(), apps.StatefulSets(c.shard.Namespace()))
	}

	if err != nil {
		return err
	}

	for i, obj := range slices.Concat(of.Main, of.Controlled) {
		gvk, err := apiutil.GVKForObject(obj, mgr.GetScheme())
		if err != nil {
			return fmt.Errorf("determine the kind of %T: %w", obj, err)
		}

		c.kinds = append(c.kinds, claimed{gvk, i >= len(of.Main)})
	}

	without, err := labels.Parse("!" + c.label)
	if err != nil {
		return fmt.Errorf("select objects without a label: %w", err)
	}

	if len(c.namespaces) == 0 {
		c.namespaces = []string{metav1.NamespaceAll}
	}

	options := cache.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), DefaultLabelSelector: without,
		DefaultNamespaces: map[string]cache.Config{}}
	for _, namespace := range c.namespaces {
		options.DefaultNamespaces[namespace] = cache.Config{}
	}

	c.unlabelled, err = cache.New(mgr.GetConfig(), options)
	if err == nil {
		c.live, err = client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	}

	return err //nolint:wrapcheck // AddClaims says what for
}

// checkOrder returns an error if the ring exists although a Pod of a lower ordinal may still work without labels:
// StatefulSets are updated from the highest ordinal to the lowest. It also does if there is no ring, but there are
// labels that no claim has given.
func (c *claims) checkOrder(ctx context.Context) error {
	exists, err := c.ringExists(ctx)
	if err != nil {
		return err
	}

	if !exists {
		return c.checkLabels(ctx)
	}

	if was, err := c.isShard(ctx, c.pod.ordinal); err != nil || was {
		return err
	}

	s, err := c.pod.share(ctx)
	if err != nil {
		return err
	}

	for ordinal := s.start; ordinal < c.pod.ordinal; ordinal++ {
		is, err := c.isShard(ctx, ordinal)
		if err != nil {
			return err
		}

		if !is {
			return fmt.Errorf("ring %s exists, and Pod %s is no shard of it yet: it may still work on objects that have no "+
				"label. Delete the ring, update all Pods, and create the "+
				"ring then. If all Pods are up to date, this Pod starts as soon as that one is a shard", c.shard.Ring(),
				c.pod.named(ordinal))
		}
	}

	return nil
}

// checkLabels returns an error if a main object has this shard's label, not its ordinal: a Pod of the previous version
// may work on it.
func (c *claims) checkLabels(ctx context.Context) error {
	s, err := c.pod.share(ctx)
	if err != nil {
		return err
	}

	for _, k := range c.kinds {
		if k.controlled {
			continue
		}

		for _, namespace := range c.namespaces {
			list := k.list()
			if err := c.live.List(ctx, list, client.InNamespace(namespace),
				client.MatchingLabelsSelector{Selector: c.shard.Selector()}); err != nil {
				return fmt.Errorf("list the %s objects of this shard: %w", k.Kind, err)
			}

			for i := range list.Items {
				if obj := &list.Items[i]; !s.owns(c.hash(k.GroupKind(), obj)) {
					return fmt.Errorf("there is no ring %s, but %s %s/%s carries the label %s=%s, and does not belong to ordinal "+
						"%d. If an earlier ring has left the label, "+
						"remove it. If the number of replicas was changed after all Pods had been updated, create the ring",
						c.shard.Ring(), k.Kind, obj.Namespace, obj.Name, c.label, c.shard.Name(), c.pod.ordinal)
				}
			}
		}
	}

	return nil
}

func (c *claims) ringExists(ctx context.Context) (bool, error) {
	ring := partial(v1alpha1.GroupVersion.WithKind("ClusterRing"), "", c.shard.Ring())

	err := c.live.Get(ctx, client.ObjectKeyFromObject(ring), ring)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) { // the API server may not serve rings yet
		return false, nil
	}

	if err != nil {
		return false, fmt.Errorf("look for ClusterRing %s: %w", c.shard.Ring(), err)
	}

	return true, nil
}

func (c *claims) isShard(ctx context.Context, ordinal int) (bool, error) {
	lease := partial(coordinationv1.SchemeGroupVersion.WithKind("Lease"), c.shard.Namespace(), c.pod.named(ordinal))

	err := c.live.Get(ctx, client.ObjectKeyFromObject(lease), lease)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("look whether Pod %s is a shard: %w", lease.Name, err)
	}

	return lease.Labels[contract.LabelClusterRing] == c.shard.Ring(), nil
}

func (k claimed) list() *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(k.GroupVersion().WithKind(k.Kind + "List"))

	return list
}

func partial(gvk schema.GroupVersionKind, namespace, name string) *metav1.PartialObjectMetadata {
	obj := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	obj.SetGroupVersionKind(gvk)

	return obj
}

// NeedLeaderElection reports false: claims wait by themselves.
func (*claims) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable: it claims objects until the context ends. It begins with the Lease: somebody works
// on them.
func (c *claims) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-c.elected:
	}

	look := func(any) {
		select {
		case c.changed <- struct{}{}:
		default: // a pass is about to begin
		}
	}
	// What an object controls may be claimed when the object has left the cache.
	events := toolscache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, obj any) { look(obj) },
		DeleteFunc: look}

	for _, k := range c.kinds {
		informer, err := c.unlabelled.GetInformer(ctx, partial(k.GroupVersionKind, "", ""))
		if err == nil {
			_, err = informer.AddEventHandler(events)
		}

		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("watch objects of kind %s without a label: %w", k.Kind, err)
		}
	}

	limit, ticker := flowcontrol.NewTokenBucketRateLimiter(passes, 1), clock.RealClock{}.NewTicker(passPeriod)
	defer ticker.Stop()

	for limit.Wait(ctx) == nil {
		changed := c.changed

		ring, err := c.pass(ctx)
		if err != nil && ctx.Err() == nil {
			log.Log.WithName("ordinal").Error(err, "Cannot claim an object; trying again", "shard", c.shard.Name(),
				"ring", c.shard.Ring())
		}

		if ring || err != nil {
			changed = nil
		}

		select {
		case <-ctx.Done():
		case <-changed:
		case <-ticker.C():
		}
	}

	return nil
}

// candidate is an object that may have to be claimed, and what controls it.
type candidate struct {
	obj, controller *metav1.PartialObjectMetadata
}

// pass claims the objects that are to get the label of this process: main objects by their ordinals, controlled ones by
// the label of their controllers. It reports whether the ring exists: then, labels are the rebalancer's.
func (c *claims) pass(ctx context.Context) (ring bool, err error) {
	var (
		candidates []candidate
		mine       *share
	)

	for _, k := range c.kinds {
		list := k.list()
		if err := c.unlabelled.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return false, fmt.Errorf("list objects of kind %s without a label: %w", k.Kind, err)
		}

		if len(list.Items) > 0 && !k.controlled && mine == nil {
			s, err := c.pod.share(ctx)
			if err != nil {
				return false, err
			}

			mine = &s
		}

		for i := range list.Items {
			found := candidate{obj: &list.Items[i]}
			if k.controlled {
				found.controller = c.controllerOf(ctx, found.obj)
			}

			if found.controller != nil || !k.controlled && c.counts(found.obj) && mine.owns(c.hash(k.GroupKind(), found.obj)) {
				candidates = append(candidates, found)
			}
		}
	}

	if len(candidates) == 0 {
		return false, nil
	}

	// After the objects were seen without a label: what the ring's shards have released since then has changed since then.
	if ring, err := c.ringExists(ctx); err != nil || ring {
		c.foreign.Clear()

		return ring, err
	}

	var work errgroup.Group
	work.SetLimit(claimers)

	for _, found := range candidates {
		work.Go(func() error { return c.claim(ctx, found) })
	}

	return false, work.Wait() //nolint:wrapcheck // it is wrapped
}

// counts reports whether a main object is in a namespace that the ring is going to select.
func (c *claims) counts(obj *metav1.PartialObjectMetadata) bool {
	return c.namespaces[0] != "" || obj.Namespace != metav1.NamespaceSystem && obj.Namespace != contract.SystemNamespace
}

// controllerOf returns what controls the object, without labels; nil if that is not in the ring, has no label, or
// another's.
func (c *claims) controllerOf(ctx context.Context, obj *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	ref := metav1.GetControllerOfNoCopy(obj)
	if ref == nil {
		return nil
	}

	above := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
	i := slices.IndexFunc(c.kinds, func(k claimed) bool { return k.GroupKind() == above })

	if _, foreign := c.foreign.Load(ref.UID); foreign || i < 0 {
		return nil
	}

	controller := partial(c.kinds[i].GroupVersionKind, obj.Namespace, ref.Name)
	if c.unlabelled.Get(ctx, client.ObjectKeyFromObject(controller), controller.DeepCopy()) == nil {
		return nil // it will leave the cache when it has a label
	}

	return controller
}

// claim gives an object the label of the shard, unless it has changed, or what controls it is another shard's.
func (c *claims) claim(ctx context.Context, found candidate) error {
	if controller := found.controller; controller != nil {
		if err := c.live.Get(ctx, client.ObjectKeyFromObject(controller), controller); err != nil {
			return client.IgnoreNotFound(err) // the object is about to be collected
		}

		switch name := controller.Labels[c.label]; {
		case controller.UID != metav1.GetControllerOfNoCopy(found.obj).UID, name == "":
			return nil
		case name != c.shard.Name():
			c.foreign.Store(controller.UID, nil)

			return nil
		}
	}

	obj := found.obj.DeepCopy()
	metav1.SetMetaDataLabel(&obj.ObjectMeta, c.label, c.shard.Name())
	c.foreign.Delete(obj.UID)

	err := c.live.Patch(ctx, obj, client.MergeFromWithOptions(found.obj, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it was deleted, or its event leads here again
	}

	if err != nil {
		return fmt.Errorf("claim %s %s/%s: %w", obj.Kind, obj.Namespace, obj.Name, err)
	}

	return nil
}

// Hash returns a number from which follows which Pod an object belongs to: that with the remainder of the division by
// the number of replicas. It gets the group and kind of the object, and the object. It must return the same number as
// the controller that shares objects by ordinals, and must be safe for concurrent use. With a hash of the uid, an
// object that is made anew may get another Pod while a reconcile of the old one still runs.
type Hash func(gk schema.GroupKind, obj metav1.Object) uint64

// Key is the xxHash64 of the object's key, group/kind/namespace/name. It says nothing of the shard that a ring chooses
// for the key.
func Key(gk schema.GroupKind, obj metav1.Object) uint64 {
	return xxhash.Sum64String(gk.Group + "/" + gk.Kind + "/" + obj.GetNamespace() + "/" + obj.GetName())
}

var errNoOrdinal = errors.New("only Pods of a StatefulSet have an ordinal, as web-0 does, and the shard must have " +
	"the name of its Pod: use shard.NewManager without a name and without slots")

type pod struct {
	sets    appsv1client.StatefulSetInterface
	set     string // the name of the StatefulSet
	ordinal int
}

func podOf(name string, sets appsv1client.StatefulSetInterface) (pod, error) {
	i := strings.LastIndexByte(name, '-')
	if i <= 0 {
		return pod{}, fmt.Errorf("the name %q contains no ordinal: %w", name, errNoOrdinal)
	}

	n, err := strconv.ParseUint(name[i+1:], 10, 31)
	if err != nil || strconv.FormatUint(n, 10) != name[i+1:] {
		return pod{}, fmt.Errorf("the name %q does not end with an ordinal: %w", name, errNoOrdinal)
	}

	return pod{sets, name[:i], int(n)}, nil
}

func (p pod) named(ordinal int) string { return p.set + "-" + strconv.Itoa(ordinal) }

func (p pod) share(ctx context.Context) (share, error) {
	found, err := p.sets.Get(ctx, p.set, metav1.GetOptions{})

	switch {
	case apierrors.IsNotFound(err):
		return share{}, fmt.Errorf("no StatefulSet %s exists, which Pod %s should belong to: %w", p.set,
			p.named(p.ordinal), errNoOrdinal)
	case apierrors.IsForbidden(err):
		return share{}, fmt.Errorf("the service account may not read StatefulSet %s: grant get on statefulsets (API group "+
			"apps, resource name %s) by a Role: %w",
			p.set, p.set, err)
	case err != nil:
		return share{}, fmt.Errorf("read StatefulSet %s: %w", p.set, err)
	}

	return shareOf(found, p.ordinal), nil
}

type share struct {
	start           int // the first ordinal
	index, replicas int // there are no replicas if the ordinal is not one of them: then, the share is empty
}

func shareOf(set *appsv1.StatefulSet, ordinal int) share {
	s := share{replicas: int(ptr.Deref(set.Spec.Replicas, 1))} // 1 is the API's default
	if set.Spec.Ordinals != nil {
		s.start = int(set.Spec.Ordinals.Start)
	}

	if s.index = ordinal - s.start; s.index < 0 || s.index >= s.replicas {
		s.index, s.replicas = 0, 0
	}

	return s
}

func (s share) owns(hash uint64) bool {
	return s.replicas > 0 && hash%uint64(s.replicas) == uint64(s.index) //nolint:gosec // neither is negative
}
