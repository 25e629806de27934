package certs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// ConfigMap shows the bundle of a [Secret] to clients, under the key ca.crt of a ConfigMap: unlike the Secret, it may be read by
// everybody. Every replica may maintain it. Its exported fields must be set before use.
type ConfigMap struct {
	// Client reads the ConfigMap, from a cache that holds nothing but it, and writes it.
	Client client.Client
	// Live reads the ConfigMap and the Secret from the API server.
	Live client.Reader
	// Name is the ConfigMap's.
	Name types.NamespacedName
	// Secret is where the bundle comes from.
	Secret *Secret

	published atomic.Bool
}

// SetupWith adds to the manager what maintains the ConfigMap. It runs in every replica.
func (c *ConfigMap) SetupWith(mgr manager.Manager) error {
	// The Secret tells of every change of the bundle, and so of the first.
	return maintainer{
		controller: "authorities", kind: "ConfigMap", name: c.Name, obj: &corev1.ConfigMap{}, subscribe: c.Secret.Subscribe,
	}.setup(mgr, c)
}

// Ready is a readiness check: it fails until the ConfigMap has held the bundle once. A ConfigMap that is lost later is restored,
// and is no reason not to serve.
func (c *ConfigMap) Ready(*http.Request) error {
	if !c.published.Load() {
		return fmt.Errorf("the authorities have not been written to ConfigMap %s yet", c.Name)
	}

	return nil
}

// Reconcile puts the bundle into the ConfigMap, if it is not there.
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

// errLost says that the Secret is about to be restored.
var errLost = errors.New("the Secret holds nothing usable")

// publish writes the bundle of the Secret, as it is now, to the ConfigMap. Caches of replicas differ in age, and would have them
// undo each other's writes. But the Secret is read after the version of the ConfigMap that is replaced: if another replica has
// written a newer bundle by then, either that is read here, too, or this write fails.
func (c *ConfigMap) publish(ctx context.Context) error {
	found, err := c.read(ctx, c.Live)
	if err != nil {
		return err
	}

	bundle, err := c.Secret.stored(ctx, c.Live)
	if err != nil {
		return err
	}

	before, there := found.Data[keyBundle]
	if before == string(bundle) {
		return nil // an event follows for the cache that is behind
	}

	if found.Data == nil {
		found.Data = map[string]string{}
	}

	found.Data[keyBundle] = string(bundle)
	delete(found.BinaryData, keyBundle) // a key may be in one of them only

	reason, write := "its authorities were not those of the Secret", c.update

	switch {
	case found.ResourceVersion == "":
		reason, write = "there was none", c.create
	case !there:
		reason = "it had no authorities"
	}

	if err := write(ctx, found); err != nil {
		return fmt.Errorf("write the authorities to ConfigMap %s: %w", c.Name, err)
	}

	log.FromContext(ctx).Info("Authorities published", "configMap", c.Name.String(), "reason", reason)

	return nil
}

func (c *ConfigMap) create(ctx context.Context, m *corev1.ConfigMap) error {
	m.ObjectMeta = metav1.ObjectMeta{Namespace: c.Name.Namespace, Name: c.Name.Name}

	return c.Client.Create(ctx, m) //nolint:wrapcheck // the caller says what it was doing
}

func (c *ConfigMap) update(ctx context.Context, m *corev1.ConfigMap) error {
	return c.Client.Update(ctx, m) //nolint:wrapcheck // the caller says what it was doing
}

// read returns the ConfigMap, which has no resourceVersion if there is none.
func (c *ConfigMap) read(ctx context.Context, from client.Reader) (*corev1.ConfigMap, error) {
	found := &corev1.ConfigMap{}
	if err := from.Get(ctx, c.Name, found); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read ConfigMap %s: %w", c.Name, err)
	}

	return found, nil
}
