package shard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

func TestListingJudges(t *testing.T) {
	name := types.NamespacedName{Namespace: "default", Name: "a"}
	listed := func(version string) *listing {
		return &listing{revisions: map[string]string{"": "50"}, objects: map[types.NamespacedName]string{name: version}}
	}
	unlisted := &listing{revisions: map[string]string{"": "50"}}

	opaque := &listing{revisions: map[string]string{"": "x50"}}
	for what, tc := range map[string]struct {
		listing *listing
		cached  view
		want    freshness
	}{
		"as listed":                 {listed("9"), mine("9"), fresh},
		"newer than listed":         {listed("9"), mine("10"), fresh},
		"draining, as listed":       {listed("9"), draining("9"), fresh},
		"older than listed":         {listed("10"), mine("9"), behind},
		"reached before":            {listed(reached), mine("9"), fresh},
		"reached and gone":          {listed(reached), view{}, fresh},
		"listed, not in the cache":  {listed("9"), view{}, unsaid},
		"neither":                   {unlisted, view{}, fresh},
		"moved away":                {unlisted, mine("49"), behind},
		"of the list's own version": {unlisted, mine("50"), behind},
		"came after the list":       {unlisted, mine("51"), fresh},
		"came after, many digits":   {unlisted, mine("100"), fresh},
		"no numbers, as listed":     {listed("x9"), mine("x9"), fresh},
		"no numbers, not as listed": {listed("x9"), mine("x8"), unsaid},
		"no numbers, not listed":    {opaque, mine("x8"), unsaid},
		"of a namespace not listed": {&listing{revisions: map[string]string{"other": "50"}}, mine("51"), unsaid},
		"of a namespace of several": {&listing{revisions: map[string]string{"other": "90", "default": "50"}},
			mine("51"), fresh},
	} {
		require.Equal(t, tc.want, tc.listing.judge(name, tc.cached), what)
	}
}

func TestComparisonWithALiveObject(t *testing.T) {
	for what, tc := range map[string]struct {
		cached, live view
		want         freshness
	}{
		"the same":                {mine("9"), mine("9"), fresh},
		"changed since":           {mine("9"), mine("10"), behind},
		"read before the cache":   {mine("10"), mine("9"), fresh},
		"moved":                   {mine("9"), other("10"), behind},
		"deleted":                 {mine("9"), view{}, behind},
		"deleted, also there":     {view{}, view{}, fresh},
		"moved, not there either": {view{}, other("10"), fresh},
		"not there yet":           {view{}, mine("10"), behind},
		"no numbers, the same":    {mine("x"), mine("x"), fresh},
		"no numbers, other":       {mine("x"), mine("y"), behind},
	} {
		require.Equal(t, tc.want, compare(tc.cached, tc.live), what)
	}
}

// reads lets only reads of metadata, such as those of a shard, take the trip.
func reads(t trip) trip {
	return func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
		metadata := strings.Contains(req.Header.Get("Accept"), "PartialObjectMetadata")
		if metadata && req.Method == http.MethodGet && !req.URL.Query().Has("watch") {
			return t(req, next)
		}

		return next.RoundTrip(req)
	}
}

const lists = "get metadata configmaps"

// unconfirmed is a shard in its term. The cache of its reconciler is the API server or what the test sets.
type unconfirmed struct {
	*fixture
	shard *Shard
	clock *lateClock
	cache *cacheView
	inner reconcile.Reconciler
	calls int
	logs  []string
}

func (f *fixture) unconfirmed() *unconfirmed {
	f.Helper()
	u := &unconfirmed{fixture: f, shard: f.shard("shard-0"), clock: &lateClock{}, cache: f.cacheView()}
	u.shard.term.clock = u.clock
	u.shard.term.renewDeadline, u.shard.term.leaseDuration = 24*time.Hour, 48*time.Hour
	require.NoError(f, u.shard.connect(f.config))
	u.shard.term.taken(u.clock.Now(), 0)
	f.Cleanup(func() { u.shard.term.close() })

	u.inner = u.shard.Reconciler(u.cache, &corev1.ConfigMap{},
		reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			u.calls++

			return reconcile.Result{}, nil
		}))

	return u
}

// look reconciles the object while the cache shows the given version. It returns whether the inner reconciler was
// called, and when to check the object again.
func (u *unconfirmed) look(cached *corev1.ConfigMap) (called bool, again time.Duration) {
	u.Helper()

	u.cache.object = nil
	if cached != nil {
		u.cache.object = cached.DeepCopy()
	}

	sink := funcr.New(func(_, args string) { u.logs = append(u.logs, args) }, funcr.Options{})
	before := u.calls
	result, err := u.inner.Reconcile(logr.NewContext(u.Context(), sink), request(live(u.fixture)))
	require.NoError(u, err)

	return u.calls > before, result.RequeueAfter
}

func (u *unconfirmed) pass(d time.Duration) { u.clock.ahead.Add(int64(d)) }

func TestNothingIsWorkedOnWhileTheAPIServerDoesNotAnswer(t *testing.T) {
	f := newFixture(t)
	w := f.wire()
	u := f.unconfirmed()
	cm := f.configMap(u.shard, "a")
	w.via(reads(down))

	var longest time.Duration

	for attempt := range 12 {
		called, again := u.look(cm)
		require.False(t, called)
		require.Equal(t, attempt+1, w.count(lists))
		require.Len(t, u.logs, attempt+1)
		require.Contains(t, u.logs[attempt], "the API server must confirm that the cache is up to date")
		require.Contains(t, u.logs[attempt], errDown.Error())

		longest = max(longest, again)
		called, _ = u.look(cm)
		require.False(t, called)
		require.Equal(t, attempt+1, w.count(lists), "not before the time is up")
		u.pass(again)
	}
	require.Greater(t, longest, maxRetry/2-time.Second)
	require.LessOrEqual(t, longest, maxRetry)
	require.NoError(t, u.shard.term.held(), "the Lease is kept")

	w.via(nil)

	called, again := u.look(cm)
	require.True(t, called)
	require.Zero(t, again)
	require.Zero(t, w.count("get metadata a"))
}

func TestObjectThatIsListedAndNotInTheCache(t *testing.T) {
	f := newFixture(t)
	w := f.wire()
	u := f.unconfirmed()
	cm := f.configMap(u.shard, "a")
	called, again := u.look(nil)
	require.False(t, called, "not there yet")
	require.Equal(t, recheck, again)

	f.label(cm, u.shard.shardKey, "shard-1")
	_, again = u.look(nil)
	require.Zero(t, again, "it has left")
	require.Equal(t, 2, w.count("get metadata a"))

	_, again = u.look(nil)
	require.Zero(t, again)
	require.Equal(t, 2, w.count("get metadata a"), "it is known to be gone")
	require.Equal(t, 1, w.count(lists))
}

// A list belongs to one stretch of the term, even for a worker of the next stretch who has waited for it.
func TestListOfAnOlderStretchIsThrownAway(t *testing.T) {
	f := newFixture(t)
	w := f.wire()
	u := f.unconfirmed()
	cm := f.configMap(u.shard, "a")
	stock := u.shard.kind(corev1.SchemeGroupVersion.WithKind("ConfigMap").GroupKind(), "").inventory
	waited := make(chan error, 1)
	w.via(reads(func(req *http.Request, next http.RoundTripper) (*http.Response, error) { // the list is in progress
		w.via(nil)
		u.shard.term.taken(u.clock.Now(), 0)

		go func() { waited <- stock.prepare(t.Context()) }()

		return next.RoundTrip(req)
	}))

	called, _ := u.look(cm)
	require.True(t, called)
	require.NoError(t, receive(f, waited, "the other worker goes on"))
	require.Equal(t, 2, w.count(lists))
}

// A shard begins after few requests, however many objects it has.
func TestStartWithManyObjectsCostsFewRequests(t *testing.T) {
	const objects, writers = 2000, 20

	f := newFixture(t)
	s := f.shard("shard-0")

	w := f.wire()

	var creates errgroup.Group
	creates.SetLimit(writers)

	for i := range objects {
		creates.Go(func() error {
			return f.admin.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: f.meta(s, fmt.Sprint("object-", i))})
		})
	}
	require.NoError(t, creates.Wait())

	var (
		worked sync.Map
		count  atomic.Int64
	)
	f.start(s, func(mgr ctrl.Manager) {
		for range 2 {
			f.controls(mgr, s, &corev1.ConfigMap{}, func(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
				if _, again := worked.LoadOrStore(req, true); !again {
					count.Add(1)
				}

				return reconcile.Result{}, nil
			})
		}
	}, &corev1.ConfigMap{})
	f.eventually("all are worked on", func() bool { return count.Load() == objects })
	require.LessOrEqual(t, w.count(lists), objects/listPage+2, "one of them asks whether it may list")
	require.Zero(t, w.count("get metadata object-*"))
}

// watches are the watches of a resource, whose events a test may hold back.
type watches struct {
	mu   sync.Mutex
	open chan struct{} // closed while events pass
}

// holdable lets a test hold back the watches of a resource of the fixture's config.
func (f *fixture) holdable(resource string) *watches {
	f.Helper()

	w := &watches{open: make(chan struct{})}
	close(w.open)
	f.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(req)
			if err == nil && req.URL.Query().Has("watch") && strings.HasSuffix(req.URL.Path, "/"+resource) {
				resp.Body = &heldBody{ReadCloser: resp.Body, watches: w, closed: make(chan struct{})}
			}

			return resp, err
		})
	})
	f.Cleanup(w.release)

	return w
}

// hold holds back every event from now on.
func (w *watches) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.open = make(chan struct{})
}

// release lets events pass, starting with those that were held back.
func (w *watches) release() {
	w.mu.Lock()
	defer w.mu.Unlock()

	select {
	case <-w.open:
	default:
		close(w.open)
	}
}

func (w *watches) gate() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.open
}

type heldBody struct {
	io.ReadCloser
	watches *watches
	once    sync.Once
	closed  chan struct{}
}

func (b *heldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	select {
	case <-b.watches.gate():
	case <-b.closed:
	}

	return n, err
}

func (b *heldBody) Close() error {
	b.once.Do(func() { close(b.closed) })

	return b.ReadCloser.Close()
}

// If a process waits for its Lease with a filled cache that is behind when the Lease is free, it has missed moves.
func TestNoWorkFromACacheOlderThanTheTerm(t *testing.T) {
	f := newFixture(t)
	s, other := f.shard("shard-0"), f.shard("shard-1")
	held := f.holdable("configmaps")
	f.takenLease(s)
	mine, moved := f.configMap(s, "mine"), f.configMap(s, "moved")
	draining, gone := f.configMap(s, "draining"), f.configMap(s, "gone")

	clientset, err := kubernetes.NewForConfig(f.config)
	require.NoError(t, err)
	live, err := metadata.NewForConfig(f.config)
	require.NoError(t, err)

	factory := informers.NewSharedInformerFactoryWithOptions(clientset, 0,
		informers.WithTweakListOptions(s.TweakListOptions))
	informer := factory.Core().V1().ConfigMaps().Informer()
	worked := map[string]bool{}
	handle := s.Handler(resourceOf("ConfigMap", informer.GetStore(), live), func(_ context.Context, name types.NamespacedName) error {
		worked[name.Name] = true

		return nil
	})
	// works reports whether the shard works on the object now.
	works := func(obj client.Object) bool {
		delete(worked, obj.GetName())
		_, err := handle(t.Context(), client.ObjectKeyFromObject(obj))
		require.NoError(t, err)

		return worked[obj.GetName()]
	}

	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	done := make(chan error, 1)
	go func() {
		done <- s.Run(ctx, f.config, func(ctx context.Context) error { <-ctx.Done(); return nil })
	}()
	f.Cleanup(func() {
		cancel()
		require.NoError(f, receive(f, done, "the controller stops"))
		factory.Shutdown()
	})

	held.hold()
	f.label(moved, s.shardKey, other.Name())
	f.label(draining, s.drainKey, "true")
	require.NoError(t, f.admin.Delete(t.Context(), gone))
	f.overwrite(s, func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("") })
	f.eventually("the term begins", func() bool { return s.term.held() == nil })
	require.True(t, works(mine), "it has not changed")
	require.False(t, works(moved), "another shard's")
	require.False(t, works(draining), "to be given up")
	require.False(t, works(gone), "deleted")
	f.refresh(draining)
	require.True(t, s.draining(draining), "acknowledged only when it is seen")

	held.release()
	f.eventually("the drain is acknowledged", func() bool {
		require.False(t, works(draining))
		f.refresh(draining)

		return len(draining.Labels) == 0
	})
	f.label(moved, s.shardKey, s.Name())
	f.eventually("the object is back", func() bool { return works(moved) })
	require.False(t, works(gone))
}

// While a Lease does not exist, the shard may count as lost.
func TestNoWorkFromACacheOlderThanALeaseThatWasMadeAnew(t *testing.T) {
	f := newFixture(t)
	s, other := f.shard("shard-0"), f.shard("shard-1")
	held := f.holdable("configmaps")
	cm := f.configMap(s, "a")
	worked := newNames()

	var again reconcile.Reconciler
	f.start(s, func(mgr ctrl.Manager) {
		again = s.Reconciler(mgr.GetClient(), &corev1.ConfigMap{}, reconcile.Func(worked.reconcile))
		f.controls(mgr, s, &corev1.ConfigMap{}, worked.reconcile)
	})
	receive(f, worked, "the object is worked on")

	held.hold()

	before := f.lease(s)
	require.NoError(t, f.admin.Delete(t.Context(), before))
	f.label(cm, s.shardKey, other.Name())
	f.eventually("the Lease is made anew", func() bool {
		uid := f.lease(s).UID

		return uid != "" && uid != before.UID
	})
	f.eventually("it holds off", func() bool { return errors.Is(s.term.held(), ErrNotHeld) })
	f.eventually("the hold-off is over", func() bool { return s.term.held() == nil })

	result, err := again.Reconcile(t.Context(), request(cm))
	require.NoError(t, err)
	require.Equal(t, recheck, result.RequeueAfter)
	require.Empty(t, worked, "another shard's")

	held.release()
	f.label(cm, s.shardKey, s.Name())
	receive(f, worked, "the object is back")
}

// takenLease creates a Lease of the shard that another holder holds.
func (f *fixture) takenLease(s *Shard) {
	f.Helper()
	require.NoError(f, f.admin.Create(f.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: s.Name(),
			Labels: map[string]string{contract.LabelClusterRing: f.ring}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(contract.LeaseControllerIdentity), LeaseDurationSeconds: new(int32(3600)),
			RenewTime: new(metav1.NowMicro()),
		},
	}))
}
