package ordinal

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
)

// informerOf returns an informer of one object. of is an empty object of the resource.
func informerOf(c toolscache.Getter, resource string, name types.NamespacedName, of runtime.Object) toolscache.SharedIndexInformer {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name.Name)

	return toolscache.NewSharedIndexInformer(toolscache.NewListWatchFromClient(c, resource, name.Namespace, selector), of, 0, toolscache.Indexers{})
}

// watch runs the informer until stop is called, which waits for its end. The end of ctx does not stop it; watching is the context that does.
func watch(ctx context.Context, informer toolscache.SharedIndexInformer) (watching context.Context, stop func()) {
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))

	var running sync.WaitGroup

	running.Go(func() { informer.RunWithContext(watching) })

	return watching, func() {
		cancel()
		running.Wait()
	}
}
