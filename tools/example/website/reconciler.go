// Package website maintains the ConfigMap of each Website: it renders the Website's page into the ConfigMap, recreates
// the ConfigMap after it was deleted, and corrects it after it was changed.
//
// The package contains nothing about sharding. The cache contains only objects with this shard's label, but when a
// reconcile begins, it contains everything that follows the Website. The exception is a ConfigMap that was created
// while the assigner did not answer: it is not visible until the rebalancer has assigned it.
package website

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

const (
	// afterConflict is when an object that somebody else has just changed is looked at again, if its event does not come
	// first.
	afterConflict = 100 * time.Millisecond
	// afterTaken is when a Website is looked at again whose ConfigMap seems to belong to somebody else. A ConfigMap that
	// is not visible causes no event when it is deleted. One that becomes visible causes an event, but its reconcile may
	// not see yet what the last one has written.
	afterTaken = 5 * time.Second
)

// Reconciler reconciles Websites.
type Reconciler struct {
	// Client writes, and reads from the shard's cache.
	Client client.Client
}

// errTaken is the error for a ConfigMap that belongs to somebody else.
var errTaken = errors.New("a ConfigMap with this name exists but does not belong to this Website: " +
	"delete it or rename the Website")

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	site := &v1alpha1.Website{}
	if err := r.Client.Get(ctx, req.NamespacedName, site); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	if !site.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil // its ConfigMap is garbage-collected with it
	}

	ready := metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonRendered,
		Message: "the page is in the ConfigMap", ObservedGeneration: site.Generation,
	}

	err := r.ensureConfigMap(ctx, site)

	// Sharding: a ConfigMap of another shard follows another object, or none.
	taken := errors.Is(err, errTaken) || errors.Is(err, shard.ErrOtherShard)
	if taken {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, v1alpha1.ReasonConfigMapTaken, errTaken.Error()
	}

	if err == nil || taken {
		err = r.writeStatus(ctx, site, ready)
	}

	// A ConfigMap that exists although the cache does not contain it was created just now.
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return reconcile.Result{RequeueAfter: afterConflict}, nil
	}

	if err == nil && taken {
		return reconcile.Result{RequeueAfter: afterTaken}, nil
	}

	return reconcile.Result{}, err
}

// ensureConfigMap creates or corrects the Website's ConfigMap.
func (r *Reconciler) ensureConfigMap(ctx context.Context, site *v1alpha1.Website) error {
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: site.Namespace, Name: site.Name}}
	// A patch of the difference does not change the labels, which assign the object to a shard.
	_, err := controllerutil.CreateOrPatch(ctx, r.Client, configMap, func() error {
		if configMap.UID != "" && !metav1.IsControlledBy(configMap, site) {
			return errTaken
		}

		configMap.Data, configMap.BinaryData = Render(site.Spec), nil

		return controllerutil.SetControllerReference(site, configMap, r.Client.Scheme())
	})
	if err != nil {
		return fmt.Errorf("write the ConfigMap: %w", err)
	}

	return nil
}

func (r *Reconciler) writeStatus(ctx context.Context, site *v1alpha1.Website, ready metav1.Condition) error {
	before := site.DeepCopy()
	site.Status.ObservedGeneration = site.Generation
	meta.SetStatusCondition(&site.Status.Conditions, ready)

	if equality.Semantic.DeepEqual(before.Status, site.Status) {
		return nil
	}

	if err := r.Client.Status().Patch(ctx, site,
		client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("write the status: %w", err)
	}

	return nil
}

// Page is the key of the HTML in a Website's ConfigMap.
const Page = "index.html"

var page = template.Must(template.New(Page).Parse(`<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{{.Title}}</title></head>
<body>
<h1>{{.Title}}</h1>
<p>{{.Body}}</p>
</body>
</html>
`))

// Render returns the data of the ConfigMap for the given spec: one page of HTML, with the texts escaped.
func Render(spec v1alpha1.WebsiteSpec) map[string]string {
	var html strings.Builder
	if err := page.Execute(&html, spec); err != nil {
		panic(err) // the template and its data are constant in form
	}

	return map[string]string{Page: html.String()}
}
