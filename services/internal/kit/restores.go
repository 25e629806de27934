package kit

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// firstRestore and lastRestore bound the pause after an object was restored. It doubles from time to time.
	firstRestore = time.Second
	lastRestore  = time.Minute
	// restoresCalm is how long nobody must have changed an object for the pauses to begin anew.
	restoresCalm = 10 * time.Minute
)

// ContestedError is the error of [Restores.Write] that others keep changing the object, so that it is not restored yet.
type ContestedError struct {
	// What says who changes what, for people.
	What string
	// RetryAfter is when the object may be restored.
	RetryAfter time.Duration
}

// Error implements error.
func (c *ContestedError) Error() string { return c.What }

// Later returns the errors, but a [ContestedError] as a result that asks to come again. It is the end of a reconcile.
func Later(errs ...error) (reconcile.Result, error) {
	var result reconcile.Result

	for i, err := range errs {
		if contested := (*ContestedError)(nil); errors.As(err, &contested) {
			errs[i] = nil

			result.RequeueAfter = Sooner(result.RequeueAfter, contested.RetryAfter)
		}
	}

	return result, errors.Join(errs...)
}

// Sooner returns the shorter of two times until a reconcile has to come again; 0 is never.
func Sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}

	return min(a, b)
}

// Restores paces how often a service restores objects that others change: another controller may insist on its change
// as a service does. Objects are told apart by name. It remembers each as long as the process runs. It is safe for
// concurrent use for different objects.
type Restores struct {
	clock clock.PassiveClock
	pause workqueue.TypedRateLimiter[string]
	last  sync.Map // restore, by the name of the object
}

// restore is the last write of an object; at no time, if there was none.
type restore struct {
	wanted any
	at     time.Time
	pause  time.Duration // 0 if nobody had changed the object
	what   string        // what others had changed; empty if there is nothing to report
}

// NewRestores returns the value for the objects of one controller.
func NewRestores(clk clock.PassiveClock) *Restores {
	return &Restores{
		clock: clk,
		pause: workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRestore, lastRestore),
	}
}

// Write calls write, which brings the named object into the wanted state, and returns its error. If the last write
// wanted the same, others have changed the object, as what says: then Write returns a [ContestedError] instead, unless
// the pause is over. A state that differs from the last one is written at once.
func (r *Restores) Write(name string, wanted any, what string, write func() error) error {
	last, now := r.of(name), r.clock.Now()
	next, contested := restore{wanted: wanted, at: now}, r.Same(name, wanted)

	if contested {
		if wait := last.at.Add(last.pause).Sub(now); wait > 0 {
			return &ContestedError{What: what, RetryAfter: wait}
		}

		if now.Sub(last.at) > restoresCalm {
			r.pause.Forget(name)
		}

		next.what = what
	}

	if err := write(); err != nil {
		return err
	}

	if contested {
		next.pause = r.pause.When(name)
	}

	r.last.Store(name, next)

	return nil
}

func (r *Restores) of(name string) restore {
	last, _ := r.last.Load(name)
	found, _ := last.(restore)

	return found
}

// Same reports whether the last write of the object wanted the same.
func (r *Restores) Same(name string, wanted any) bool {
	last := r.of(name)

	return !last.at.IsZero() && equality.Semantic.DeepEqual(last.wanted, wanted)
}

// Lately returns what others changed when the object was last restored, if that has happened more than once, and for
// how long this is worth a report. It returns "" if there is nothing to report.
func (r *Restores) Lately(name string) (what string, until time.Duration) {
	last := r.of(name)

	until = last.at.Add(restoresCalm).Sub(r.clock.Now())
	if last.what == "" || r.pause.NumRequeues(name) < 2 || until <= 0 {
		return "", 0
	}

	return last.what, until
}

// WithManagers lets a cache keep managedFields, which [Changed] needs.
func WithManagers(o cache.ByObject) cache.ByObject {
	o.Transform = func(obj any) (any, error) { return obj, nil }

	return o
}

// Changed says in which fields an object differs from what it should be, and which field managers other than self have
// written these fields last, as far as managedFields tell. Both are for people.
func Changed(have, want client.Object, kind, self string) (who, what string) {
	h, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(have) // fails for no object of the API
	w, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(want)
	paths := differences("", h, w)

	var managers []string

	for _, path := range paths {
		if m := lastManager(have, path, self); m != "" {
			managers = append(managers, m)
		}
	}

	if len(managers) == 0 {
		managers = []string{"somebody"}
	}

	return strings.Join(sorted(managers), ", "), strings.Join(paths, ", ") + " of " + kind + " " + want.GetName()
}

func sorted(all []string) []string { return slices.Compact(slices.Sorted(slices.Values(all))) }

// differences returns the paths of the fields that differ. Elements of lists are told apart by their names, if they
// have names.
func differences(path string, have, want any) []string {
	h, hOK := byName(have)
	w, wOK := byName(want)

	if !hOK || !wOK {
		if equality.Semantic.DeepEqual(have, want) {
			return nil
		}

		return []string{path}
	}

	var out []string

	for _, name := range sorted(slices.AppendSeq(slices.Collect(maps.Keys(h)), maps.Keys(w))) {
		at := path + "." + name
		if _, list := want.([]any); list {
			at = path + "[" + name + "]"
		}

		out = append(out, differences(strings.TrimPrefix(at, "."), h[name], w[name])...)
	}

	return out
}

// byName returns the fields of a map, or the elements of a list by their names.
func byName(value any) (map[string]any, bool) {
	list, ok := value.([]any)
	if !ok {
		fields, ok := value.(map[string]any)

		return fields, ok
	}

	out := map[string]any{}

	for _, element := range list {
		fields, _ := element.(map[string]any)

		name, ok := fields["name"].(string)
		if !ok {
			return nil, false
		}

		out[name] = element
	}

	return out, true
}

// lastManager returns the field manager, other than self, that has written the field at the path last, or else a field
// around it. Managers own selectors and lists as a whole.
func lastManager(obj client.Object, path, self string) string {
	segments := strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' })

	for _, segment := range slices.Backward(segments) {
		var (
			found string
			at    time.Time
		)

		for _, m := range obj.GetManagedFields() {
			if m.Manager != self && m.FieldsV1 != nil && strings.Contains(m.FieldsV1.GetRawString(), `"f:`+segment+`"`) &&
				m.Time != nil && !m.Time.Time.Before(at) {
				found, at = m.Manager, m.Time.Time
			}
		}

		if found != "" {
			return found
		}
	}

	return ""
}

const (
	// firstRetry and lastRetry bound the pause before something that failed is tried again. It doubles from try to try.
	firstRetry = 5 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// RateLimiter returns a rate limiter for the retries of a controller. Pauses start at 5 ms and double up to 30 s; each
// is shortened at random by up to a fifth. (The default of controller-runtime goes up to 1,000 s.) Each controller
// needs its own rate limiter. It is safe for concurrent use.
func RateLimiter[T comparable]() workqueue.TypedRateLimiter[T] {
	return jittered[T]{workqueue.NewTypedItemExponentialFailureRateLimiter[T](firstRetry, lastRetry)}
}

// jittered shortens the pauses of another limiter, so that what failed together is not tried together.
type jittered[T comparable] struct {
	workqueue.TypedRateLimiter[T]
}

// When implements workqueue.TypedRateLimiter.
func (j jittered[T]) When(item T) time.Duration {
	return wait.Jitter(j.TypedRateLimiter.When(item)*4/5, 0.25) //nolint:mnd // up to five quarters of four fifths
}
