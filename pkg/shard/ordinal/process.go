package ordinal

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Process is this process as one of the replicas of a StatefulSet. [New] creates it; add it to the manager whose controllers use it. It is safe for
// concurrent use.
type Process struct {
	options Options
	set     string // the name of the StatefulSet
	ordinal int
	client  kubernetes.Interface
	scheme  *runtime.Scheme

	mu        sync.Mutex
	latest    numbers
	listeners []chan struct{}
}

var _ manager.Runnable = &Process{}

// New returns the process that the options describe. It reads the StatefulSet once, with the config of the manager. The error says which option is
// wrong, which permission is missing, or why the Pod has no ordinal.
func New(ctx context.Context, config *rest.Config, options Options) (*Process, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the client of the StatefulSet: %w", err)
	}

	complete, set, ordinal, err := options.complete()
	if err != nil {
		return nil, err
	}

	p := &Process{options: complete, set: set, ordinal: ordinal, client: client, scheme: scheme.Scheme}

	read, err := p.readNumbers(ctx)
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

// Working returns nil while the process works on its objects. Otherwise, it returns why it works on nothing: the StatefulSet has no replicas, or the
// ordinal is outside of them. A readiness probe must not depend on it: a StatefulSet may wait with its next Pod until this one is ready.
func (p *Process) Working() error { return p.outside(p.numbers()) }

// outside returns why the process has no share, or nil.
func (p *Process) outside(n numbers) error {
	switch {
	case n.share(p.ordinal) != share{}:
		return nil
	case n.replicas <= 0:
		return fmt.Errorf("StatefulSet %s/%s has no replicas: this process works on nothing", p.options.Namespace, p.set)
	}

	return fmt.Errorf("ordinal %d is not one of the ordinals %d to %d of StatefulSet %s/%s: this process works on nothing", p.ordinal, n.start,
		n.start+n.replicas-1, p.options.Namespace, p.set)
}

// NeedLeaderElection reports false: each process follows the number of replicas.
func (*Process) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable: it follows the numbers of the StatefulSet until the context ends.
func (p *Process) Start(ctx context.Context) error {
	informer, err := p.informer()
	if err != nil {
		return err
	}

	informer.RunWithContext(ctx)

	return nil
}

// observe takes note of the numbers of the StatefulSet.
func (p *Process) observe(n numbers) {
	p.mu.Lock()
	defer p.mu.Unlock()

	before := p.latest
	if !newer(n.version, before.version) {
		return
	}

	p.latest = n

	if before.version != "" && n.share(p.ordinal) == before.share(p.ordinal) {
		return
	}

	logger := log.Log.WithName("ordinal").WithValues("pod", p.options.PodName, "replicas", n.replicas, "start", n.start)
	if err := p.outside(n); err != nil {
		logger.Info("Working on nothing", "reason", err.Error())
	} else {
		logger.Info("Working on the objects of the ordinal", "ordinal", p.ordinal)
	}

	for _, c := range p.listeners {
		select {
		case c <- struct{}{}:
		default: // it has yet to look at what changed before
		}
	}
}

// listen returns a channel that gets a value after the share of this process has changed.
func (p *Process) listen() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()

	c := make(chan struct{}, 1)
	p.listeners = append(p.listeners, c)

	return c
}

// numbers returns the latest numbers.
func (p *Process) numbers() numbers {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.latest
}

// share returns the share of this process. It is empty while the process works on nothing.
func (p *Process) share() share { return p.numbers().share(p.ordinal) }
