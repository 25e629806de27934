// Package fixedring keeps one ClusterRing in memory, for programs that bring their ring along, where the API server knows no ClusterRings.
//
// It stands in for the API server: an informer lists and watches the ring here, and clients read and write it here. Everything else goes to the
// API server. What services report in the status is kept here, and conditions that change go to the log.
package fixedring

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

var rings = v1alpha1.GroupVersion.WithResource("clusterrings").GroupResource()

// Store keeps one ring. It is safe for concurrent use. Create it with [New].
type Store struct {
	log logr.Logger

	mu      sync.Mutex
	ring    *v1alpha1.ClusterRing
	version int64
	// parts are the parts of the status, by their field managers.
	parts    map[string]map[string]any
	watchers map[*watcher]struct{}
}

// New returns a store with a ring of the given name and spec, which must be valid.
func New(name string, spec v1alpha1.ClusterRingSpec, log logr.Logger) *Store {
	s := &Store{log: log, parts: map[string]map[string]any{}, watchers: map[*watcher]struct{}{}}
	s.ring = &v1alpha1.ClusterRing{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ClusterRing"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("fixed-" + name), Generation: 1},
		Spec:       *spec.DeepCopy(),
	}
	s.bump()

	return s
}

// bump gives the ring its next version. The caller holds mu, or is alone.
func (s *Store) bump() {
	s.version++
	s.ring.ResourceVersion = strconv.FormatInt(s.version, 10)

	for w := range s.watchers {
		w.wake()
	}
}

// Ring returns a copy of the ring.
func (s *Store) Ring() *v1alpha1.ClusterRing {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.ring.DeepCopy()
}

// get reads the ring into out.
func (s *Store) get(name string, out *v1alpha1.ClusterRing) error {
	ring := s.Ring()
	if ring.Name != name {
		return apierrors.NewNotFound(rings, name) //nolint:wrapcheck // as an API server answers
	}

	ring.DeepCopyInto(out)

	return nil
}

// setMeta writes the annotations and finalizers of the ring. It fails if the ring has changed since the given copy was read.
func (s *Store) setMeta(ring *v1alpha1.ClusterRing) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if ring.Name != s.ring.Name {
		return apierrors.NewNotFound(rings, ring.Name) //nolint:wrapcheck // as an API server answers
	}

	if ring.ResourceVersion != s.ring.ResourceVersion {
		return apierrors.NewConflict(rings, ring.Name, errors.New("the ring has changed")) //nolint:wrapcheck // as an API server answers
	}

	s.ring.Annotations, s.ring.Finalizers = maps.Clone(ring.Annotations), slices.Clone(ring.Finalizers)
	s.bump()
	s.ring.DeepCopyInto(ring)

	return nil
}

// setStatus replaces the part of the status that belongs to the owner.
func (s *Store) setStatus(name, owner string, part map[string]any) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if name != s.ring.Name {
		return apierrors.NewNotFound(rings, name) //nolint:wrapcheck // as an API server answers
	}

	before := s.ring.Status.Conditions
	s.parts[owner] = part

	status, err := s.merged()
	if err != nil {
		return fmt.Errorf("read the status of ring %s: %w", name, err)
	}

	s.ring.Status = status
	s.bump()
	s.tell(before)

	return nil
}

// merged returns the status, which consists of the parts of all owners. No two owners write the same field or condition.
func (s *Store) merged() (v1alpha1.ClusterRingStatus, error) {
	whole := map[string]any{}

	var conditions []any

	for _, owner := range slices.Sorted(maps.Keys(s.parts)) {
		for field, value := range s.parts[owner] {
			if list, ok := value.([]any); ok && field == "conditions" {
				conditions = append(conditions, list...)
			} else {
				whole[field] = value
			}
		}
	}

	whole["conditions"] = conditions
	status := v1alpha1.ClusterRingStatus{}

	err := runtime.DefaultUnstructuredConverter.FromUnstructured(whole, &status)

	return status, err //nolint:wrapcheck // the caller says what it was doing
}

// tell logs the conditions that have changed, because nobody can look them up.
func (s *Store) tell(before []metav1.Condition) {
	for _, c := range s.ring.Status.Conditions {
		if old := meta.FindStatusCondition(before, c.Type); old == nil || old.Status != c.Status || old.Reason != c.Reason {
			s.log.Info("Condition of the ring", "ring", s.ring.Name, "type", c.Type, "status", c.Status, "reason", c.Reason, "message", c.Message)
		}
	}
}

// List implements cache.ListerWatcher.
func (s *Store) List(metav1.ListOptions) (runtime.Object, error) {
	ring := s.Ring()

	return &v1alpha1.ClusterRingList{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ClusterRingList"},
		ListMeta: metav1.ListMeta{ResourceVersion: ring.ResourceVersion}, Items: []v1alpha1.ClusterRing{*ring},
	}, nil
}

// Watch implements cache.ListerWatcher. A watch begins with the present state, and may leave out states between two others.
func (s *Store) Watch(metav1.ListOptions) (watch.Interface, error) {
	w := &watcher{store: s, changed: make(chan struct{}, 1), events: make(chan watch.Event)}
	w.ctx, w.cancel = context.WithCancel(context.Background())

	s.mu.Lock()
	s.watchers[w] = struct{}{}
	s.mu.Unlock()

	w.wake()

	go w.run()

	return w, nil
}

// IsWatchListSemanticsUnSupported makes reflectors list before they watch.
func (*Store) IsWatchListSemanticsUnSupported() bool { return true }

// watcher is a watch.Interface.
type watcher struct {
	store   *Store
	changed chan struct{}
	events  chan watch.Event
	ctx     context.Context //nolint:containedctx // it ends with Stop
	cancel  context.CancelFunc
}

func (w *watcher) wake() {
	select {
	case w.changed <- struct{}{}:
	default: // it will read the newest state anyway
	}
}

func (w *watcher) run() {
	defer close(w.events)

	for {
		select {
		case <-w.ctx.Done():
			return
		case <-w.changed:
		}

		select {
		case <-w.ctx.Done():
			return
		case w.events <- watch.Event{Type: watch.Modified, Object: w.store.Ring()}:
		}
	}
}

// Stop implements watch.Interface.
func (w *watcher) Stop() {
	w.cancel()

	w.store.mu.Lock()
	defer w.store.mu.Unlock()

	delete(w.store.watchers, w)
}

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.events }
