package ordinal

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
)

// set is the StatefulSet that the process belongs to.
type set struct {
	client          kubernetes.Interface
	namespace, name string
	pod             string
}

// read returns the numbers of the StatefulSet. The error says what is wrong with the permissions, or with what runs the Pod.
func (s *set) read(ctx context.Context) (numbers, error) {
	found, err := s.client.AppsV1().StatefulSets(s.namespace).Get(ctx, s.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return numbers{}, s.missing(ctx)
	case err != nil:
		return numbers{}, s.explain(err)
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
func (s *set) explain(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("the service account may not read StatefulSet %s/%s: grant get, list, and watch on statefulsets (API group apps, "+
			"resource name %s) in namespace %s by a Role: %w", s.namespace, s.name, s.name, s.namespace, err)
	}

	return fmt.Errorf("read StatefulSet %s/%s: %w", s.namespace, s.name, err)
}

// missing returns why there is no StatefulSet. What runs the Pod says more, if it may be read.
func (s *set) missing(ctx context.Context) error {
	if err := s.ofDeployment(ctx); err != nil {
		return err
	}

	return fmt.Errorf("no StatefulSet %s/%s exists, which Pod %s should belong to: set StatefulSet or PodName, or run the controller as a StatefulSet",
		s.namespace, s.name, s.pod)
}

// ofDeployment returns an error if the Pod may be read and belongs to a ReplicaSet.
func (s *set) ofDeployment(ctx context.Context) error {
	pod, err := s.client.CoreV1().Pods(s.namespace).Get(ctx, s.pod, metav1.GetOptions{})
	if err != nil {
		return nil //nolint:nilerr // this permission is optional
	}

	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && owner.Kind == "ReplicaSet" {
		return fmt.Errorf("pod %s/%s belongs to ReplicaSet %s, as the Pods of a Deployment do: %w", s.namespace, s.pod, owner.Name, errNoOrdinal)
	}

	return nil
}

// informer returns an informer of this one StatefulSet, which calls the function for each state of it.
func (s *set) informer(seen func(numbers), failed func(error)) (toolscache.SharedIndexInformer, error) {
	informer := informerOf(s.client.AppsV1().RESTClient(), "statefulsets", types.NamespacedName{Namespace: s.namespace, Name: s.name}, &appsv1.StatefulSet{})
	see := func(obj any) {
		if found, ok := obj.(*appsv1.StatefulSet); ok {
			seen(numbersOf(found))
		}
	}
	_, onEvents := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) },
		// The StatefulSet may be deleted and created again without its Pods, so its last numbers count until there are others.
	})
	err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *toolscache.Reflector, err error) {
		toolscache.DefaultWatchErrorHandler(ctx, r, err)

		if apierrors.IsForbidden(err) {
			failed(s.explain(err))
		}
	})

	if err := errors.Join(onEvents, err); err != nil {
		return nil, fmt.Errorf("watch StatefulSet %s/%s: %w", s.namespace, s.name, err)
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
