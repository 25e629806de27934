package shard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// clientGo is an ordinary controller of ConfigMaps that consists of an informer, a queue, and workers. Comments mark
// what sharding adds.
type clientGo struct {
	shard  *Shard
	config *rest.Config
	sync   SyncFunc
}

// run is the main function of the controller.
func (c *clientGo) run(ctx context.Context) error {
	// Hold the shard's Lease. The context ends when the process must stop, or when the Lease is lost.
	err := c.shard.Run(ctx, c.config, c.work)
	if err != nil {
		return fmt.Errorf("run the controller: %w", err) // the process must end with a non-zero code
	}

	return nil
}

func (c *clientGo) work(ctx context.Context) error {
	dynamicClient, err := dynamic.NewForConfig(c.config)
	if err != nil {
		return fmt.Errorf("set up the client: %w", err)
	}

	metadataClient, err := metadata.NewForConfig(c.config)
	if err != nil {
		return fmt.Errorf("set up the client for metadata: %w", err)
	}

	// Watch only the shard's objects.
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(dynamicClient, 0, metav1.NamespaceAll,
		c.shard.TweakListOptions)
	resource := corev1.SchemeGroupVersion.WithResource("configmaps")
	informer := factory.ForResource(resource).Informer()

	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.NamespacedName]())
	if err := enqueue(informer, queue); err != nil {
		return err
	}

	// Work only on the shard's objects, and release them when asked.
	handle := c.shard.Handler(Resource{
		Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Resource: resource, Namespaced: true,
		Store: informer.GetStore(), Client: metadataClient,
	}, c.sync)

	// Return only after everything has stopped: the Lease is then released.
	defer factory.Shutdown()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for next(ctx, queue, handle) {
			}
		})
	}
	<-ctx.Done()
	queue.ShutDown()
	workers.Wait()

	return nil
}

// enqueue adds the key of an object to the queue on every event.
func enqueue(
	informer cache.SharedIndexInformer, queue workqueue.TypedRateLimitingInterface[types.NamespacedName],
) error {
	add := func(obj any) {
		if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
			queue.Add(key.AsNamespacedName())
		}
	}

	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }, DeleteFunc: add,
	})
	if err != nil {
		return fmt.Errorf("listen to the informer: %w", err)
	}

	return nil
}

// next processes one key. It reports whether more keys may follow.
func next(
	ctx context.Context, queue workqueue.TypedRateLimitingInterface[types.NamespacedName],
	handle func(context.Context, types.NamespacedName) (time.Duration, error),
) bool {
	key, stopped := queue.Get()
	if stopped {
		return false
	}
	defer queue.Done(key)

	switch again, err := handle(ctx, key); {
	case err != nil:
		queue.AddRateLimited(key)
	case again > 0:
		// The shard cannot decide yet.
		queue.Forget(key)
		queue.AddAfter(key, again)
	default:
		queue.Forget(key)
	}

	return true
}

// A controller that uses only client-go hands an object over.
func TestClientGoControllersHandAnObjectOver(t *testing.T) {
	f := newFixture(t)
	cm := f.configMapOf("shard-0", "a")
	first, second := newBlocker(), newBlocker()
	close(second.proceed)

	processes := map[string]*process{}

	for name, b := range map[string]*blocker{"shard-0": first, "shard-1": second} {
		sync := func(ctx context.Context, of types.NamespacedName) error {
			_, err := b.reconcile(ctx, reconcile.Request{NamespacedName: of})
			return err
		}
		processes[name] = f.launch((&clientGo{shard: f.shard(name), config: f.config, sync: sync}).run)
	}

	receive(f, first.entered, "the first shard works on it")
	f.label(cm, f.keys.Drain, "true")
	f.eventually("the second shard is ready", func() bool { return holder(f.leaseOf("shard-1")) == "shard-1" })
	f.refresh(cm)
	require.Equal(t, "shard-0", cm.Labels[f.keys.Shard], "not given up while it is worked on")

	close(first.proceed)
	f.released(cm)
	require.Empty(t, second.entered)
	f.label(cm, f.keys.Shard, "shard-1")
	receive(f, second.entered, "the second shard works on it")
	require.Empty(t, first.entered, "it does not begin again")

	require.NoError(t, processes["shard-1"].stop())
	require.Empty(t, holder(f.leaseOf("shard-1")), "given back")
	require.Equal(t, "shard-0", holder(f.leaseOf("shard-0")))
}

func TestRunKeepsTheLeaseWhileItsWorkStops(t *testing.T) {
	broken := errors.New("broken")
	for name, want := range map[string]error{"when the work is done": nil, "when it failed": broken} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			began, proceed := make(chan struct{}), make(chan struct{})
			p := f.launch(func(ctx context.Context) error {
				return f.shard("shard-0").Run(ctx, f.config, func(ctx context.Context) error {
					close(began)
					<-ctx.Done()
					<-proceed

					return want
				})
			})
			receive(f, began, "it works")
			p.cancel()

			before := f.leaseOf("shard-0").Spec.RenewTime.Time
			f.eventually("the Lease is renewed after the stop",
				func() bool { return f.leaseOf("shard-0").Spec.RenewTime.After(before.Add(time.Second)) })
			close(proceed)
			require.ErrorIs(t, p.stop(), want)
			require.Empty(t, holder(f.leaseOf("shard-0")), "given back")
		})
	}
}

func TestHandlerOfAnIncompleteResource(t *testing.T) {
	s := newFixture(t).shard("shard-0")

	_, err := s.Handler(Resource{}, nil)(t.Context(), types.NamespacedName{})
	require.ErrorContains(t, err, "set Kind, Resource, Store, and Client")
}

func TestTweakListOptionsKeepsWhatIsThere(t *testing.T) {
	s, err := New(Options{Ring: "example", Name: "shard-0", Namespace: "default"})
	require.NoError(t, err)

	options := metav1.ListOptions{LabelSelector: "app=a"}
	s.TweakListOptions(&options)
	require.Equal(t, "app=a,"+s.Selector().String(), options.LabelSelector)
}
