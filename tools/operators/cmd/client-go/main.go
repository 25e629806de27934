// Command client-go is a controller without controller-runtime as a shard: an informer, a queue, and workers. It
// creates a Secret for each ConfigMap.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/tools/operators/internal/operator"
)

const workers = 5

func main() { os.Exit(operator.Main(run)) }

func run(ctx context.Context, config *rest.Config, o *operator.Operator) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create the client: %w", err)
	}

	labels, err := metadata.NewForConfig(config) // it acknowledges drains
	if err != nil {
		return fmt.Errorf("create the client of metadata: %w", err)
	}

	s, err := shard.New(o.Shard)
	if err != nil {
		return fmt.Errorf("join the ring: %w", err)
	}

	// Only objects of this shard are watched.
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(s.TweakListOptions))
	configMaps, secrets := factory.Core().V1().ConfigMaps(), factory.Core().V1().Secrets()
	c := &controller{
		client: client, configMaps: configMaps.Lister(), secrets: secrets.Lister(),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.NamespacedName]()),
	}

	// All events are queued, so that drains come through.
	if _, err := configMaps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: c.add, UpdateFunc: func(_, obj any) { c.add(obj) }, DeleteFunc: c.add,
	}); err != nil {
		return fmt.Errorf("watch ConfigMaps: %w", err)
	}

	if _, err := secrets.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: c.addOwner}); err != nil {
		return fmt.Errorf("watch Secrets: %w", err)
	}

	recorded, err := o.Recording(config, "configmap", &corev1.ConfigMap{}, c.sync)
	if err != nil {
		return err
	}

	// The handler works only on objects of this shard, and acknowledges drains.
	handle := s.Handler(shard.Resource{
		Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Resource: corev1.SchemeGroupVersion.WithResource("configmaps"),
		Namespaced: true,
		Store:      configMaps.Informer().GetStore(), Client: labels,
	}, recorded)
	// No function works on Secrets, but before a moved ConfigMap is worked on, this cache must contain its Secret.
	s.Handler(shard.Resource{
		Kind: corev1.SchemeGroupVersion.WithKind("Secret"), Resource: corev1.SchemeGroupVersion.WithResource("secrets"),
		Namespaced: true,
		Store:      secrets.Informer().GetStore(), Client: labels,
	}, nil)

	o.Serve()

	// The Lease of the shard replaces a leader election.
	if err := s.Run(ctx, config, func(ctx context.Context) error {
		factory.Start(ctx.Done())
		defer factory.Shutdown()

		factory.WaitForCacheSync(ctx.Done())

		var working sync.WaitGroup
		for range workers {
			working.Go(func() {
				for c.next(ctx, handle) {
				}
			})
		}

		<-ctx.Done()
		c.queue.ShutDown()
		working.Wait() // then the Lease is released

		return nil
	}); err != nil {
		return fmt.Errorf("run the shard: %w", err)
	}

	return nil
}

// controller creates a Secret for each ConfigMap.
type controller struct {
	client     kubernetes.Interface
	configMaps corev1listers.ConfigMapLister
	secrets    corev1listers.SecretLister
	queue      workqueue.TypedRateLimitingInterface[types.NamespacedName]
}

func (c *controller) add(obj any) {
	if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
		c.queue.Add(key.AsNamespacedName())
	}
}

// addOwner adds the ConfigMap of a Secret that was deleted.
func (c *controller) addOwner(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}

	if secret, ok := obj.(*corev1.Secret); ok {
		if owner := metav1.GetControllerOfNoCopy(secret); owner != nil {
			c.queue.Add(types.NamespacedName{Namespace: secret.Namespace, Name: owner.Name})
		}
	}
}

// next handles one key. It reports whether more may follow.
func (c *controller) next(ctx context.Context,
	handle func(context.Context, types.NamespacedName) (time.Duration, error)) bool {
	key, stopped := c.queue.Get()
	if stopped {
		return false
	}
	defer c.queue.Done(key)

	switch again, err := handle(ctx, key); {
	case err != nil:
		c.queue.AddRateLimited(key)
	case again > 0: // the shard cannot decide yet
		c.queue.Forget(key)
		c.queue.AddAfter(key, again)
	default:
		c.queue.Forget(key)
	}

	return true
}

// sync creates the Secret of a ConfigMap.
func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	configMap, err := c.configMaps.ConfigMaps(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("read the ConfigMap: %w", err)
	}

	name := "dummy-" + key.Name
	if _, err := c.secrets.Secrets(key.Namespace).Get(name); !apierrors.IsNotFound(err) {
		return err //nolint:wrapcheck // it is nil, or says everything
	}

	owner := metav1.NewControllerRef(configMap, corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{*owner}}}

	if _, err := c.client.CoreV1().Secrets(key.Namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create the Secret: %w", err)
	}

	return nil
}
