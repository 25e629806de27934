package certs

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// publish writes the bundle into the ConfigMap if it is missing. stale is true if that has to be tried again soon.
func (s *Secret) publish(ctx context.Context) (stale bool, err error) {
	bundle := s.Bundle()
	if bundle == nil {
		return false, nil
	}

	found, err := s.authorities(ctx, s.Client)
	if err != nil {
		return false, err
	}

	if found.Data[keyBundle] == string(bundle) {
		s.published.Store(true)
		return false, nil
	}

	err = s.publishStored(ctx)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || errors.Is(err, errLost) {
		return true, nil
	}

	return false, err
}

// errLost means that the Secret is about to be restored.
var errLost = errors.New("the Secret contains nothing usable")

// publishStored writes the current bundle of the Secret to the ConfigMap. The caches of replicas differ in age, so
// replicas could undo each other's writes. However, the Secret is read after the version of the ConfigMap that is
// replaced: if another replica has written a newer bundle by then, either this read returns it, or this write fails.
func (s *Secret) publishStored(ctx context.Context) error {
	found, err := s.authorities(ctx, s.Live)
	if err != nil {
		return err
	}

	bundle, err := s.stored(ctx, s.Live)
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

	name := types.NamespacedName{Namespace: s.Name.Namespace, Name: s.ConfigMap}
	if err := put(ctx, s.Client, name, found); err != nil {
		return fmt.Errorf("write the CA certificates to ConfigMap %s: %w", name, err)
	}

	log.FromContext(ctx).Info("Authorities published", "configMap", name.String())

	return nil
}

// authorities returns the ConfigMap; if it does not exist, the result has no resourceVersion.
func (s *Secret) authorities(ctx context.Context, from client.Reader) (*corev1.ConfigMap, error) {
	found, name := &corev1.ConfigMap{}, types.NamespacedName{Namespace: s.Name.Namespace, Name: s.ConfigMap}
	if err := from.Get(ctx, name, found); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read ConfigMap %s: %w", name, err)
	}

	return found, nil
}

// stored returns the bundle in the Secret, or errLost if the Secret is about to be restored.
func (s *Secret) stored(ctx context.Context, from client.Reader) ([]byte, error) {
	secret := &corev1.Secret{}
	if err := from.Get(ctx, s.Name, secret); apierrors.IsNotFound(err) {
		return nil, errLost
	} else if err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", s.Name, err)
	}

	m := parse(secret.Data)
	if s.Policy.unusableCert(s.Clock.Now(), m) != "" {
		return nil, errLost
	}

	return m.bundlePEM(), nil
}
