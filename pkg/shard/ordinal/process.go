package ordinal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/shard/internal/self"
)

// Process is this process as one of the replicas of a StatefulSet. [New] creates it; add it to the manager whose controllers use it. It is safe for
// concurrent use.
type Process struct {
	options Options
	ordinal int
	set     *set
	gate    *gate
	clock   clock.WithTicker
	scheme  *runtime.Scheme

	mu     sync.Mutex
	latest numbers
	// news gets a value when the latest numbers have changed.
	news chan struct{}
}

var _ manager.Runnable = &Process{}

// New returns the process that the options describe. It reads the StatefulSet once, with the config of the manager. The error says which option is
// wrong, which permission is missing, or why the Pod has no ordinal.
func New(ctx context.Context, config *rest.Config, options Options) (*Process, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the client of the StatefulSet: %w", err)
	}

	complete, ordinal, err := options.complete(os.Hostname, self.Mounted)
	if err != nil {
		return nil, err
	}

	p := &Process{
		options: complete, ordinal: ordinal, clock: clock.RealClock{}, scheme: scheme.Scheme, news: make(chan struct{}, 1),
		set: &set{client: client, namespace: complete.Namespace, name: complete.StatefulSet, pod: complete.PodName},
	}
	p.gate = newGate(complete, clock.RealClock{})

	read, err := p.set.read(ctx)
	if err != nil {
		return nil, err
	}
	p.observe(read)

	return p, nil
}

// Ordinal returns the ordinal of the process.
func (p *Process) Ordinal() int { return p.ordinal }

// Name returns the name of the Pod.
func (p *Process) Name() string { return p.options.PodName }

// Working returns nil while the process works on its objects. Otherwise, it returns why it works on nothing: the StatefulSet has no replicas, the
// ordinal is outside of them, or, with [Options].StopTheWorld, the processes have not agreed on a new number yet. A readiness probe must not depend on
// it: a StatefulSet may wait with its next Pod until this one is ready.
func (p *Process) Working() error {
	_, _, err := p.gate.now()

	return err
}

// Start implements manager.Runnable: it follows the numbers of the StatefulSet until the context ends. With [Options].StopTheWorld, it then waits
// until no reconcile runs, and returns an [ErrLost] if the term was lost.
func (p *Process) Start(ctx context.Context) error {
	logger := log.Log.WithName("ordinal").WithValues("pod", p.options.PodName)
	ctx = log.IntoContext(ctx, logger)

	informer, err := p.set.informer(p.observe, func(err error) { logger.Error(err, "Cannot watch the StatefulSet, so the last numbers stay") })
	if err != nil {
		return err
	}

	_, stop := watch(ctx, informer)
	defer stop()

	if !p.options.StopTheWorld {
		<-ctx.Done()

		return nil
	}

	return newWorld(p).run(ctx)
}

// observe takes note of the numbers of the StatefulSet.
func (p *Process) observe(n numbers) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.latest.version != "" && !newer(n.version, p.latest.version) {
		return
	}

	first, changed := p.latest.version == "", !n.same(p.latest)
	p.latest = n

	if !first && !changed {
		return
	}

	if !p.options.StopTheWorld {
		p.follow(n)
	}

	select {
	case p.news <- struct{}{}:
	default:
	}
}

// numbers returns the latest numbers.
func (p *Process) numbers() numbers {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.latest
}

// follow works with the numbers from now on, whatever others do.
func (p *Process) follow(n numbers) {
	logger := log.Log.WithName("ordinal").WithValues("pod", p.options.PodName, "replicas", n.replicas, "start", n.start)

	s, has := n.share(p.ordinal)
	if !has {
		err := p.outside(n)
		logger.Info("Working on nothing", "reason", err.Error())
		p.gate.shut(err)

		return
	}

	logger.Info("Working on the objects of the ordinal", "ordinal", p.ordinal)
	p.gate.open(s)
}

// outside returns why a process without a share works on nothing.
func (p *Process) outside(n numbers) error {
	if n.replicas <= 0 {
		return fmt.Errorf("StatefulSet %s/%s has no replicas: %w", p.options.Namespace, p.options.StatefulSet, errOutside)
	}

	return fmt.Errorf("ordinal %d is not one of the ordinals %d to %d of StatefulSet %s/%s: %w", p.ordinal, n.start, n.start+n.replicas-1,
		p.options.Namespace, p.options.StatefulSet, errOutside)
}

var errOutside = errors.New("this process works on nothing")
