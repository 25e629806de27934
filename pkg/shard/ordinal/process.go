package ordinal

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/pkg/shard/internal/within"
)

// Options say which process of which StatefulSet this is. The zero value suits a Pod of a StatefulSet.
type Options struct {
	// PodName is the name of the Pod: the name of the StatefulSet, a dash, and the ordinal. Default: the name of the Pod, as its token has it; else the
	// host name.
	PodName string
	// Namespace is that of the Pod and of the StatefulSet. Default: the namespace of the Pod; required outside a cluster.
	Namespace string
	// Hash decides which process an object belongs to. All processes must use the same. Default: [Key].
	Hash Hash
}

// Process is this process as one of the replicas of a StatefulSet. [New] creates it; add it to the manager whose controllers use it. It is safe for
// concurrent use.
type Process struct {
	options Options
	set     string // the name of the StatefulSet
	ordinal int
	client  kubernetes.Interface
	scheme  *runtime.Scheme
	stubbed sets.Set[schema.GroupVersionKind] // the kinds of [Process.ConfigureManager]
	clock   clock.WithDelayedExecution
	latest  atomic.Pointer[latest]

	mu          sync.Mutex
	reconcilers []*reconciler
}

// latest are the numbers that the process knows. The channel is closed when others give it another share.
type latest struct {
	numbers
	changed chan struct{}
}

var _ manager.Runnable = &Process{}

// New returns the process that the options describe. It reads the StatefulSet once, with the config of the manager. The error says which option is
// wrong, which permission is missing, or why the Pod has no ordinal.
func New(ctx context.Context, config *rest.Config, options Options) (*Process, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the client of the StatefulSet: %w", err)
	}

	id, err := shard.Identify(within.Shard{Ring: "ordinals", Name: options.PodName, Namespace: options.Namespace})
	if err != nil {
		return nil, fmt.Errorf("find out which Pod this is: %w", err)
	}

	if options.PodName, options.Namespace = id.Name, id.Namespace; options.Hash == nil {
		options.Hash = Key
	}

	set, ordinal, err := split(options.PodName)
	if err != nil {
		return nil, err
	}

	found, err := client.AppsV1().StatefulSets(options.Namespace).Get(ctx, set, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("no StatefulSet %s/%s exists, which Pod %s should belong to: %w", options.Namespace, set, options.PodName, errNoOrdinal)
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("the service account may not read StatefulSet %s/%s: grant get, list, and watch on statefulsets (API group apps, "+
			"resource name %s) in namespace %s by a Role: %w", options.Namespace, set, set, options.Namespace, err)
	case err != nil:
		return nil, fmt.Errorf("read StatefulSet %s/%s: %w", options.Namespace, set, err)
	}

	p := &Process{
		options: options, set: set, ordinal: ordinal, client: client, scheme: scheme.Scheme, stubbed: sets.Set[schema.GroupVersionKind]{}, clock: clock.RealClock{},
	}
	p.observe(found)

	return p, nil
}

// split returns the StatefulSet and the ordinal in the name of a Pod.
func split(pod string) (set string, ordinal int, err error) {
	i := strings.LastIndexByte(pod, '-')
	if i <= 0 {
		return "", 0, fmt.Errorf("pod name: %q contains no ordinal: %w", pod, errNoOrdinal)
	}

	n, err := strconv.ParseUint(pod[i+1:], 10, 31)
	if err != nil || strconv.FormatUint(n, 10) != pod[i+1:] {
		return "", 0, fmt.Errorf("pod name: %q does not end with an ordinal: %w", pod, errNoOrdinal)
	}

	return pod[:i], int(n), nil
}

var errNoOrdinal = errors.New("only Pods of a StatefulSet have an ordinal, as web-0 does. " +
	"Run the controller as a StatefulSet, or share its objects by a ring, which needs no ordinals (package shard)")

// Ordinal returns the ordinal of the process.
func (p *Process) Ordinal() int { return p.ordinal }

// Name returns the name of the Pod.
func (p *Process) Name() string { return p.options.PodName }

// pod returns the name of the Pod with an ordinal.
func (p *Process) pod(ordinal int) string { return p.set + "-" + strconv.Itoa(ordinal) }

// Working returns nil while the process works on its objects. Otherwise, it returns why it works on nothing: the StatefulSet has no replicas, or the
// ordinal is outside of them. A readiness probe must not depend on it: a StatefulSet may wait with its next Pod until this one is ready.
func (p *Process) Working() error {
	n := p.latest.Load()

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
	one := fields.OneTermEqualSelector(metav1.ObjectNameField, p.set)
	see := func(obj any) {
		if found, ok := obj.(*appsv1.StatefulSet); ok {
			p.observe(found)
		}
	}
	_, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.NewListWatchFromClient(p.client.AppsV1().RESTClient(), "statefulsets", p.options.Namespace, one),
		ObjectType:    &appsv1.StatefulSet{},
		// The StatefulSet may be deleted and created again without its Pods, so its last numbers count until there are others.
		Handler: toolscache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) }},
	})
	informer.RunWithContext(ctx)

	return nil
}

// observe takes note of what the StatefulSet says. No two calls run at a time.
func (p *Process) observe(set *appsv1.StatefulSet) {
	before, now := p.latest.Load(), &latest{numbersOf(set), make(chan struct{})}
	same := before != nil && now.share(p.ordinal) == before.share(p.ordinal)

	if same {
		now.changed = before.changed
	}

	p.latest.Store(now)

	if same {
		return
	}

	logger := log.Log.WithName("ordinal").WithValues("pod", p.options.PodName, "replicas", now.replicas, "start", now.start)
	if err := p.Working(); err != nil {
		logger.Info("Working on nothing", "reason", err.Error())
	} else {
		logger.Info("Working on the objects of the ordinal", "ordinal", p.ordinal)
	}

	if before != nil {
		close(before.changed)
	}
}

// share returns the share of this process. It is empty while the process works on nothing.
func (p *Process) share() share { return p.latest.Load().share(p.ordinal) }
