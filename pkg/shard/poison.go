package shard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// sharedMemory is where a process leaves notes for its successor. The containers of a Pod share it, so it outlives a
	// restart of a container, and a write costs a call of the kernel. A process without it leaves no notes.
	sharedMemory = "/dev/shm"
	// suspected is how long a reconcile is suspected at most after it was under way when a process ended.
	suspected = time.Hour

	noteOfSuspect, noteOfWork = ".suspect", ".work" // in the order in which they are read
)

// poison holds back objects whose reconciles end the process. A shard with such an object would be restarted again and
// again, and its objects, the poison among them, would move to another shard.
//
//	O1  A note in shared memory names each object that the process is working on. If the process ends by itself, the
//	    notes remain: its successor in the same Pod suspects these objects. A panic that a controller recovers leaves a
//	    note until the next reconcile of the object.
//	O2  Suspects are reconciled one at a time, until the reconcile returns. So when a process ends once more, at most one
//	    of them was worked on.
//	O3  That one is held back. An annotation on the object says so to whichever shard gets it next. It contains a digest
//	    of the object, and has no effect when the object has changed. Everyone who removes it releases the object.
//
// Rejected alternative: notes in the Lease. A reconcile that ends the process at once would need a write to the API
// server before it begins.
type poison struct {
	keys  ringKeys
	clock clock.PassiveClock
	// events reports objects that are held back; nil: only the log and the metrics do.
	events events.EventRecorder

	mu       sync.Mutex
	dir      string // of the notes; empty: there are none
	inside   map[job]int
	suspects map[job]*suspicion
	tried    job                  // the suspect that is worked on; zero: none is
	held     map[objectKey]string // what was reported, and the annotation
}

// job is what one controller does for an object.
type job struct {
	objectKey

	Controller string
}

// suspicion is that a reconcile ends processes.
type suspicion struct {
	since  time.Time
	proven bool
	mark   string // the annotation that was written because of it; empty: none was
}

func newPoison(keys ringKeys) *poison {
	return &poison{keys: keys, clock: clock.RealClock{}, inside: map[job]int{}, suspects: map[job]*suspicion{},
		held: map[objectKey]string{}}
}

// notesOf returns the directory for the notes of a shard's process. The parts identify it in the memory.
func notesOf(parts ...string) string {
	return filepath.Join(sharedMemory, "clusterring-"+digest(parts))
}

// open reads the notes of a predecessor in the directory.
func (p *poison) open(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil { // only this user reads it
		return err //nolint:wrapcheck // it names the path
	}

	notes, err := os.ReadDir(dir) // in the order of their names: first what is suspected, then what was worked on
	if err != nil {
		return err //nolint:wrapcheck // it names the path
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.dir = dir

	for _, note := range notes {
		var key job

		path := filepath.Join(dir, note.Name())
		text, errRead := os.ReadFile(path)
		info, errInfo := note.Info()

		switch {
		case errRead != nil || errInfo != nil || json.Unmarshal(text, &key) != nil ||
			p.clock.Since(info.ModTime()) > suspected:
			_ = os.Remove(path)
		case p.suspects[key] != nil:
			p.suspects[key].proven = true // both notes stay until the object says it
		default:
			p.suspects[key] = &suspicion{since: info.ModTime()}
			_ = os.Rename(path, p.note(key, noteOfSuspect))
		}
	}

	return nil
}

func (p *poison) close() {
	p.mu.Lock()
	defer p.mu.Unlock()

	_ = os.RemoveAll(p.dir) // it does nothing without a path
	p.dir = ""
}

func (p *poison) note(key job, kind string) string {
	return filepath.Join(p.dir, digest(key)+kind)
}

// try calls the function for an object that may be worked on, unless the object is held back.
func (w *wrapped) try(ctx context.Context, v *visit, inner workFunc) (reconcile.Result, error) {
	p, o := w.shard.poison, judged{job: job{v.keys[0], v.controller}, kind: w.kind, Object: v.obj}
	o.mark = p.keys.of(o.Object).held
	o.held = o.mark != nil && *o.mark == p.fingerprint(o.Object)

	may, proven := p.enter(ctx, o)
	if !may {
		v.shard.progress.refused(v.shard.progress.reconciles, v.controller, "held_back")
	}

	switch {
	case proven != nil:
		return reconcile.Result{RequeueAfter: soon}, p.convict(ctx, o, proven)
	case o.held:
		return reconcile.Result{}, nil // the next event of the object leads here
	case !may:
		return reconcile.Result{RequeueAfter: soon}, nil
	}

	returned := false
	defer func() { p.leave(o.job, returned) }()

	result, err := w.call(ctx, o.NamespacedName, v.deletion, inner)
	returned = true

	if o.mark != nil && err == nil { // the object has changed, and now does no harm
		err = o.write(ctx, map[string]any{"annotations": map[string]any{p.keys.Held: nil}})
	}

	return result, err
}

// judged is an object that a worker is inside of, as the cache shows it.
type judged struct {
	metav1.Object
	job

	kind *kind
	mark *string // the annotation; nil: there is none
	held bool    // the annotation is as new as the object
}

// enter reports whether a worker may begin with an object, and notes that: then it must leave. It returns a suspicion
// that the object does not say yet.
func (p *poison) enter(ctx context.Context, o judged) (may bool, proven *suspicion) {
	p.mu.Lock()
	defer p.mu.Unlock()

	key := o.job

	s := p.suspects[key]
	if s != nil && (p.clock.Since(s.since) > suspected || s.mark != "" && o.mark != nil && *o.mark == s.mark) {
		delete(p.suspects, key) // it was long ago, or the object says it

		s = nil
	}

	switch {
	case o.held:
		p.report(ctx, o)
		return false, nil
	case s != nil && s.proven && s.mark == "":
		return false, s
	case s != nil && (s.proven || p.tried != (job{}) && p.tried != key):
		return false, nil
	case s != nil:
		p.tried = key
	}

	delete(p.held, key.objectKey)

	if p.inside[key]++; p.dir != "" && p.inside[key] == 1 {
		text, _ := json.Marshal(key)                           // it consists of strings
		_ = os.WriteFile(p.note(key, noteOfWork), text, 0o600) // without a note, the object is only not suspected
	}

	return true, nil
}

// leave removes the note, and ends the suspicion, if the function has returned.
func (p *poison) leave(key job, returned bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.inside[key]--; p.inside[key] > 0 {
		return
	}

	delete(p.inside, key)

	if p.tried == key {
		p.tried = job{}
	}

	if p.dir != "" && returned {
		_ = os.Remove(p.note(key, noteOfWork))
		if p.suspects[key] != nil {
			_ = os.Remove(p.note(key, noteOfSuspect))
		}

		delete(p.suspects, key)
	}
}

// convict lets the object say that it is held back. Until the cache shows that, the suspicion holds it back.
func (p *poison) convict(ctx context.Context, o judged, s *suspicion) error {
	mark := p.fingerprint(o.Object)
	if err := o.write(ctx, map[string]any{"resourceVersion": o.GetResourceVersion(),
		"annotations": map[string]any{p.keys.Held: mark}}); err != nil {
		return err
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	s.mark = mark
	_ = os.Remove(p.note(o.job, noteOfWork))
	_ = os.Remove(p.note(o.job, noteOfSuspect))

	return nil
}

func (o judged) write(ctx context.Context, metadata map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err == nil {
		_, err = o.kind.patch(ctx, o.NamespacedName, patch)
	}

	if err != nil {
		return fmt.Errorf("annotate whether %s %s is held back: %w", o.Kind, o.NamespacedName, err)
	}

	return nil
}

// report reports an object that is held back once.
func (p *poison) report(ctx context.Context, o judged) {
	if p.held[o.objectKey] == *o.mark {
		return
	}

	p.held[o.objectKey] = *o.mark
	log.FromContext(ctx).Error(nil,
		"Not reconciling an object, because its reconcile has ended the process twice. It is held back until it changes, "+
			"or the annotation is removed",
		"kind", o.Kind, "object", o.NamespacedName, "annotation", p.keys.Held)

	if p.events != nil {
		about := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name,
			UID: o.GetUID()}}
		about.SetGroupVersionKind(o.kind.gvk)
		p.events.Eventf(about, nil, "Warning", "HeldBack", "Reconcile",
			"The reconcile has ended the process twice. The object is held back until it changes, or the annotation %s is "+
				"removed", p.keys.Held)
	}
}

// releasePoison lets an object be reconciled that is not held back any more. The controllers may filter the event.
func (s *Shard) releasePoison(gk schema.GroupKind, obj any) {
	o, err := meta.Accessor(obj)
	if err != nil {
		return
	}

	p, key := s.poison, objectKey{gk, types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}}

	p.mu.Lock()
	_, held := p.held[key]
	mark := p.keys.of(o).held
	released := held && (mark == nil || *mark != p.fingerprint(o))

	if released {
		delete(p.held, key)
	}
	p.mu.Unlock()

	if released {
		for _, w := range s.wrappersOf(key) {
			w.woken(key.NamespacedName)
		}
	}
}

func (p *poison) forget(key objectKey) {
	p.mu.Lock()
	defer p.mu.Unlock()

	delete(p.held, key)
}

func (s *Shard) heldBack() map[schema.GroupKind]int {
	s.poison.mu.Lock()
	defer s.poison.mu.Unlock()

	counts := map[schema.GroupKind]int{}
	for key := range s.poison.held {
		counts[key.GroupKind]++
	}

	return counts
}

// fingerprint returns a digest of what others may change of an object. A generation stands for what is not metadata.
func (p *poison) fingerprint(obj metav1.Object) string {
	state := map[string]any{"uid": obj.GetUID(), "generation": obj.GetGeneration(),
		"deletion": obj.GetDeletionTimestamp() != nil}
	for _, f := range p.keys.fields(ringMeta{}) {
		state[f.name] = with(f.get(obj), f.pairs, true)
	}

	if obj.GetGeneration() == 0 {
		content, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(obj) // an object of a cache can be encoded
		for _, known := range []string{"apiVersion", "kind", "metadata", "status"} {
			delete(content, known)
		}

		state["content"] = content
	}

	return digest(state)
}

func digest(of any) string {
	text, _ := json.Marshal(of)
	sum := sha256.Sum256(text)

	return hex.EncodeToString(sum[:8])
}
