package certs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// ConfigMap publishes the bundle of a [Secret] to clients, under the key ca.crt of a ConfigMap: unlike the Secret,
// everybody may read it. Every replica may maintain it. Its exported fields must be set before use.
type ConfigMap struct {
	// Client writes the ConfigMap, and reads it from a cache that contains nothing else.
	Client client.Client
	// Live reads the ConfigMap and the Secret from the API server.
	Live client.Reader
	// Name is the name of the ConfigMap.
	Name types.NamespacedName
	// Secret is the source of the bundle.
	Secret *Secret

	published atomic.Bool
}

// SetupWithManager adds the controller of the ConfigMap to the manager. It runs in every replica.
func (c *ConfigMap) SetupWithManager(mgr manager.Manager) error {
	// The Secret reports every change of the bundle, including the first.
	return maintainer{
		controller: "authorities", name: c.Name, obj: &corev1.ConfigMap{}, subscribe: c.Secret.Subscribe,
	}.setup(mgr, c)
}

// Ready is a readiness check: it fails until the ConfigMap has contained the bundle once. A ConfigMap that is lost
// later is restored, and does not affect readiness.
func (c *ConfigMap) Ready(*http.Request) error {
	if !c.published.Load() {
		return fmt.Errorf("the CA certificates have not been written to ConfigMap %s yet", c.Name)
	}

	return nil
}

// Reconcile writes the bundle into the ConfigMap if it is missing.
func (c *ConfigMap) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	bundle := c.Secret.Bundle()
	if req.NamespacedName != c.Name || bundle == nil {
		return reconcile.Result{}, nil
	}

	found, err := c.read(ctx, c.Client)
	if err != nil {
		return reconcile.Result{}, err
	}

	if found.Data[keyBundle] == string(bundle) {
		c.published.Store(true)
		return reconcile.Result{}, nil
	}

	err = c.publish(ctx)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || errors.Is(err, errLost) {
		return reconcile.Result{RequeueAfter: staleRetry}, nil
	}

	return reconcile.Result{}, err
}

// errLost means that the Secret is about to be restored.
var errLost = errors.New("the Secret contains nothing usable")

// publish writes the current bundle of the Secret to the ConfigMap. The caches of replicas differ in age, so replicas
// could undo each other's writes. However, the Secret is read after the version of the ConfigMap that is replaced: if
// another replica has written a newer bundle by then, either this read returns it, or this write fails.
func (c *ConfigMap) publish(ctx context.Context) error {
	found, err := c.read(ctx, c.Live)
	if err != nil {
		return err
	}

	bundle, err := c.Secret.stored(ctx, c.Live)
	if err != nil {
		return err
	}

	if found.Data[keyBundle] == string(bundle) {
		return nil // an event follows for the cache that is behind
	}

	if found.Data == nil {
		found.Data = map[string]string{}
	}

	found.Data[keyBundle] = string(bundle)
	delete(found.BinaryData, keyBundle) // a key may be in only one of them

	if err := put(ctx, c.Client, c.Name, found); err != nil {
		return fmt.Errorf("write the CA certificates to ConfigMap %s: %w", c.Name, err)
	}

	log.FromContext(ctx).Info("Authorities published", "configMap", c.Name.String())

	return nil
}

// read returns the ConfigMap; if it does not exist, the result has no resourceVersion.
func (c *ConfigMap) read(ctx context.Context, from client.Reader) (*corev1.ConfigMap, error) {
	found := &corev1.ConfigMap{}
	if err := from.Get(ctx, c.Name, found); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read ConfigMap %s: %w", c.Name, err)
	}

	return found, nil
}
