package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/fleet"
	"github.com/clusterring/clusterring/tools/example/website"
	"github.com/clusterring/clusterring/tools/testkit/history"
)

// holdOff is how long the contract demands that a shard waits which has taken a free Lease.
const holdOff = 1500 * time.Millisecond

// plainShard returns the manager of a shard without pkg/shard. It holds its Lease by the leader election of client-go,
// caches the objects with its label, and releases an object by removing both labels at once. It announces nothing, and
// ignores the handover annotation. Except that it holds off after it has taken its Lease, it behaves like shards of
// kubernetes-controller-sharding v0.8.0, the prior art.
func (o *options) plainShard(ctx context.Context, config *rest.Config, r recorder) (ctrl.Manager, error) {
	leases, err := coordinationv1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for the Lease: %w", err)
	}

	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make a scheme: %w", err)
	}

	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Cache: cache.Options{DefaultLabelSelector: labels.SelectorFromSet(labels.Set{contract.ShardLabel(o.ring): o.name})},

		LeaderElection: true, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: &o.leaseDuration, RenewDeadline: &o.renewDeadline, RetryPeriod: &o.retryPeriod,
		LeaderElectionResourceLockInterface: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: o.name}, Client: leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: o.name},
			Labels:     map[string]string{contract.LabelClusterRing: o.ring},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("set up the manager: %w", err)
	}

	return mgr, o.addPlain(ctx, mgr, r)
}

// addPlain adds the controllers of the example.
func (o *options) addPlain(ctx context.Context, mgr ctrl.Manager, r recorder) error {
	c := mgr.GetClient()
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.Ship{}, fleet.OwnerIndex, fleet.ByOwner); err != nil {
		return fmt.Errorf("index the ships of fleets: %w", err)
	}

	// Controllers reconcile nothing before the process has taken the Lease.
	clk := clock.RealClock{}
	works := sync.OnceValue(func() time.Time { return clk.Now().Add(holdOff) })

	for _, controller := range []struct {
		name      string
		main, own client.Object
		inner     reconcile.Reconciler
	}{
		{"website", &v1alpha1.Website{}, &corev1.ConfigMap{}, &website.Reconciler{Client: c}},
		{"fleet", &v1alpha1.Fleet{}, &v1alpha1.Ship{}, fleet.New(c)},
	} {
		recorded := r.reconciler(history.Subject{Controller: controller.name, Object: controller.main, Reader: c},
			controller.inner)

		err := ctrl.NewControllerManagedBy(mgr).Named(controller.name).For(controller.main).Owns(controller.own).
			Complete(&sharded{
				client: c, empty: controller.main, shard: o.name, ring: o.ring, inner: recorded,
				holdsOff: func() time.Duration { return works().Sub(clk.Now()) },
			})
		if err != nil {
			return fmt.Errorf("set up the controller %s: %w", controller.name, err)
		}
	}

	return nil
}

// sharded releases draining objects, and reconciles the others.
type sharded struct {
	client      client.Client
	empty       client.Object
	shard, ring string
	inner       reconcile.Reconciler
	// holdsOff returns how long the shard still holds off.
	holdsOff func() time.Duration
}

// Reconcile implements reconcile.Reconciler.
func (s *sharded) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if wait := s.holdsOff(); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}

	obj, _ := s.empty.DeepCopyObject().(client.Object)
	if err := s.client.Get(ctx, req.NamespacedName, obj); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	if obj.GetLabels()[contract.ShardLabel(s.ring)] != s.shard {
		return reconcile.Result{}, nil
	}

	if _, drained := obj.GetLabels()[contract.DrainLabel(s.ring)]; !drained {
		return s.inner.Reconcile(ctx, req) //nolint:wrapcheck // unchanged
	}

	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": obj.GetResourceVersion(),
		"labels":          map[string]any{contract.ShardLabel(s.ring): nil, contract.DrainLabel(s.ring): nil},
	}})
	if err == nil {
		err = s.client.Patch(ctx, obj, client.RawPatch(types.MergePatchType, patch))
	}

	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("release an object: %w", err)
	}

	return reconcile.Result{}, nil
}
