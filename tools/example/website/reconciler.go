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
	"maps"
	"strings"
	"sync"
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

	// made contains the UIDs of the Websites, by name, whose ConfigMap was created here and has not been seen.
	made sync.Map
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	site := &v1alpha1.Website{}
	if err := r.Client.Get(ctx, req.NamespacedName, site); err != nil {
		r.made.Delete(req.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	if !site.DeletionTimestamp.IsZero() {
		r.made.Delete(req.NamespacedName)
		return reconcile.Result{}, nil // its ConfigMap is garbage-collected with it
	}

	ready, err := r.ensureConfigMap(ctx, site)
	if err == nil {
		err = r.writeStatus(ctx, site, ready)
	}

	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: afterConflict}, nil
	}

	if err == nil && ready.Reason == v1alpha1.ReasonConfigMapTaken {
		return reconcile.Result{RequeueAfter: afterTaken}, nil
	}

	return reconcile.Result{}, err
}

// ensureConfigMap creates or corrects the Website's ConfigMap, and returns the Website's condition.
func (r *Reconciler) ensureConfigMap(ctx context.Context, site *v1alpha1.Website) (metav1.Condition, error) {
	ready := metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonRendered,
		Message: "the page is in the ConfigMap", ObservedGeneration: site.Generation,
	}

	configMap, err := r.findOrCreate(ctx, site)
	if err != nil {
		return ready, err
	}

	if configMap == nil || !metav1.IsControlledBy(configMap, site) {
		ready.Status, ready.Reason = metav1.ConditionFalse, v1alpha1.ReasonConfigMapTaken
		ready.Message = "a ConfigMap with this name exists but does not belong to this Website: " +
			"delete it or rename the Website"

		return ready, nil
	}

	data := Render(site.Spec)
	if maps.Equal(configMap.Data, data) && len(configMap.BinaryData) == 0 {
		return ready, nil
	}
	// A patch of the difference does not change the labels, which assign the object to a shard.
	before := configMap.DeepCopy()

	configMap.Data, configMap.BinaryData = data, nil
	if err := r.Client.Patch(ctx, configMap, unchangedSince(before)); err != nil {
		return ready, fmt.Errorf("correct the ConfigMap: %w", err)
	}

	return ready, nil
}

// findOrCreate returns the ConfigMap with the Website's name, no matter who created it; nil if it belongs to somebody
// else and is not visible.
func (r *Reconciler) findOrCreate(ctx context.Context, site *v1alpha1.Website) (*corev1.ConfigMap, error) {
	key := client.ObjectKeyFromObject(site)

	configMap := &corev1.ConfigMap{}

	switch err := r.Client.Get(ctx, key, configMap); {
	case err == nil:
		r.made.Delete(key)

		return configMap, nil
	case errors.Is(err, shard.ErrOtherShard): // sharding: it exists, but follows another object, or none
		return nil, nil //nolint:nilnil // see below
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("read the ConfigMap: %w", err)
	}

	configMap = &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: site.Namespace, Name: site.Name},
		Data:       Render(site.Spec),
	}
	if err := controllerutil.SetControllerReference(site, configMap, r.Client.Scheme()); err != nil {
		return nil, fmt.Errorf("set the Website as the ConfigMap's controller: %w", err)
	}

	err := r.Client.Create(ctx, configMap)
	switch {
	case apierrors.IsAlreadyExists(err):
		if made, ok := r.made.Load(key); ok && made == site.UID {
			return configMap, nil // it is not in the cache yet; its arrival is an event
		}

		return nil, nil //nolint:nilnil // a ConfigMap that is not visible is a valid answer
	case err != nil:
		return nil, fmt.Errorf("create the ConfigMap: %w", err)
	}
	r.made.Store(key, site.UID)

	return configMap, nil
}

func (r *Reconciler) writeStatus(ctx context.Context, site *v1alpha1.Website, ready metav1.Condition) error {
	before := site.DeepCopy()
	site.Status.ObservedGeneration = site.Generation
	meta.SetStatusCondition(&site.Status.Conditions, ready)

	if equality.Semantic.DeepEqual(before.Status, site.Status) {
		return nil
	}

	if err := r.Client.Status().Patch(ctx, site, unchangedSince(before)); err != nil {
		return fmt.Errorf("write the status: %w", err)
	}

	return nil
}

// unchangedSince returns a patch that fails with a conflict if the object is no longer as it was.
func unchangedSince(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
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
