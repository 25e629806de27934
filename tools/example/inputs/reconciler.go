// Package inputs reconciles Websites whose texts are in ConfigMaps that users write.
package inputs

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

// Texts is the annotation of a Website that names the ConfigMap with its texts.
const Texts = "example.clusterring.dev/texts"

// Reconciler reconciles Websites with their texts.
type Reconciler struct {
	// Render is called with a Website and its texts.
	Render func(ctx context.Context, site *v1alpha1.Website, texts *corev1.ConfigMap) error

	mine   client.Client // of the manager: it reads only objects of this shard
	inputs client.Reader // it reads all ConfigMaps
}

// SetupWithManager adds the controller.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	// sharding: ConfigMaps are a kind of the ring, so the manager's cache contains only those of this shard. This cache
	// contains all.
	all, err := cluster.New(mgr.GetConfig(), func(o *cluster.Options) { o.Scheme = mgr.GetScheme() })
	if err != nil {
		return fmt.Errorf("set up the cache of inputs: %w", err)
	}

	r.mine, r.inputs = mgr.GetClient(), all.GetClient()

	return errors.Join(
		mgr.Add(all),
		mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.Website{}, Texts, func(site client.Object) []string {
			return []string{site.GetAnnotations()[Texts]}
		}),
		ctrl.NewControllerManagedBy(mgr).
			For(&v1alpha1.Website{}).
			WatchesRawSource(source.Kind(all.GetCache(), &corev1.ConfigMap{},
				handler.TypedEnqueueRequestsFromMapFunc(r.sitesOf))).
			Complete(r),
	)
}

// sitesOf returns the Websites of this shard that have their texts in the ConfigMap.
func (r *Reconciler) sitesOf(ctx context.Context, texts *corev1.ConfigMap) (requests []reconcile.Request) {
	var sites v1alpha1.WebsiteList
	if err := r.mine.List(ctx, &sites, client.InNamespace(texts.Namespace),
		client.MatchingFields{Texts: texts.Name}); err != nil {
		return nil // the index exists, and the cache is full
	}

	for i := range sites.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&sites.Items[i])})
	}

	return requests
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	site := &v1alpha1.Website{}
	if err := r.mine.Get(ctx, req.NamespacedName, site); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	texts := &corev1.ConfigMap{}
	if err := r.inputs.Get(ctx, client.ObjectKey{Namespace: site.Namespace, Name: site.Annotations[Texts]},
		texts); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // its arrival is an event
	}

	return reconcile.Result{}, r.Render(ctx, site, texts)
}
