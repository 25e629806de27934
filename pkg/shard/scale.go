package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

const (
	// scalePeriod is how often a process that waits for a slot reads the scale. A process that holds a slot does not read it.
	scalePeriod = 5 * time.Second
	// scaleTimeout limits a request. A process that waits for one cannot take a slot that is offered for 5 s.
	scaleTimeout = 2 * time.Second
	// mostOwners bounds the owners of a Pod: a ReplicaSet, its Deployment, and two that others may have put above.
	mostOwners = 4
	// deletionCost is how ReplicaSets choose which of their Pods to delete: that with the lowest cost first.
	deletionCost = "controller.kubernetes.io/pod-deletion-cost"
)

var errNoScale = errors.New("it has no owner with a scale in its namespace")

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// workload is what owns the Pods of shards.
type workload struct {
	client    dynamic.Interface
	namespace string
	resource  schema.GroupVersionResource
	name      string
}

// ownerOf returns the topmost owner of the Pod that has a scale and may be read: a Deployment, for example, and neither its ReplicaSet, nor a custom
// resource that controls it and whose scale this process may not read.
func ownerOf(ctx context.Context, config *rest.Config, o Options) (*workload, error) {
	limited := rest.CopyConfig(config)
	limited.Timeout = scaleTimeout

	client, err := dynamic.NewForConfig(limited)
	if err != nil {
		return nil, fmt.Errorf("create the client for scales: %w", err)
	}

	described, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the client for discovery: %w", err)
	}

	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(described))

	var owners []*workload

	for child := (&workload{client: client, namespace: o.Namespace, resource: pods, name: o.Pod}); child != nil && len(owners) < mostOwners; {
		above, err := child.owner(ctx, mapper)
		if err != nil && (len(owners) == 0 || !child.mayBeHidden(err)) {
			return nil, fmt.Errorf("find the workload of Pod %s/%s, which takes the permission to get the Pod and what owns it: %w", o.Namespace, o.Pod, err)
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

// owner returns what controls the object in its namespace; nil if nothing does.
func (w *workload) owner(ctx context.Context, mapper meta.RESTMapper) (*workload, error) {
	object, err := w.client.Resource(w.resource).Namespace(w.namespace).Get(ctx, w.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", w.resource.Resource, w.name, err)
	}

	ref := metav1.GetControllerOf(object)
	if ref == nil {
		return nil, nil //nolint:nilnil // nothing controls it
	}

	kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)

	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, fmt.Errorf("find the resource of %s: %w", kind, err)
	}

	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return nil, nil //nolint:nilnil // no Role could let a shard read it
	}

	return &workload{client: w.client, namespace: w.namespace, resource: mapping.Resource, name: ref.Name}, nil
}

// mayBeHidden reports whether the error means that this process may not read the workload, and need not: it is not one of Kubernetes' own, whose scale
// would be the right one.
func (w *workload) mayBeHidden(err error) bool {
	return w.resource.Group != appsv1.GroupName && (apierrors.IsForbidden(err) || meta.IsNoMatchError(err))
}

// replicas returns how many Pods the workload shall have.
func (w *workload) replicas(ctx context.Context) (int, error) {
	scale, err := w.client.Resource(w.resource).Namespace(w.namespace).Get(ctx, w.name, metav1.GetOptions{}, "scale")
	if err != nil {
		return 0, fmt.Errorf("read the scale of %s %s: %w", w.resource.GroupResource(), w.name, err)
	}

	replicas, _, err := unstructured.NestedInt64(scale.Object, "spec", "replicas")
	if err == nil && (replicas < 0 || replicas > contract.MaxSlots) {
		err = fmt.Errorf("%d replicas are more than the %d slots that a ring may have", replicas, contract.MaxSlots)
	}

	if err != nil {
		return 0, fmt.Errorf("the scale of %s %s: %w", w.resource.GroupResource(), w.name, err)
	}

	return int(replicas), nil
}

// price tells ReplicaSets to delete the Pod of the highest slot first, and Pods without a slot, whose cost is 0, before that.
func (w *workload) price(ctx context.Context, pod string, slot int) error {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, deletionCost, contract.MaxSlots-slot)

	_, err := w.client.Resource(pods).Namespace(w.namespace).Patch(ctx, pod, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("annotate Pod %s with %s: %w", pod, deletionCost, err)
	}

	return nil
}
