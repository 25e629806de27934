package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

var (
	errNoScale = errors.New("it has no owner with a scale")
	podKind    = corev1.SchemeGroupVersion.WithKind("Pod")
)

// workload is what owns the Pods of shards, or such a Pod.
type workload struct {
	client client.Client
	object *unstructured.Unstructured
}

// ownerOf returns the topmost owner of the Pod that has a scale and may be read: a Deployment, for example, and neither its ReplicaSet, nor a custom
// resource that controls it and whose scale this process may not read.
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

	return workloadOf(w.client, schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind), w.object.GetNamespace(), ref.Name), nil
}

// mayBeHidden reports whether the error means that this process may not read the workload, and need not: it is not one of Kubernetes' own, whose scale
// would be the right one.
func (w *workload) mayBeHidden(err error) bool {
	return w.object.GroupVersionKind().Group != appsv1.GroupName && (apierrors.IsForbidden(err) || meta.IsNoMatchError(err))
}

// replicas returns how many Pods the workload shall have.
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

// price tells ReplicaSets to delete the Pod of the highest slot first, and Pods without a slot, whose cost is 0, before that.
func (w *workload) price(ctx context.Context, pod string, slot int) error {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, deletionCost, contract.MaxSlots-slot)

	object := workloadOf(w.client, podKind, w.object.GetNamespace(), pod).object
	if err := w.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("annotate Pod %s with %s: %w", pod, deletionCost, err)
	}

	return nil
}
