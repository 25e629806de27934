package shard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var (
	errPreparing = errors.New("the caches of kinds that are not sharded are not full yet, or the sharded kinds cannot be listed: see the log")
	errNoSlot    = errors.New("the shard does not know yet whether there is a slot for it, or may not take it: see the log")
	errStopping  = errors.New("the shard was told to stop")
	errFilling   = errors.New("the caches of this shard's objects are not full yet")
)

// ready is the check of /readyz: it passes while the process waits for a slot that it could take, and when it works.
func (m *Manager) ready(r *http.Request) error {
	if serves := m.serves.Load(); serves != nil {
		if err := (*serves)(r); err != nil {
			return err
		}
	}

	switch {
	case m.told.Load() != nil:
		return errStopping
	case closed(m.working):
		return m.shard.term.held()
	case closed(m.begun):
		return errFilling
	case m.shard.standsBy.Load():
		return nil
	case !m.prepared.Load():
		return errPreparing
	case m.shard.options.Slots.any():
		return errNoSlot
	default:
		return ErrNotHeld
	}
}

// prepare waits until the process could work as a shard: a version that may not read a kind, or to which a kind is missing, shall take nothing. It also makes
// the informers that the sharded controllers will ask for, so that they are full when the controllers start.
func (m *Manager) prepare(ctx context.Context) error {
	m.mu.Lock()

	var watched []client.Object

	for _, c := range m.controllers {
		if c.sharded {
			watched = append(watched, c.watches()...)
		}
	}
	m.mu.Unlock()

	filled, cancel := context.WithTimeoutCause(ctx, m.patience(), fmt.Errorf("the caches of other kinds than the sharded ones were not full after %s: "+
		"see the log for a permission or a CustomResourceDefinition that is missing", m.patience()))
	defer cancel()

	others := func() error { return m.cache.inform(filled, false, watched) }
	if !m.retry(filled, others) || !m.cache.Cache.WaitForCacheSync(filled) {
		return context.Cause(filled)
	}

	// The kinds can be served, and permitted, later; until then, whoever has the objects keeps them.
	m.prepared.Store(m.retry(ctx, func() error {
		return errors.Join(m.shard.canList(ctx), m.cache.inform(ctx, true, watched))
	}))

	return context.Cause(ctx)
}

// retry calls the function until it succeeds, or the context ends. It reports whether it has succeeded.
func (m *Manager) retry(ctx context.Context, do func() error) bool {
	return wait.PollUntilContextCancel(ctx, again, true, func(ctx context.Context) (bool, error) {
		err := do()
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Taking no Lease, because this process could not work as a shard; trying again")
		}

		return err == nil, nil
	}) == nil
}

// patience is for how long caches may take to be filled.
func (m *Manager) patience() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.limit
}

// fill waits until the caches of the sharded kinds are full. If they are not in time, the Lease must be given back.
func (m *Manager) fill(ctx context.Context, t *tenure) error {
	ctx, stop := ending(ctx, t.lost)
	defer stop()

	limited, cancel := context.WithTimeout(ctx, m.patience())
	defer cancel()

	if m.cache.sharded.WaitForCacheSync(limited) {
		return nil
	}

	if closed(t.lost) {
		return m.shard.lostError()
	}

	return fmt.Errorf("shard %s gives its Lease back, because the caches of its objects were not full after %s: see the log for the kind and the reason", m.shard.Name(),
		m.patience())
}

// canList returns why a declared kind cannot be listed; nil if all of them can.
func (s *Shard) canList(ctx context.Context) error {
	var errs []error

	for _, k := range s.allKinds() {
		namespaces, err := k.namespaces()
		for i := 0; err == nil && i < len(namespaces); i++ {
			_, err = k.page(ctx, namespaces[i], metav1.ListOptions{Limit: 1, LabelSelector: s.shardKey})
		}

		if err != nil {
			errs = append(errs, fmt.Errorf("list %s: %w", k.gvk.GroupKind(), err))
		}
	}

	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })

	return errors.Join(errs...)
}
