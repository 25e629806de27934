// Command plain is a shard of the example's ring without pkg/shard. It holds its Lease by the leader election of client-go, caches the objects
// with its label, and releases an object by removing both labels at once. It announces nothing, and ignores the handover
// annotation. Except that it holds off after it has taken its Lease, it behaves like shards of kubernetes-controller-sharding
// v0.8.0, the prior art.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
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
	"github.com/clusterring/clusterring/tools/faults/program"
	"github.com/clusterring/clusterring/tools/testkit/history"
)

// holdOff is how long the contract demands that a shard waits which has taken a free Lease.
const holdOff = 1500 * time.Millisecond

func main() {
	o := program.Flags()
	pflag.Parse()
	os.Exit(program.Main(func(ctx context.Context) error { return run(ctx, o) }))
}

func run(ctx context.Context, o *program.Options) error {
	config, err := o.Config()
	if err != nil {
		return err
	}

	leases, err := coordinationv1.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client for the Lease: %w", err)
	}

	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("make a scheme: %w", err)
	}

	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Cache: cache.Options{DefaultLabelSelector: labels.SelectorFromSet(labels.Set{contract.ShardLabel(o.Ring): o.Name})},

		LeaderElection: true, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: &o.LeaseDuration, RenewDeadline: &o.RenewDeadline, RetryPeriod: &o.RetryPeriod,
		LeaderElectionResourceLockInterface: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}, Client: leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: o.Name},
			Labels:     map[string]string{contract.LabelClusterRing: o.Ring},
		},
	})
	if err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}

	return o.Run(ctx, mgr, func(r program.Recorder) error { return add(ctx, mgr, o, r) })
}

// add adds the controllers of the example.
func add(ctx context.Context, mgr ctrl.Manager, o *program.Options, recorder program.Recorder) error {
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
		recorded := recorder.Reconciler(history.Subject{Controller: controller.name, Object: controller.main, Reader: c}, controller.inner)

		err := ctrl.NewControllerManagedBy(mgr).Named(controller.name).For(controller.main).Owns(controller.own).
			Complete(&sharded{
				client: c, empty: controller.main, shard: o.Name, ring: o.Ring, inner: recorded,
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
