package shard

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/clusterring/clusterring/pkg/shard/former"
)

// placed is a controller or another runnable as the manager runs it: where it was declared to run, and with a mark for the checks.
type placed struct {
	runnable manager.Runnable
	manager  *Manager
	sharded  bool             // it starts when this process works as a shard
	mark     *mark            // nil: none
	former   *former.Election // it starts after the former leader election; nil if there is none, or if it does not wait
	election *election        // it starts in the elected replica; nil: in every replica
}

// Start implements manager.Runnable.
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

	return p.runnable.Start(p.marked(ctx)) //nolint:wrapcheck // it is the runnable's
}

func (p *placed) marked(ctx context.Context) context.Context {
	if p.mark == nil {
		return ctx
	}

	return marked(ctx, *p.mark)
}

// waitFor reports whether the channel is closed before the context ends.
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
			"Declare it in shard.Options.Controllers as shard.OneReplica or shard.EveryReplica (declared are: %s), or declare its kind", c.name,
			cmp.Or(c.kind().String(), "a kind that the manager cannot see"), strings.Join(slices.Sorted(maps.Keys(m.shard.options.Controllers)), ", "))
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

// addRunnable adds what is no controller, and would run where the leader is.
func (m *Manager) addRunnable(r manager.Runnable) error {
	key := nameOf(r)

	p, ok := m.shard.options.Runnables[key]
	if !ok {
		return fmt.Errorf("runnable %q is not declared: it would run in every replica, because every replica is a leader of its own: declare it in "+
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

// everywhere reports whether a runnable may run in every replica without a declaration: a manager runs it without leader election, or it only reads.
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
