package ordinal

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// readNumbers returns the numbers of the StatefulSet. The error says what is wrong with the permissions, or with what runs the Pod.
func (p *Process) readNumbers(ctx context.Context) (numbers, error) {
	found, err := p.client.AppsV1().StatefulSets(p.options.Namespace).Get(ctx, p.set, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return numbers{}, p.missing(ctx)
	case err != nil:
		return numbers{}, p.explain(err)
	}

	return numbersOf(found), nil
}

// numbersOf returns what a StatefulSet says about ordinals.
func numbersOf(found *appsv1.StatefulSet) numbers {
	n := numbers{replicas: 1, version: found.ResourceVersion} // 1 is the API's default
	if found.Spec.Replicas != nil {
		n.replicas = int(*found.Spec.Replicas)
	}

	if found.Spec.Ordinals != nil {
		n.start = int(found.Spec.Ordinals.Start)
	}

	return n
}

// explain adds to an error of a request for the StatefulSet which permission is missing, if one is.
func (p *Process) explain(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("the service account may not read StatefulSet %s/%s: grant get, list, and watch on statefulsets (API group apps, "+
			"resource name %s) in namespace %s by a Role: %w", p.options.Namespace, p.set, p.set, p.options.Namespace, err)
	}

	return fmt.Errorf("read StatefulSet %s/%s: %w", p.options.Namespace, p.set, err)
}

// missing returns why there is no StatefulSet. What runs the Pod says more, if it may be read: this permission is optional.
func (p *Process) missing(ctx context.Context) error {
	namespace, name := p.options.Namespace, p.options.PodName

	if pod, err := p.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err == nil {
		if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && owner.Kind == "ReplicaSet" {
			return fmt.Errorf("pod %s/%s belongs to ReplicaSet %s, as the Pods of a Deployment do: %w", namespace, name, owner.Name, errNoOrdinal)
		}
	}

	return fmt.Errorf("no StatefulSet %s/%s exists, which Pod %s should belong to: set PodName, or run the controller as a StatefulSet",
		namespace, p.set, name)
}

// informer returns an informer of the StatefulSet by which the process observes its numbers.
func (p *Process) informer() (toolscache.SharedInformer, error) {
	one := fields.OneTermEqualSelector(metav1.ObjectNameField, p.set)
	list := toolscache.NewListWatchFromClient(p.client.AppsV1().RESTClient(), "statefulsets", p.options.Namespace, one)
	informer := toolscache.NewSharedInformer(list, &appsv1.StatefulSet{}, 0)
	see := func(obj any) {
		if found, ok := obj.(*appsv1.StatefulSet); ok {
			p.observe(numbersOf(found))
		}
	}
	_, onEvents := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) },
		// The StatefulSet may be deleted and created again without its Pods, so its last numbers count until there are others.
	})
	onErrors := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *toolscache.Reflector, err error) {
		toolscache.DefaultWatchErrorHandler(ctx, r, err)

		if apierrors.IsForbidden(err) {
			log.Log.WithName("ordinal").Error(p.explain(err), "Cannot watch the StatefulSet, so the last numbers stay")
		}
	})

	if err := errors.Join(onEvents, onErrors); err != nil {
		return nil, fmt.Errorf("watch StatefulSet %s/%s: %w", p.options.Namespace, p.set, err)
	}

	return informer, nil
}

// newer reports whether version a of an object was written after version b.
func newer(a, b string) bool {
	if b == "" {
		return true
	}

	order, err := resourceversion.CompareResourceVersion(a, b)

	return err == nil && order > 0
}
