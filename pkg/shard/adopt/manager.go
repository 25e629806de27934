package adopt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/pkg/shard/former"
)

// inner is the manager without sharding, which nobody else gets.
type inner = manager.Manager

// adopter implements NewManager.
type adopter struct {
	inner

	shard    *shard.Shard
	options  Options
	checks   *checks
	former   *former.Election // nil: there is none
	election *election        // nil: nothing runs in one replica

	mu   sync.Mutex
	seen map[string]bool // controllers that were added
}

// NewManager returns a manager that runs as the shard, and shards the controllers that are added to it. It replaces manager.New. It changes the options as
// [shard.Shard.ConfigureManager] does. If the options have a leader election, the shards replace it, see A5 in the package documentation: leave it
// in the options until no version without shards can come back. The error names all that is missing or wrong.
func NewManager(s *shard.Shard, config *rest.Config, options manager.Options, adopted Options) (manager.Manager, error) {
	m := &adopter{shard: s, options: adopted, seen: map[string]bool{}}
	if err := adopted.validate(); err != nil {
		return nil, fmt.Errorf("adopt the controllers of shard %s: %w", s.Name(), err)
	}

	if err := m.replaceElection(config, &options); err != nil {
		return nil, err
	}

	if err := s.ConfigureManager(config, &options, adopted.kinds()...); err != nil {
		return nil, fmt.Errorf("adopt the controllers of shard %s: %w", s.Name(), err)
	}

	mgr, err := manager.New(config, options)
	if err != nil {
		return nil, fmt.Errorf("create the manager of shard %s: %w", s.Name(), err)
	}

	m.inner = mgr
	if m.checks, err = newChecks(mgr.GetScheme(), options.Client.Cache, adopted.kinds()); err != nil {
		return nil, err
	}

	if m.former != nil {
		if err := mgr.Add(m.former); err != nil {
			return nil, fmt.Errorf("add the former leader election: %w", err)
		}
	}

	if adopted.uses(oneReplica) {
		if m.election, err = newElection(config, s); err != nil {
			return nil, err
		}

		if err := mgr.Add(m.election); err != nil {
			return nil, fmt.Errorf("add the election for what runs in one replica: %w", err)
		}
	}

	return m, nil
}

// replaceElection takes the leader election out of the options.
func (m *adopter) replaceElection(config *rest.Config, o *manager.Options) (err error) {
	if o.LeaderElection && o.LeaderElectionID != "" {
		namespace := o.LeaderElectionNamespace
		if namespace == "" {
			namespace = m.shard.Namespace()
		}

		if o.LeaderElectionConfig != nil {
			config = o.LeaderElectionConfig
		}

		m.former, err = former.New(config, former.Options{
			Ring: m.shard.Ring(), Namespace: namespace, Name: o.LeaderElectionID,
			LeaseDuration: duration(o.LeaseDuration), RenewDeadline: duration(o.RenewDeadline), RetryPeriod: duration(o.RetryPeriod),
		})
	}

	o.LeaderElection, o.LeaderElectionID, o.LeaderElectionNamespace = false, "", ""
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod, o.LeaderElectionConfig = nil, nil, nil, nil

	return err
}

func duration(d *time.Duration) time.Duration { return ptr.Deref(d, 0) }

// Add implements manager.Manager.
func (m *adopter) Add(r manager.Runnable) error {
	c, err := find(r)

	switch {
	case err != nil:
		return fmt.Errorf("adopt: %w", err)
	case c != nil:
		return m.addController(r, c)
	case everywhere(r):
		return m.inner.Add(r) //nolint:wrapcheck // it is the manager's
	default:
		return m.addRunnable(r)
	}
}

func (m *adopter) addController(r manager.Runnable, c *found) error {
	p, ok := m.options.Controllers[c.name]
	if !ok {
		return fmt.Errorf("adopt: controller %q is not declared: declare it in adopt.Options.Controllers as adopt.Sharded, adopt.EveryReplica, or "+
			"adopt.OneReplica (declared are %s)", c.name, strings.Join(slices.Sorted(maps.Keys(m.options.Controllers)), ", "))
	}

	m.mu.Lock()
	m.seen[c.name] = true
	m.mu.Unlock()

	if p.where != sharded {
		return m.place(r, mark{where: p.where, controller: c.name})
	}

	reconciler := c.reconciler()
	if reconciler == nil {
		return fmt.Errorf("adopt: controller %q is declared as sharded, but its requests are not reconcile.Requests, so the object that it works on "+
			"is not known: wrap its reconciler with the shard's, or declare it in every replica or in one", c.name)
	}

	if m.former != nil {
		reconciler = m.former.Reconciler(reconciler)
	}

	c.replace(m.shard.Reconciler(m.inner.GetClient(), p.kind, reconciler))

	if err := m.inner.Add(&placed{runnable: r, mark: mark{where: sharded, controller: c.name}}); err != nil {
		return fmt.Errorf("adopt: add controller %q: %w", c.name, err)
	}

	// The controller's own predicates may hide drains.
	drains := m.shard.Predicate(predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, UpdateFunc: func(event.UpdateEvent) bool { return false },
		DeleteFunc: func(event.DeleteEvent) bool { return false }, GenericFunc: func(event.GenericEvent) bool { return false },
	})
	if err := c.controller.Watch(source.Kind(m.inner.GetCache(), p.kind, &handler.EnqueueRequestForObject{}, drains)); err != nil {
		return fmt.Errorf("adopt: watch the drains of controller %q: %w", c.name, err)
	}

	return nil
}

// addRunnable adds what is no controller, and would run where the leader is.
func (m *adopter) addRunnable(r manager.Runnable) error {
	key := nameOf(r)

	p, ok := m.options.Runnables[key]
	if !ok {
		return fmt.Errorf("adopt: runnable %q is not declared: it would run in every replica, because every replica is a leader of its own: declare it in "+
			"adopt.Options.Runnables as adopt.EveryReplica or adopt.OneReplica", key)
	}

	if p.where == everyReplica {
		// Without a mark: controllers that it starts have not been adopted.
		return m.inner.Add(&placed{runnable: r, former: m.former}) //nolint:wrapcheck // it is the manager's
	}

	return m.place(r, mark{where: p.where, controller: key})
}

// place adds what is not sharded.
func (m *adopter) place(r manager.Runnable, as mark) error {
	p := &placed{runnable: r, mark: as}

	if as.where == oneReplica {
		p.election = m.election
	}

	if !everywhere(r) {
		p.former = m.former
	}

	return m.inner.Add(p) //nolint:wrapcheck // it is the manager's
}

// Start implements manager.Manager.
func (m *adopter) Start(ctx context.Context) error {
	m.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(m.options.Controllers)) {
		if !m.seen[name] {
			m.inner.GetLogger().Info("A controller is declared, but was not added to the manager: is its name right?", "controller", name)
		}
	}
	m.mu.Unlock()

	return m.inner.Start(ctx) //nolint:wrapcheck // it is the manager's
}

// GetClient implements cluster.Cluster.
func (m *adopter) GetClient() client.Client {
	c := m.inner.GetClient()
	if m.options.CheckedClient {
		c = m.shard.CheckWrites(c)
	}

	return &checkedClient{Client: c, checks: m.checks}
}

// GetCache implements cluster.Cluster.
func (m *adopter) GetCache() cache.Cache {
	return &checkedCache{Cache: m.inner.GetCache(), checks: m.checks}
}

// GetAPIReader implements cluster.Cluster.
func (m *adopter) GetAPIReader() client.Reader {
	return &checkedReader{Reader: m.inner.GetAPIReader(), checks: m.checks}
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

// nameOf returns the name of a runnable's type, or that of its function.
func nameOf(r manager.Runnable) string {
	if v := reflect.ValueOf(r); v.Kind() == reflect.Func {
		if f := runtime.FuncForPC(v.Pointer()); f != nil {
			return f.Name()
		}
	}

	return reflect.TypeOf(r).String()
}

var errNoElection = errors.New("adopt: the election for what runs in one replica was lost")
