package scenario

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
)

const (
	// namespaces is the number of namespaces that the Websites are spread over.
	namespaces = 5
	// users is the number of concurrent requests.
	users = 16
)

func namespaceOf(n int) string { return fmt.Sprintf("web-%d", n%namespaces+1) }

func newWebsite(n int) *unstructured.Unstructured {
	site := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"title": fmt.Sprintf("Website %d", n), "body": "Hello."},
	}}
	site.SetGroupVersionKind(websiteGVK)
	site.SetNamespace(namespaceOf(n))
	site.SetName(fmt.Sprintf("site-%d", n))

	return site
}

func (s *Story) createNamespaces(ctx context.Context) error {
	for n := range namespaces {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceOf(n)}}
		if err := s.client.Create(ctx, namespace); err != nil {
			return fmt.Errorf("create a namespace: %w", err)
		}
	}

	return nil
}

// creation is the result of creates.
type creation struct {
	mu sync.Mutex
	// assigned counts the created objects by the shard label in the response; "" counts those without a label.
	assigned map[string]int
	answered int
	slowest  time.Duration
	took     time.Duration
}

// createWebsites creates n more Websites concurrently. Every create must succeed.
func (s *Story) createWebsites(ctx context.Context, n int) (*creation, error) {
	done := &creation{assigned: map[string]int{}}
	begin := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(users)

	for i := range n {
		group.Go(func() error {
			site, sent := newWebsite(s.created+i), time.Now()
			if err := s.client.Create(ctx, site); err != nil {
				return fmt.Errorf("a user's create failed: %w", err)
			}
			done.mu.Lock()
			defer done.mu.Unlock()

			done.slowest = max(done.slowest, time.Since(sent))
			done.assigned[site.GetLabels()[v1alpha1.ShardLabel(localsystem.Ring)]]++
			done.answered++
			s.console.Progress("creating Websites: %d of %d", done.answered, n)

			return nil
		})
	}

	err := group.Wait()
	s.created += n
	done.took = time.Since(begin)

	return done, err //nolint:wrapcheck // wrapped above
}

// load is users who continuously edit Websites, and possibly create some.
type load struct {
	stop  context.CancelFunc
	done  <-chan struct{}
	users *errgroup.Group

	mu      sync.Mutex
	edits   int
	creates int
	// labelled counts the created objects that were assigned in admission.
	labelled int
	slowest  time.Duration
}

// count returns the number of edits and creates so far.
func (l *load) count() (edits, creates int) {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.edits, l.creates
}

const (
	editors  = 4
	creators = 2
	// interval is the pause of each user between edits or creates.
	interval = 50 * time.Millisecond
	// popular is the number of Websites that are edited: few, so that there is nearly always work on each.
	popular = 40
)

// edit starts users who edit popular Websites.
func (s *Story) edit(ctx context.Context) *load {
	unhurried := context.WithoutCancel(ctx) // requests under way are completed
	users, ctx := errgroup.WithContext(ctx)
	ctx, cancel := context.WithCancel(ctx)
	l := &load{done: ctx.Done(), stop: cancel, users: users}
	l.start(editors, func() error { return s.editOne(unhurried, l) })

	return l
}

// editAndCreate starts users who edit popular Websites and users who create new ones. Until [Story.end], nothing else may create
// Websites.
func (s *Story) editAndCreate(ctx context.Context) *load {
	l := s.edit(ctx)
	next := atomic.Int64{}
	next.Store(int64(s.created))
	l.start(creators, func() error { return s.createOne(context.WithoutCancel(ctx), l, int(next.Add(1)-1)) })

	return l
}

// start starts users who repeat an action until the load ends or one of them fails.
func (l *load) start(users int, do func() error) {
	for range users {
		l.users.Go(func() error {
			ticker := time.NewTicker(interval)
			defer ticker.Stop()

			for {
				select {
				case <-l.done:
					return nil
				case <-ticker.C:
				}

				if err := do(); err != nil {
					return err
				}
			}
		})
	}
}

func (s *Story) createOne(ctx context.Context, l *load, n int) error {
	site, begin := newWebsite(n), time.Now()
	if err := s.client.Create(ctx, site); err != nil {
		return fmt.Errorf("a user's create failed: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()

	l.creates++
	if site.GetLabels()[v1alpha1.ShardLabel(localsystem.Ring)] != "" {
		l.labelled++
	}

	l.slowest = max(l.slowest, time.Since(begin))

	return nil
}

func (s *Story) editOne(ctx context.Context, l *load) error {
	begin, n := time.Now(), rand.IntN(min(popular, s.created)) //nolint:gosec // any will do
	site := newWebsite(n)

	patch := fmt.Appendf(nil, `{"spec":{"body":"Edited at %s."}}`, begin.Format(time.RFC3339Nano))
	if err := s.client.Patch(ctx, site, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("a user's edit of %s/%s failed: %w", site.GetNamespace(), site.GetName(), err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.edits++
	l.slowest = max(l.slowest, time.Since(begin))

	return nil
}

// over reports whether the load has ended because a user failed.
func (l *load) over() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// end stops the load and waits for its requests. It returns an error if an edit or a create failed.
func (s *Story) end(l *load) error {
	l.stop()
	err := l.users.Wait()
	s.created += l.creates

	return err //nolint:wrapcheck // wrapped above
}
