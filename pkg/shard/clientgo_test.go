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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
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
	labels := map[string]string{contract.ShardLabel(f.namespace): "shard-0"}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "a", Labels: labels}}
	require.NoError(t, f.admin.Create(t.Context(), cm))

	var mu sync.Mutex

	synced := map[string]int{}
	count := func(name string) int {
		mu.Lock()
		defer mu.Unlock()

		return synced[name]
	}
	release := make(chan struct{})
	processes := map[string]*process{}

	for _, name := range []string{"shard-0", "shard-1"} {
		c := &clientGo{shard: f.shard(name), config: f.config, sync: func(context.Context, types.NamespacedName) error {
			mu.Lock()
			synced[name]++
			mu.Unlock()

			if name == "shard-0" {
				<-release
			}

			return nil
		}}
		processes[name] = f.launch(c.run)
	}
	f.eventually("the first shard works on it", func() bool { return count("shard-0") == 1 })

	label := func(labels string) {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{`+labels+`}}}`))
		require.NoError(t, f.admin.Patch(t.Context(), cm, patch))
	}
	label(`"` + contract.DrainLabel(f.namespace) + `":"true"`)
	f.eventually("the second shard is ready", func() bool { return holder(f.leaseOf("shard-1")) == "shard-1" })
	require.NoError(t, f.admin.Get(t.Context(), client.ObjectKeyFromObject(cm), cm))
	require.Equal(t, "shard-0", cm.Labels[contract.ShardLabel(f.namespace)], "not given up while it is worked on")

	close(release)
	f.eventually("the first shard gives it up", func() bool {
		require.NoError(t, f.admin.Get(t.Context(), client.ObjectKeyFromObject(cm), cm))

		return len(cm.Labels) == 0
	})
	require.Equal(t, 1, count("shard-0"), "it does not begin again")
	require.Zero(t, count("shard-1"))

	label(`"` + contract.ShardLabel(f.namespace) + `":"shard-1"`)
	f.eventually("the second shard works on it", func() bool { return count("shard-1") > 0 })
	require.Equal(t, 1, count("shard-0"))

	require.NoError(t, processes["shard-1"].stop())
	require.Empty(t, holder(f.leaseOf("shard-1")), "given back")
	require.Equal(t, "shard-0", holder(f.leaseOf("shard-0")))
}

func TestRunKeepsTheLeaseWhileItsWorkStops(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	began, stopping, proceed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	p := f.launch(func(ctx context.Context) error {
		return s.Run(ctx, f.config, func(ctx context.Context) error {
			close(began)
			<-ctx.Done()
			close(stopping)
			<-proceed

			return nil
		})
	})
	<-began

	p.cancel()
	<-stopping

	before := f.leaseOf("shard-0").Spec.RenewTime.Time
	f.eventually("the Lease is renewed after the stop",
		func() bool { return f.leaseOf("shard-0").Spec.RenewTime.After(before.Add(time.Second)) })
	close(proceed)
	require.NoError(t, p.stop())
	require.Empty(t, holder(f.leaseOf("shard-0")))
}

func TestRunGivesTheLeaseBack(t *testing.T) {
	broken := errors.New("broken")
	for name, tc := range map[string]struct{ err error }{"when the work is done": {nil}, "when it failed": {broken}} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			s := f.shard("shard-0")
			err := s.Run(t.Context(), f.config, func(context.Context) error {
				require.Equal(t, "shard-0", holder(f.leaseOf("shard-0")))

				return tc.err
			})
			require.ErrorIs(t, err, tc.err)
			require.Empty(t, holder(f.leaseOf("shard-0")))
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
