package parameters

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/fence"
	"github.com/clusterring/clusterring/services/internal/kit"
)

// The keys of the parameter about shards; the name of a ring follows.
const (
	prefixNamespaces = "namespaces." // of every ring: spec.shardNamespaces, one per line; empty for all namespaces
	prefixUnbound    = "unbound."    // of rings whose shards have tokens that are bound to no Pod
	prefixNames      = "names."      // of rings with spec.shardNames: these, one per line
	prefixLabel      = "label."      // of rings with spec.shardLabel: it
	prefixEmbedded   = "embedded."   // of rings whose shards elect the sharder
	prefixAccounts   = "accounts."   // of rings with a fence: the user names of the service accounts of shards, one per line
)

// Shards writes the parameter of the policy that decides who may write the Leases of shards: deploy/base/guard/shard-leases.yaml.
type Shards struct{ Writer }

// Reconcile implements [reconcile.Reconciler]. There is one parameter for all rings, whatever the request. It returns errors of the API server.
// A conflict is an error, too: the cache is behind.
func (r *Shards) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	rings := &v1alpha1.ClusterRingList{}
	if err := r.Client.List(ctx, rings, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list rings: %w", err)
	}

	data := make(map[string]string, len(rings.Items))

	for i := range rings.Items {
		ring := &rings.Items[i]
		data[prefixNamespaces+ring.Name] = strings.Join(ring.Spec.ShardNamespaces, "\n")

		if ring.Annotations[contract.AnnotationUnboundShards] == "true" {
			data[prefixUnbound+ring.Name] = "true"
		}

		if len(ring.Spec.ShardNames) > 0 {
			data[prefixNames+ring.Name] = strings.Join(ring.Spec.ShardNames, "\n")
		}

		if ring.Spec.ShardLabel != "" {
			data[prefixLabel+ring.Name] = ring.Spec.ShardLabel
		}

		if ring.Spec.Sharder == v1alpha1.SharderEmbedded {
			data[prefixEmbedded+ring.Name] = "true"
		}

		if accounts := fence.Accounts(ring); len(accounts) > 0 {
			data[prefixAccounts+ring.Name] = strings.Join(accounts, "\n")
		}
	}

	return kit.Later(r.write(ctx, &v1alpha1.PolicyParameter{
		ObjectMeta: metav1.ObjectMeta{Name: contract.ShardsParameter}, Data: data,
	}))
}

// SetupWithManager adds a controller to the manager that calls the reconciler, while this replica leads, when a ring or the parameter changes,
// and once at the beginning if there is either.
func (r *Shards) SetupWithManager(mgr manager.Manager) error {
	one := func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: contract.ShardsParameter}}}
	}
	parameter := predicate.NewPredicateFuncs(func(obj client.Object) bool { return obj.GetName() == contract.ShardsParameter })

	err := builder.ControllerManagedBy(mgr).
		Named("shards-parameter").
		Watches(&v1alpha1.ClusterRing{}, handler.EnqueueRequestsFromMapFunc(one), builder.WithPredicates(shardsChanged)).
		Watches(&v1alpha1.PolicyParameter{}, handler.EnqueueRequestsFromMapFunc(one), builder.WithPredicates(parameter)).
		WithOptions(controller.Options{RateLimiter: kit.RateLimiter[reconcile.Request]()}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add the controller of the parameter about shards: %w", err)
	}

	return nil
}

// shardsChanged leaves out changes of the status.
var shardsChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
		e.ObjectOld.GetAnnotations()[contract.AnnotationUnboundShards] != e.ObjectNew.GetAnnotations()[contract.AnnotationUnboundShards]
}}
