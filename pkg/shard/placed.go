package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/clusterring/clusterring/pkg/shard/former"
)

// placed is a controller or another runnable as the manager runs it: where it was declared, with a mark for the checks.
type placed struct {
	runnable manager.Runnable
	manager  *Manager
	sharded  bool             // it starts when this process works as a shard
	mark     *mark            // nil: none
	former   *former.Election // it starts after the former leader election; nil if there is none, or if it does not wait
	election *election        // it starts in the elected replica; nil: in every replica
}

func (p *placed) Start(ctx context.Context) error {
	ctx, end := p.manager.work(ctx)
	defer end()

	if p.sharded && !waitFor(ctx, p.manager.working) || p.former != nil && !waitFor(ctx, p.former.Held()) {
		return nil
	}

	if p.election != nil {
		if !waitFor(ctx, p.election.elector.Held) || !p.election.crew.enter() {
			return nil
		}

		defer p.election.crew.leave()
	}

	if p.mark != nil {
		ctx = marked(ctx, *p.mark)
	}

	return p.runnable.Start(ctx) //nolint:wrapcheck // it is the runnable's
}

func waitFor(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-c:
		return ctx.Err() == nil
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable. A manager stops what needs none first.
func (p *placed) NeedLeaderElection() bool { return p.election == nil && !everywhere(p.runnable) }

// Add implements manager.Manager.
func (m *Manager) Add(r manager.Runnable) error {
	c, err := find(r)

	switch {
	case err != nil:
		return fmt.Errorf("add a controller to a shard: %w", err)
	case c != nil:
		return m.addController(r, c)
	case everywhere(r):
		return m.inner.Add(r) //nolint:wrapcheck // it is the manager's
	default:
		return m.addRunnable(r)
	}
}

func (m *Manager) addController(r manager.Runnable, c *found) error {
	p, declared := m.shard.options.Controllers[c.name]
	if kind, ok := m.kinds[c.kind()]; ok && !declared {
		p, declared = Sharded(kind.object), true
	}

	if !declared {
		return fmt.Errorf("controller %q is not declared: it works on %s, which is not one of shard.Options.Kinds. "+
			"Declare it in shard.Options.Controllers as shard.OneReplica or shard.EveryReplica (declared are: %s), or "+
			"declare its kind", c.name,
			cmp.Or(c.kind().String(), "a kind that the manager cannot see"),
			strings.Join(slices.Sorted(maps.Keys(m.shard.options.Controllers)), ", "))
	}

	m.mu.Lock()
	m.controllers[c.name] = c
	c.sharded = p.where == sharded
	m.limit = max(m.limit, c.patient())
	m.mu.Unlock()

	if p.where == sharded {
		if err := m.wrap(r, c, p); err != nil {
			return fmt.Errorf("controller %q is sharded, but %w", c.name, err)
		}
	}

	return m.place(r, p.where, c.name)
}

// wrap wraps the reconciler of a sharded controller, unless the program has done so.
func (m *Manager) wrap(r manager.Runnable, c *found, p Placement) error {
	if _, done := c.do().(interface{ ofShard() *Shard }); done {
		return nil
	}

	gvk, err := m.GetClient().GroupVersionKindFor(p.object)
	if err != nil {
		return fmt.Errorf("the kind of %T is not known: %w", p.object, err)
	}

	if is := c.kind(); is != (schema.GroupKind{}) && is != gvk.GroupKind() {
		return fmt.Errorf("it works on %s, and not on %s, for which it is declared", is, gvk.GroupKind())
	}

	w := m.shard.wrap(m.shard.kindOf(m.inner.GetClient(), p.object))

	do, err := p.wrap(w, c.do())
	if err != nil {
		return err
	}

	if watches, ok := r.(controller.Controller); ok {
		if err := watches.Watch(source.Func(w.reach)); err != nil {
			return fmt.Errorf("it cannot be reached: %w", err)
		}
	}

	if r, ok := do.(*typedReconciler[reconcile.Request]); ok && m.former != nil {
		r.inner = m.former.Reconciler(r.inner)
	}

	c.replace(do)

	return nil
}

func (m *Manager) addRunnable(r manager.Runnable) error {
	key := nameOf(r)

	p, ok := m.shard.options.Runnables[key]
	if !ok {
		return fmt.Errorf("runnable %q is not declared: it would run in every replica, because every replica is a leader "+
			"of its own: declare it in "+
			"shard.Options.Runnables as shard.EveryReplica or shard.OneReplica", key)
	}

	if p.where == everyReplica {
		key = "" // controllers that it starts have not been added
	}

	return m.place(r, p.where, key)
}

// place adds a runnable to where it shall run. Without a name, its reconciles are those of nobody.
func (m *Manager) place(r manager.Runnable, at where, name string) error {
	p := &placed{runnable: r, manager: m, sharded: at == sharded}

	if name != "" {
		p.mark = &mark{controller: name, oneReplica: at == oneReplica}
	}

	if at == oneReplica {
		p.election = m.election
	}

	if at != sharded && !everywhere(r) {
		p.former = m.former
	}

	return m.inner.Add(p) //nolint:wrapcheck // it is the manager's
}

// everywhere reports whether a runnable may run in every replica without a declaration: it needs no leader election, or
// it only reads.
func everywhere(r manager.Runnable) bool {
	switch r := r.(type) {
	case *manager.Server:
		return !r.NeedLeaderElection()
	case interface{ GetCache() cache.Cache }, cache.Cache, webhook.Server:
		return true
	case manager.LeaderElectionRunnable:
		return !r.NeedLeaderElection()
	default:
		return false
	}
}

// nameOf returns the name of a runnable's type, or the path of the package of its function.
func nameOf(r manager.Runnable) string {
	if v := reflect.ValueOf(r); v.Kind() == reflect.Func {
		if f := runtime.FuncForPC(v.Pointer()); f != nil {
			path := f.Name()
			slash := strings.LastIndex(path, "/") + 1
			name, _, _ := strings.Cut(path[slash:], ".")

			return path[:slash] + name
		}
	}

	return reflect.TypeOf(r).String()
}

// Kinds are kinds whose objects a ring assigns.
type Kinds []Kind

// Kind is a kind whose objects a ring assigns: [Main] or [Controlled].
type Kind struct {
	object client.Object
	main   bool
}

// Main declares the kind of a main resource of the ring. Its objects follow no controller, even if they have one. The
// object is an empty one of the kind, in any form: typed, unstructured, or metadata.
func Main(object client.Object) Kind { return Kind{object: object, main: true} }

// Controlled declares the kind of a controlled resource of the ring. Each of its objects is at the shard of its
// controller. Declare those that the controllers read, write, or watch, and those between, such as ReplicaSets between
// Deployments and Pods.
func Controlled(object client.Object) Kind { return Kind{object: object} }

type declared map[schema.GroupKind]Kind

// of returns a declared kind, and whether the given one, or that of the objects in a list of it, is declared.
func (d declared) of(gk schema.GroupKind) (schema.GroupKind, Kind, bool) {
	kind, is := d[gk]
	if !is {
		gk.Kind = strings.TrimSuffix(gk.Kind, "List")
		kind, is = d[gk]
	}

	return gk, kind, is
}

var errNoKinds = errors.New("kinds: declare the resources of the ring, such as " +
	"shard.Kinds{shard.Main(&v1.Website{}), shard.Controlled(&corev1.ConfigMap{})}")

// in returns the kinds by group and kind. The error names all that is wrong.
func (k Kinds) in(scheme *kruntime.Scheme) (declared, error) {
	var errs []error

	all, mains := declared{}, 0

	for _, kind := range k {
		if absentObject(kind.object) {
			errs = append(errs, errors.New("kinds: an object is nil: pass an empty object, such as &v1.Website{}"))
			continue
		}

		gvk, err := apiutil.GVKForObject(kind.object, scheme)

		switch _, twice := all[gvk.GroupKind()]; {
		case err != nil:
			errs = append(errs, fmt.Errorf("kinds: determine the kind of %T: %w", kind.object, err))
		case twice:
			errs = append(errs, fmt.Errorf("kinds: %s is declared twice", gvk.GroupKind()))
		case kind.main:
			mains++
		}

		all[gvk.GroupKind()] = kind
	}

	if len(errs) == 0 && mains == 0 {
		errs = append(errs, errNoKinds)
	}

	return all, errors.Join(errs...)
}

func absentObject(obj client.Object) bool {
	return obj == nil || reflect.ValueOf(obj).Kind() == reflect.Pointer && reflect.ValueOf(obj).IsNil()
}

// Placement is where something runs: [Sharded], [ShardedBy], [EveryReplica], or [OneReplica]; zero is none.
type Placement struct {
	where  where
	object client.Object
	// wrap returns the reconciler of a sharded controller.
	wrap func(w *wrapped, do any) (any, error)
}

type where int

const (
	nowhere where = iota
	sharded
	everyReplica
	oneReplica
)

// Sharded declares a controller that works on the objects of this shard of one of the declared kinds. Controllers that
// are built with builder.For, and without a logger of their own, need no declaration.
func Sharded(kind client.Object) Placement { return ShardedBy(kind, requested) }

func requested(r reconcile.Request) types.NamespacedName { return r.NamespacedName }

// ShardedBy declares a controller whose requests have their own type. It returns what a request is about.
func ShardedBy[R comparable](kind client.Object, object func(R) types.NamespacedName) Placement {
	return Placement{where: sharded, object: kind, wrap: func(w *wrapped, do any) (any, error) {
		inner, ok := do.(reconcile.TypedReconciler[R])
		if !ok {
			return nil, fmt.Errorf("its requests are not of type %T, but those of %T: declare it as shard.ShardedBy with "+
				"their type", *new(R), do)
		}

		return newReconciler(w, inner, object), nil
	}}
}

// validatePlacements returns what is wrong with Controllers and Runnables.
func (o Options) validatePlacements(scheme *kruntime.Scheme, kinds declared) error {
	var errs []error

	for _, name := range slices.Sorted(maps.Keys(o.Controllers)) {
		p := o.Controllers[name]
		if p.where == nowhere {
			errs = append(errs, fmt.Errorf("controller %q: declare it as shard.Sharded, shard.EveryReplica, or shard.OneReplica",
				name))
		}

		if p.where != sharded {
			continue
		}

		if absentObject(p.object) {
			errs = append(errs, fmt.Errorf("controller %q: its kind is nil: pass an empty object, such as &v1.Website{}", name))
			continue
		}

		gvk, err := apiutil.GVKForObject(p.object, scheme)
		if _, declared := kinds[gvk.GroupKind()]; err == nil && !declared {
			err = errors.New("declare it in Kinds")
		}

		if err != nil {
			errs = append(errs, fmt.Errorf("controller %q: kind of %T: %w", name, p.object, err))
		}
	}

	for _, name := range slices.Sorted(maps.Keys(o.Runnables)) {
		if w := o.Runnables[name].where; w != everyReplica && w != oneReplica {
			errs = append(errs, fmt.Errorf("runnable %q: declare it as shard.EveryReplica or shard.OneReplica", name))
		}
	}

	return errors.Join(errs...)
}

func (o Options) uses(w where) bool {
	has := func(p Placement) bool { return p.where == w }

	return slices.ContainsFunc(slices.Collect(maps.Values(o.Controllers)), has) ||
		slices.ContainsFunc(slices.Collect(maps.Values(o.Runnables)), has)
}

// EveryReplica declares a controller or runnable that runs in every replica, also in one that waits for a slot: several
// processes work on the same objects at the same time. That is right for what works on its own replica, or reads only.
func EveryReplica() Placement { return Placement{where: everyReplica} }

// OneReplica declares a controller or runnable that runs in one replica at a time, as with leader election. The Lease
// of the election is in the namespace of the shards; see [LeaseName].
func OneReplica() Placement { return Placement{where: oneReplica} }

// LeaseName returns the name of the Lease of the election for what runs in one replica.
func LeaseName(ring string) string { return "one-replica." + ring }

type typedReconciler[R comparable] struct {
	*wrapped
	inner  reconcile.TypedReconciler[R]
	object func(R) types.NamespacedName
}

func newReconciler[R comparable](
	w *wrapped, inner reconcile.TypedReconciler[R], object func(R) types.NamespacedName,
) *typedReconciler[R] {
	w.ends = releaseOf(inner)

	return &typedReconciler[R]{wrapped: w, inner: inner, object: object}
}

func (r *typedReconciler[R]) Reconcile(ctx context.Context, request R) (reconcile.Result, error) {
	return r.work(ctx, r.object(request), func(ctx context.Context) (reconcile.Result, error) {
		return r.inner.Reconcile(ctx, request)
	})
}

// TypedReconciler is [Shard.Reconciler] for requests of another type. The function returns what a request is about.
func TypedReconciler[R comparable](
	m *Manager, obj client.Object, inner reconcile.TypedReconciler[R], object func(R) types.NamespacedName,
) reconcile.TypedReconciler[R] {
	return newReconciler(m.shard.wrap(m.shard.kindOf(m.inner.GetClient(), obj)), inner, object)
}

// defaultSyncTimeout is for how long a controller waits for its caches by default, as in controller-runtime.
const defaultSyncTimeout = 2 * time.Minute

// ErrUnknownController is the error for a controller whose type the package does not know: controller-runtime has
// changed it, or the program has wrapped it. Such a controller is not started.
var ErrUnknownController = errors.New("the controller is not like those of controller-runtime 0.24 and 0.25")

// found is a controller of controller-runtime that was added to the manager.
type found struct {
	name   string
	fields reflect.Value // of the controller
	// sharded is true if it works on the objects of this shard.
	sharded bool
}

const library = "sigs.k8s.io/controller-runtime/pkg/internal/controller"

// find returns the controller that a runnable is, or that it embeds; nil if there is none. All versions keep the name
// and the reconciler in exported fields of a type that is not exported to other modules.
func find(r manager.Runnable) (*found, error) {
	v := reflect.Indirect(reflect.ValueOf(r))
	if v.IsValid() && v.Type().PkgPath() == library {
		return open(r, v)
	}

	_, like := r.(controller.Controller)
	if like && v.Kind() == reflect.Struct {
		// As cert-controller does, which changes whether its controller needs leader election.
		for i := range v.NumField() {
			if embedded := v.Type().Field(i); embedded.Anonymous && embedded.IsExported() {
				if inner, ok := reflect.TypeAssert[manager.Runnable](v.Field(i)); ok {
					return find(inner)
				}
			}
		}
	}

	if like {
		return nil, fmt.Errorf("%w: %T contains a controller, but does not embed it: add the controller itself",
			ErrUnknownController, r)
	}

	return nil, nil //nolint:nilnil // no controller
}

func open(r manager.Runnable, v reflect.Value) (*found, error) {
	f := &found{fields: v}

	name, do := f.field("Name"), f.field("Do")
	if !name.IsValid() || name.Kind() != reflect.String || !do.IsValid() || do.Kind() != reflect.Interface ||
		!do.CanSet() || do.IsNil() {
		return nil, fmt.Errorf("%w: %T", ErrUnknownController, r)
	}

	f.name = name.String()

	return f, nil
}

func (f *found) field(name string) reflect.Value {
	if f.fields.Kind() != reflect.Struct {
		return reflect.Value{}
	}

	return f.fields.FieldByName(name)
}

// kind returns the For kind of the controller, as far as the builder has told it.
func (f *found) kind() schema.GroupKind {
	construct := f.field("LogConstructor")
	if !construct.IsValid() || construct.Kind() != reflect.Func || construct.IsNil() || construct.Type().NumIn() != 1 {
		return schema.GroupKind{}
	}

	l, _ := reflect.TypeAssert[logr.Logger](construct.Call([]reflect.Value{reflect.Zero(construct.Type().In(0))})[0])

	return kindIn(l)
}

// patient makes the controller wait for its caches as long as the shard waits for its name. It returns how long it
// would.
func (f *found) patient() time.Duration {
	limit := defaultSyncTimeout

	if v := f.field("CacheSyncTimeout"); v.IsValid() && v.CanSet() && v.Type() == reflect.TypeFor[time.Duration]() {
		if given := time.Duration(v.Int()); given > 0 {
			limit = given
		}

		v.SetInt(math.MaxInt64 / 2) // for ever
	}

	return limit
}

// watches returns objects of the kinds that the controller watches so far in the cache of the manager.
func (f *found) watches() (objects []client.Object) {
	sources := f.field("startWatches")
	if !sources.IsValid() || sources.Kind() != reflect.Slice {
		return nil
	}

	for i := range sources.Len() {
		s := reflect.Indirect(sources.Index(i).Elem())
		if !s.IsValid() || !strings.HasPrefix(s.Type().Name(), "Kind[") {
			continue
		}

		in, obj := s.FieldByName("Cache"), s.FieldByName("Type")
		if !in.IsValid() || in.Kind() != reflect.Interface || !in.Elem().IsValid() ||
			in.Elem().Type() != reflect.TypeFor[*ringCache]() || !obj.IsValid() {
			continue
		}

		if obj.Kind() == reflect.Interface {
			obj = obj.Elem()
		}

		if obj.Kind() == reflect.Pointer && !obj.IsNil() {
			if is, ok := reflect.TypeAssert[client.Object](reflect.NewAt(obj.Type().Elem(), obj.UnsafePointer())); ok {
				objects = append(objects, is)
			}
		}
	}

	return objects
}

func (f *found) do() any { return f.field("Do").Interface() }

func (f *found) replace(r any) { f.field("Do").Set(reflect.ValueOf(r)) }

// noting is a LogSink that remembers the values of its logger. The builder puts the For kind nowhere but there.
type noting struct {
	logr.LogSink

	values map[string]string
}

func noted(l logr.Logger) logr.Logger { return l.WithSink(noting{LogSink: l.GetSink()}) }

// kindIn returns the kind that the builder has put into the logger of a controller; empty if there is none.
func kindIn(l logr.Logger) schema.GroupKind {
	n, _ := l.GetSink().(noting)

	return schema.GroupKind{Group: n.values["controllerGroup"], Kind: n.values["controllerKind"]}
}

func (n noting) Init(info logr.RuntimeInfo) {
	info.CallDepth++
	n.LogSink.Init(info)
}

func (n noting) WithValues(keysAndValues ...any) logr.LogSink {
	values := maps.Clone(n.values)
	if values == nil {
		values = map[string]string{}
	}

	for i := 0; i+1 < len(keysAndValues); i += 2 {
		key, isKey := keysAndValues[i].(string)
		if value, isText := keysAndValues[i+1].(string); isKey && isText {
			values[key] = value
		}
	}

	return noting{n.LogSink.WithValues(keysAndValues...), values}
}

func (n noting) WithName(name string) logr.LogSink { return noting{n.LogSink.WithName(name), n.values} }
