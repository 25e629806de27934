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
	// users is the number of requests that are made at a time.
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

// creation is what creates have come to.
type creation struct {
	mu sync.Mutex
	// assigned counts creates whose answer had the label of an available shard already, by shard; "" those without.
	assigned map[string]int
	answered int
	slowest  time.Duration
	took     time.Duration
}

// createWebsites creates n more Websites, several at a time. Every create has to succeed.
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

// load is users who edit Websites, or create some too, all the time.
type load struct {
	stop  context.CancelFunc
	done  <-chan struct{}
	users *errgroup.Group

	mu      sync.Mutex
	edits   int
	creates int
	// labelled counts creates that were answered with a shard.
	labelled int
	slowest  time.Duration
}

// count returns how many edits and creates have been made so far.
func (l *load) count() (edits, creates int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.edits, l.creates
}

const (
	editors  = 4
	creators = 2
	// interval is how long each of them waits before the next edit or create.
	interval = 50 * time.Millisecond
	// popular is the number of Websites that they all edit: few, so that there is hardly a moment without work on each.
	popular = 40
)

// edit lets some users begin to edit popular Websites.
func (s *Story) edit(ctx context.Context) *load {
	unhurried := context.WithoutCancel(ctx) // what has begun is finished
	users, ctx := errgroup.WithContext(ctx)
	ctx, cancel := context.WithCancel(ctx)
	l := &load{done: ctx.Done(), stop: cancel, users: users}
	l.start(editors, func() error { return s.editOne(unhurried, l) })
	return l
}

// editAndCreate lets some users begin to edit popular Websites, and others to create new ones. Until [Story.end], nobody
// else may create any.
func (s *Story) editAndCreate(ctx context.Context) *load {
	l := s.edit(ctx)
	next := atomic.Int64{}
	next.Store(int64(s.created))
	l.start(creators, func() error { return s.createOne(context.WithoutCancel(ctx), l, int(next.Add(1)-1)) })
	return l
}

// start lets some users do something again and again until the load ends, or one of them fails.
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

// over says whether the load has ended before it was told to: somebody has failed.
func (l *load) over() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// end ends the load and returns when nothing is under way any more: an error if an edit or a create has failed.
func (s *Story) end(l *load) error {
	l.stop()
	err := l.users.Wait()
	s.created += l.creates
	return err //nolint:wrapcheck // wrapped above
}
