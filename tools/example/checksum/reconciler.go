// Package checksum is a second controller of the example: it writes the checksum of each page into an annotation, so
// that consumers can see whether the page has changed.
//
// It reconciles a controlled kind. Its reconciles count for the Website that a ConfigMap belongs to: the Website is not
// released while they run.
package checksum

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

// Annotation of a ConfigMap that contains the checksum of its data.
const Annotation = "example.clusterring.dev/checksum"

// afterConflict is when a ConfigMap that has just changed is reconciled again, if its event does not come first.
const afterConflict = 100 * time.Millisecond

// Reconciler reconciles the ConfigMaps of Websites.
type Reconciler struct {
	// Client writes, and reads from the shard's cache.
	Client client.Client
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	configMap := &corev1.ConfigMap{}
	if err := r.Client.Get(ctx, req.NamespacedName, configMap); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	sum, err := Of(configMap.Data)
	if err != nil {
		return reconcile.Result{}, err
	}

	if !ofWebsite(configMap) || configMap.Annotations[Annotation] == sum {
		return reconcile.Result{}, nil
	}

	before := configMap.DeepCopy()
	metav1.SetMetaDataAnnotation(&configMap.ObjectMeta, Annotation, sum)

	err = r.Client.Patch(ctx, configMap, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	switch {
	case err == nil || apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: afterConflict}, nil
	default:
		return reconcile.Result{}, fmt.Errorf("write the checksum: %w", err)
	}
}

// Of returns the checksum of a ConfigMap's data: the first 16 hexadecimal digits of the SHA-256 of its JSON.
func Of(data map[string]string) (string, error) {
	text, err := json.Marshal(data)
	if err != nil {
		return "", fmt.Errorf("encode the data: %w", err)
	}

	sum := sha256.Sum256(text)

	return hex.EncodeToString(sum[:8]), nil
}

func ofWebsite(configMap *corev1.ConfigMap) bool {
	controller := metav1.GetControllerOfNoCopy(configMap)

	return controller != nil && controller.Kind == "Website" &&
		controller.APIVersion == v1alpha1.SchemeGroupVersion.String()
}
