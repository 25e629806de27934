package ordinal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/pkg/shard"
)

// listPage is how many objects one request lists.
const listPage = 500

// ringPeriod is how often a process looks whether the ring exists. It also does so right before each claim.
const ringPeriod = 5 * time.Second

var (
	clusterRings = v1alpha1.GroupVersion.WithResource("clusterrings")
	leases       = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
)

// Claims are the objects that the ring is going to have. The kinds are given by empty objects.
type Claims struct {
	// Main are the kinds of the ring's resources. At least one.
	Main []client.Object
	// Controlled are those of its controlled resources.
	Controlled []client.Object
	// Namespaces are those that the ring is going to select and the manager caches. Nobody works on objects in others. Default: all but kube-system and
	// sharding-system, as for a ring. Objects that belong to no namespace are always claimed.
	Namespaces []string
}

// AddClaims adds to the manager of a shard what leads from ordinals to a ring: as long as the ring does not exist, this process gives the label of the
// shard to the objects without a label that belong to its ordinal, and to what they control. Its controllers are those of the shard, and work
// only on objects with the label. The process must therefore not use [Process.Reconciler]. The shard must have the name of the Pod. Declare only
// the main kinds in shard.Options: what controllers of this process create has no label until it is claimed, and they must see it.
//
// Why no object has two processes, if the order in docs/ordinals.md is kept:
//
//  1. While some Pods run the previous version, the number of replicas does not change. A Pod of the previous version works on objects of its ordinal.
//     This process gives labels only to objects of its own ordinal, of which there is one Pod.
//  2. When all Pods run this version, the label alone decides who works on an object, and nobody works on an object without one. A label is given on the
//     condition that the object has not changed since it was seen without. So it does not matter whose number of replicas is old.
//  3. The ring is created after that. The rebalancer gives labels to objects without one on the same condition, and takes an object from a shard only
//     by a drain, as always. An object without a label that is on its way from one shard to another is never claimed: a claim looks for the ring after
//     it has seen the object, and a label that the object had in between would have changed it.
//
// If the ring exists already when this Pod becomes a shard for the first time, although a Pod of a lower ordinal is no shard of it yet, that Pod may run
// the previous version, and the rebalancer would give away the objects that it works on. AddClaims then returns an error. It does the same if there is no
// ring, but an object has the label of this shard that does not belong to its ordinal.
//
// In addition to what the shard needs, the process needs get on the ClusterRing and on the Leases of the other Pods, list and watch on the kinds, and get, list, and watch on the StatefulSet.
func (p *Process) AddClaims(ctx context.Context, mgr *shard.Manager, of Claims) error {
	s := mgr.Shard()
	if err := p.checkClaims(s, of); err != nil {
		return fmt.Errorf("claim objects for ring %s: %w", s.Ring(), err)
	}

	reader, err := metadata.NewForConfig(mgr.GetConfig())
	if err != nil {
		return fmt.Errorf("create the client of claims: %w", err)
	}

	c := &claims{process: p, shard: s, client: reader, key: s.LabelKeys().Shard, kinds: map[schema.GroupKind]*claimed{}, namespaces: of.Namespaces}
	c.ring.Store(true) // until it is known

	for controlled, objects := range map[bool][]client.Object{false: of.Main, true: of.Controlled} {
		for _, obj := range objects {
			if err := c.addKind(mgr, obj, controlled); err != nil {
				return err
			}
		}
	}

	if err := c.checkOrder(ctx); err != nil {
		return err
	}

	if err := errors.Join(mgr.Add(p), mgr.Add(afterElection{c, mgr.Elected()})); err != nil {
		return fmt.Errorf("add the claims to the manager: %w", err)
	}

	return nil
}

// afterElection starts what works only while the shard holds its Lease.
type afterElection struct {
	manager.Runnable

	elected <-chan struct{}
}

// Start implements manager.Runnable.
func (r afterElection) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.elected:
		return r.Runnable.Start(ctx) //nolint:wrapcheck // it is the runnable's
	}
}

// NeedLeaderElection reports false: it waits by itself.
func (afterElection) NeedLeaderElection() bool { return false }

func (p *Process) checkClaims(s *shard.Shard, of Claims) error {
	switch {
	case s.Name() != p.options.PodName:
		return fmt.Errorf("the shard has the name %q instead of that of the Pod, %q: use shard.New without a name and without slots", s.Name(), p.options.PodName)
	case s.Namespace() != p.options.Namespace:
		return fmt.Errorf("the Lease of the shard is in namespace %q instead of that of the Pod, %q", s.Namespace(), p.options.Namespace)
	case len(of.Main) == 0:
		return errors.New("name at least one main kind")
	}

	return nil
}

func (c *claims) addKind(mgr manager.Manager, obj client.Object, controlled bool) error {
	gvk, err := apiutil.GVKForObject(obj, mgr.GetScheme())
	if err != nil {
		return fmt.Errorf("determine the kind of %T: %w", obj, err)
	}

	mapping, err := mgr.GetRESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return fmt.Errorf("determine the resource of %s: %w", gvk.Kind, err)
	}

	c.kinds[gvk.GroupKind()] = &claimed{
		kind: gvk.GroupKind(), resource: mapping.Resource, controlled: controlled, namespaced: mapping.Scope.Name() == meta.RESTScopeNameNamespace,
		unlabelled: map[string]toolscache.SharedIndexInformer{},
	}

	return nil
}

// ringExists reports whether the ring exists, deleted or not.
func (c *claims) ringExists(ctx context.Context) (bool, error) {
	_, err := c.client.Resource(clusterRings).Get(ctx, c.shard.Ring(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err): // also if the API server does not serve rings yet
		return false, nil
	case apierrors.IsForbidden(err):
		return false, fmt.Errorf("grant get on clusterrings (API group %s, resource name %s) by a ClusterRole: %w", clusterRings.Group, c.shard.Ring(), err)
	case err != nil:
		return false, fmt.Errorf("look for ClusterRing %s: %w", c.shard.Ring(), err)
	}

	return true, nil
}

// checkOrder returns an error if the ring exists although a Pod of a lower ordinal may still work without labels: StatefulSets are updated from the
// highest ordinal to the lowest. It also returns an error if there is no ring, but there are labels that no claim has given.
func (c *claims) checkOrder(ctx context.Context) error {
	exists, err := c.ringExists(ctx)
	if err != nil {
		return err
	}

	if !exists {
		return c.checkLabels(ctx)
	}

	if was, err := c.isShard(ctx, c.process.ordinal); err != nil || was {
		return err
	}

	for ordinal := c.process.numbers().start; ordinal < c.process.ordinal; ordinal++ {
		is, err := c.isShard(ctx, ordinal)
		if err != nil {
			return err
		}

		if !is {
			return fmt.Errorf("ring %s exists, and Pod %s is no shard of it yet: it may still work on objects that have no label. Delete the ring, update all Pods, and create the "+
				"ring then. If all Pods are up to date, this Pod starts as soon as that one is a shard", c.shard.Ring(), c.podName(ordinal))
		}
	}

	return nil
}

// checkLabels returns an error if a main object has the label of this shard, but not its ordinal: a Pod of the previous version may work on it.
func (c *claims) checkLabels(ctx context.Context) error {
	for _, k := range c.kinds {
		if k.controlled {
			continue
		}

		for _, namespace := range c.watchedNamespaces(k) {
			if err := c.checkLabelsIn(ctx, k, namespace); err != nil {
				return err
			}
		}
	}

	return nil
}

func (c *claims) checkLabelsIn(ctx context.Context, k *claimed, namespace string) error {
	o := metav1.ListOptions{LabelSelector: c.shard.Selector().String(), Limit: listPage}

	for {
		page, err := c.client.Resource(k.resource).Namespace(namespace).List(ctx, o)
		if err != nil {
			return fmt.Errorf("list the %s of this shard: %w", k.resource.Resource, err)
		}

		for i := range page.Items {
			obj := &page.Items[i]
			if !c.process.share().owns(c.process.options.Hash(k.kind, obj)) {
				return fmt.Errorf("there is no ring %s, but %s %s/%s carries the label %s=%s, and does not belong to ordinal %d. If an earlier ring has left the label, remove it. "+
					"If the number of replicas was changed after all Pods had been updated, create the ring",
					c.shard.Ring(), k.resource.Resource, obj.Namespace, obj.Name, c.key, c.shard.Name(), c.process.ordinal)
			}
		}

		if o.Continue = page.Continue; o.Continue == "" {
			return nil
		}
	}
}

func (c *claims) podName(ordinal int) string {
	return c.process.set + "-" + strconv.Itoa(ordinal)
}

// isShard reports whether the Pod with this ordinal has a Lease of the ring.
func (c *claims) isShard(ctx context.Context, ordinal int) (bool, error) {
	lease, err := c.client.Resource(leases).Namespace(c.process.options.Namespace).Get(ctx, c.podName(ordinal), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look whether Pod %s is a shard: %w", c.podName(ordinal), err)
	}

	return lease.Labels[contract.LabelClusterRing] == c.shard.Ring(), nil
}

// label gives the object the label of the shard, unless it has changed.
func (c *claims) label(ctx context.Context, k *claimed, obj *metav1.PartialObjectMetadata) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": obj.UID, "resourceVersion": obj.ResourceVersion, "labels": map[string]string{c.key: c.shard.Name()},
	}})
	if err != nil {
		return fmt.Errorf("claim %s %s: %w", k.resource.Resource, obj.Name, err)
	}

	_, err = c.client.Resource(k.resource).Namespace(obj.Namespace).Patch(ctx, obj.Name, types.MergePatchType, patch, metav1.PatchOptions{})

	switch {
	case apierrors.IsNotFound(err):
		return nil // it was deleted
	case apierrors.IsForbidden(err):
		return fmt.Errorf("claim %s %s/%s: grant patch on %s: %w", k.resource.Resource, obj.Namespace, obj.Name, k.resource.GroupResource(), err)
	case err != nil:
		return fmt.Errorf("claim %s %s/%s: %w", k.resource.Resource, obj.Namespace, obj.Name, err)
	}

	return nil
}
