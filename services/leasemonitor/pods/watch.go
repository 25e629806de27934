// Package pods learns from the kubelet which shards cannot run any more.
//
// It watches the Pods in the namespaces of shards, and remembers the uids of those that have ended: see [Ended]. A
// Lease says which Pod wrote it (lease.PodUID), so the Lease of such a Pod can be taken without waiting until it
// expires.
//
// # Invariants
//
//  1. A uid is remembered only if the kubelet has reported that the Pod has ended, and that is final. So it does not
//     matter how old the report is, or whether another Pod has the same name by now.
//  2. No clock of another machine matters, and no order of events between Pods and Leases.
//  3. What is not known costs time, not safety: then the Lease expires. This holds while Pods cannot be watched, for
//     Pods that disappeared while no replica led, and for rings that name no namespaces of shards.
//
// The API server sends only Pods that have ended, so Pods that run cost nothing.
package pods

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
)

const (
	// remembered is how long it is known that a Pod has ended, since somebody has last asked: the controller does so until
	// it has taken the Lease. The cache of Leases needs less to show what the Pod has written.
	remembered = 10 * time.Minute
	// maxRemembered limits the number of Pods. Those that nobody has asked about for longest are forgotten first.
	maxRemembered = 10_000
	// followEvery is how often the rings are asked for the namespaces of shards.
	followEvery = time.Second
	// buffered is how many Leases may wait until the controller takes them.
	buffered = 1024
)

// Watch watches Pods while the replica leads. Create it with [New], and add it to a manager. Its methods are safe for
// concurrent use.
type Watch struct {
	pods  kubernetes.Interface
	reads client.Reader

	leases chan event.TypedGenericEvent[*coordinationv1.Lease]
	ended  *utilcache.LRUExpireCache // by uid
}

// New returns a watch of the Pods in the namespaces that rings name for their shards. The reader reads ClusterRings and
// Leases from a cache.
func New(pods kubernetes.Interface, reads client.Reader, clk clock.PassiveClock) *Watch {
	return &Watch{
		pods: pods, reads: reads, leases: make(chan event.TypedGenericEvent[*coordinationv1.Lease], buffered),
		ended: utilcache.NewLRUExpireCacheWithClock(maxRemembered, clk),
	}
}

// Ended reports whether the kubelet has reported that the Pod of this uid has ended. It is false for the empty uid.
func (w *Watch) Ended(uid types.UID) bool {
	_, ended := w.ended.Get(uid)
	if ended {
		w.ended.Add(uid, nil, remembered)
	}

	return ended
}

// Leases returns a channel of the Leases whose Pods have ended.
func (w *Watch) Leases() <-chan event.TypedGenericEvent[*coordinationv1.Lease] { return w.leases }

// Start implements manager.Runnable: it watches until ctx ends.
func (w *Watch) Start(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()

	running := map[string]context.CancelFunc{}

	wait.UntilWithContext(ctx, func(ctx context.Context) {
		wanted, err := w.namespaces(ctx)
		if err != nil {
			ctrllog.FromContext(ctx).Error(err, "Cannot find out in which namespaces Pods are shards")
			return
		}

		for namespace, stop := range running {
			if !wanted.Has(namespace) {
				stop()
				delete(running, namespace)
			}
		}

		for namespace := range wanted {
			if running[namespace] == nil {
				watching, stop := context.WithCancel(ctx)
				running[namespace] = stop

				group.Go(func() { w.watch(watching, namespace) })
			}
		}
	}, followEvery)

	return nil
}

// namespaces returns the namespaces in which rings have their shards, as far as rings name any.
func (w *Watch) namespaces(ctx context.Context) (sets.Set[string], error) {
	rings := &v1alpha1.ClusterRingList{}
	if err := w.reads.List(ctx, rings, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list ClusterRings for the namespaces of shards: %w", err)
	}

	all := sets.New[string]()
	for i := range rings.Items {
		all.Insert(rings.Items[i].Spec.ShardNamespaces...)
	}

	return all, nil
}

// watch watches the Pods of a namespace that have ended, until ctx ends.
func (w *Watch) watch(ctx context.Context, namespace string) {
	log := ctrllog.FromContext(ctx).WithValues("namespace", namespace)

	// The selector has no "or".
	ended := fields.AndSelectors(
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodRunning)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodPending)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodUnknown)),
	)

	informer := toolscache.NewSharedInformer(w.listWatch(namespace, ended.String()), &corev1.Pod{}, 0)

	// None of this fails before the informer runs.
	_ = informer.SetTransform(func(obj any) (any, error) {
		if p, ok := obj.(*corev1.Pod); ok {
			return essence(p), nil
		}

		return obj, nil // a note that a Pod has disappeared, which contains its essence
	})
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *toolscache.Reflector, err error) {
		errs.Inc()

		if apierrors.IsForbidden(err) {
			log.Error(err, "Cannot watch the Pods of a namespace with shards: shards that crash there are given up only "+
				"when their Leases expire. "+
				"Bind ClusterRole clusterring:leasemonitor-pods to service account leasemonitor of namespace "+contract.SystemNamespace+" in that namespace")

			return
		}

		toolscache.DefaultWatchErrorHandler(ctx, r, err)
	})
	_, _ = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { w.saw(ctx, obj) },
		UpdateFunc: func(old, obj any) {
			before, _ := old.(*corev1.Pod)
			if now, ok := obj.(*corev1.Pod); ok && (before.UID != now.UID || before.Status.Phase == "") {
				w.saw(ctx, obj)
			}
		},
	})

	watched.Inc()
	defer watched.Dec()

	informer.RunWithContext(ctx)
}

// listWatch lists and watches Pods. API servers that do not stream lists ignore the limit of a list from their cache,
// and everyone who may create Pods could then fill the memory: such a list is read from etcd, page by page, and each
// page is made small at once.
func (w *Watch) listWatch(namespace, selector string) *toolscache.ListWatch {
	pods := w.pods.CoreV1().Pods(namespace)

	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			if o.ResourceVersion == "0" {
				o.ResourceVersion, o.ResourceVersionMatch = "", ""
			}

			list, err := pods.List(ctx, o)
			if err != nil {
				return nil, err //nolint:wrapcheck // the reflector adds what was listed
			}

			for i := range list.Items {
				list.Items[i] = *essence(&list.Items[i])
			}

			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector

			return pods.Watch(ctx, o)
		},
	}
}

// essence returns what identifies a Pod. It has a phase only if the Pod has [Ended], and no containers.
func essence(p *corev1.Pod) *corev1.Pod {
	if len(p.Spec.Containers) == 0 {
		return p // it was made small when it was listed
	}

	small := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID,
		ResourceVersion: p.ResourceVersion}}
	if Ended(p) {
		small.Status.Phase = p.Status.Phase
	}

	return small
}

// saw remembers a Pod that has ended, and passes on the Leases that it has written.
func (w *Watch) saw(ctx context.Context, obj any) {
	p, ok := obj.(*corev1.Pod)
	if !ok || p.Status.Phase == "" || w.Ended(p.UID) {
		return
	}

	w.ended.Add(p.UID, nil, remembered)

	leases := &coordinationv1.LeaseList{}
	if err := w.reads.List(ctx, leases, client.InNamespace(p.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		ctrllog.FromContext(ctx).Error(err, "Cannot list the Leases of a Pod that has ended: they are looked at when they "+
			"expire", "namespace", p.Namespace, "pod", p.Name)

		return
	}

	for i := range leases.Items {
		l := &leases.Items[i]
		// Most Leases are those of others.
		if !strings.HasPrefix(l.Annotations[contract.AnnotationPodUID], string(p.UID)) || lease.PodUID(l) != p.UID {
			continue
		}

		name := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name}}
		select {
		case w.leases <- event.TypedGenericEvent[*coordinationv1.Lease]{Object: name}:
		case <-ctx.Done():
			return
		}
	}
}

const (
	// unknownContainer is the reason with which the kubelet reports a container that it could not find. restarting is the
	// reason with which it reports any container of a Pod whose containers it restarts together, also one that it could
	// not find.
	unknownContainer, restarting = "ContainerStatusUnknown", "RestartingAllContainers"
	// notFound is what virtual nodes report of a container that their provider does not list.
	notFound = "NotFound"
	// podFailed and podCompleted are the reasons of the condition ContainersReady with which the kubelet reports a
	// terminal phase.
	podFailed, podCompleted = "PodFailed", "PodCompleted"
)

// Ended reports whether the kubelet has reported that no process of the Pod runs, or will ever run again:
//
//   - The phase is Failed or Succeeded. The kubelet starts no container of such a Pod, not even after a restart of the
//     node.
//   - The condition ContainersReady gives that as its reason, so it is the kubelet that reports the phase. The garbage
//     collector of Pods, which declares Pods failed whose nodes cannot be reached, leaves the condition as it is.
//   - Every container has terminated, and was seen to: the kubelet also reports containers as terminated that it could
//     not find.
//
// Not enough are: a deletion timestamp, because a container that has just crashed may be restarted until the kubelet
// sees the deletion; the disappearance of the Pod, because a deletion without a grace period does not wait for the
// kubelet; and a node that is not ready. A container that restarts in place does not end its Pod.
//
// Since Kubernetes 1.27, the kubelet reports the phase also of Pods that are deleted, before they disappear.
func Ended(p *corev1.Pod) bool {
	if p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded {
		return false
	}

	if !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.ContainersReady && c.Status == corev1.ConditionFalse &&
			(c.Reason == podFailed || c.Reason == podCompleted)
	}) {
		return false
	}

	// A Pod that the kubelet has rejected has no statuses. No process of it exists, so nobody needs to know.
	if len(p.Status.ContainerStatuses) == 0 || len(p.Status.ContainerStatuses) < len(p.Spec.Containers) {
		return false
	}

	for _, statuses := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses,
		p.Status.EphemeralContainerStatuses} {
		for i := range statuses {
			if end := statuses[i].State.Terminated; end == nil || slices.Contains([]string{unknownContainer, restarting,
				notFound}, end.Reason) {
				return false
			}
		}
	}

	return true
}

var (
	watched = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "clusterring_pod_watches",
		Help: "Namespaces whose Pods are watched, or cannot be watched at present, for shards that have ended. Reported by the replica that leads, with --pods.",
	})
	errs = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "clusterring_pod_watch_errors_total",
		Help: "Watches of Pods that failed or ended early. They are repeated. Until then, shards are given up only when their Leases expire.",
	})
)

// Collectors returns the metrics of the package for the registry of the service.
func Collectors() []prometheus.Collector { return []prometheus.Collector{watched, errs} }
