package shard

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// slow delays what the API server says about Secrets until the gate is open.
type slow struct {
	http.RoundTripper
	gate <-chan struct{}
}

func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := s.RoundTripper.RoundTrip(r)
	if err == nil && strings.HasSuffix(r.URL.Path, "/secrets") && r.URL.Query().Get("watch") != "" {
		response.Body = slowBody{response.Body, r.Context(), s.gate}
	}

	return response, err
}

type slowBody struct {
	io.ReadCloser
	ctx  context.Context //nolint:containedctx // that of the request
	gate <-chan struct{}
}

func (b slowBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if strings.Contains(string(p[:n]), "late-") {
		select {
		case <-b.gate:
		case <-b.ctx.Done():
		}
	}

	return n, err
}

// What follows an object comes to the shard before the object does, and its events lead to the object. A reconcile that begins then
// must not see the object arrive before everything that follows it is in the cache.
func TestAnObjectDoesNotArriveDuringAReconcile(t *testing.T) {
	f := newFixture(t)
	s, before := f.shard("shard-0"), f.shard("shard-1")
	owner := f.configMap(before, "owner")
	first := f.secretOf(before, owner, configMapKind, "first")
	second := f.secretOf(before, owner, configMapKind, "late-second")

	open := make(chan struct{})
	f.config = rest.CopyConfig(f.config)
	f.config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return slow{inner, open} })

	counted := make(chan int, 100)
	looked := make(chan struct{}, 100)

	p := f.start(s, func(mgr ctrl.Manager) {
		c := mgr.GetClient()
		count := reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			looked <- struct{}{}

			arrived := func(ctx context.Context) (bool, error) {
				return c.Get(ctx, req.NamespacedName, &corev1.ConfigMap{}) == nil, nil
			}
			if err := wait.PollUntilContextCancel(ctx, interval, true, arrived); err != nil {
				return reconcile.Result{}, err
			}

			var secrets corev1.SecretList

			err := c.List(ctx, &secrets, client.InNamespace(f.namespace))
			counted <- len(secrets.Items)

			return reconcile.Result{}, err
		})
		wrapped := s.Reconciler(c, &corev1.ConfigMap{}, count)

		require.NoError(f, ctrl.NewControllerManagedBy(mgr).Named("test").For(&corev1.ConfigMap{}).Owns(&corev1.Secret{}).
			Complete(handmade{func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
				defer func() { looked <- struct{}{} }()
				return wrapped.Reconcile(ctx, req)
			}, s}))
	})
	f.eventually("the shard works", func() bool { return s.term.held() == nil })

	f.label(first, s.shardKey, s.Name())
	receive(f, looked, "the event of what came first leads to the owner")
	f.label(second, s.shardKey, s.Name())

	handover := contract.Handover{}
	handover.Reached(corev1.Resource("secrets"), second.ResourceVersion)
	f.refresh(owner)
	metav1.SetMetaDataAnnotation(&owner.ObjectMeta, contract.HandoverAnnotation(f.ring), handover.String())
	owner.Labels = map[string]string{s.shardKey: s.Name()}
	require.NoError(t, f.admin.Update(t.Context(), owner))
	f.eventually("the owner is in the cache", func() bool {
		return p.mgr.GetClient().Get(t.Context(), client.ObjectKeyFromObject(owner), &corev1.ConfigMap{}) == nil
	})

	f.eventually("the owner waits for its cache", func() bool { return len(counted) > 0 || waitingOf(t, f.ring) == 1 })
	require.Empty(t, counted, "a reconcile counted while the cache was behind")
	close(open)
	require.Equal(t, 2, receive(f, counted, "the cache shows everything"))
}

// An absent object is reported once to a reconciler that has run for it, and to no other.
func TestReportsOnlyObjectsThatWereThere(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	s.term.unlimited()

	cache := f.cacheView()

	var (
		calls   int
		failure error
	)

	r := s.Reconciler(cache, &corev1.ConfigMap{}, reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		calls++
		return reconcile.Result{}, failure
	}))
	look := func(version *corev1.ConfigMap) int {
		cache.object = version
		before := calls
		_, err := r.Reconcile(t.Context(), request(live(f)))
		require.ErrorIs(t, err, failure)

		return calls - before
	}

	require.Equal(t, 0, look(nil), "it has never been there")

	cm := f.configMap(s, "a")
	require.Equal(t, 1, look(cm))

	failure = errors.New("broken")
	require.Equal(t, 1, look(nil), "it was there")

	failure = nil
	require.Equal(t, 1, look(nil), "the first call failed")
	require.Equal(t, 0, look(nil), "it was reported")
}

// An object that has left the cache since an earlier stretch of the term may have been taken, and come back at any time.
func TestAsksForObjectsOfAnEarlierStretch(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	s.term.unlimited()
	cm := f.configMap(s, "a")
	name := client.ObjectKeyFromObject(cm)

	here, elsewhere := cm, cm.DeepCopy()
	elsewhere.Labels[s.shardKey] = "shard-1"

	for what, tc := range map[string]struct {
		object *corev1.ConfigMap
		answer error
		calls  int
		fails  bool
		knows  bool
	}{
		"it is another's":     {elsewhere, nil, 0, false, false},
		"it is not there yet": {here, nil, 0, false, true},
		"it is deleted":       {nil, apierrors.NewNotFound(corev1.Resource("configmaps"), "a"), 1, false, false},
		"nobody can tell":     {nil, errors.New("broken"), 0, true, true},
	} {
		t.Run(what, func(t *testing.T) {
			calls := 0
			k := &kind{endpoint: func() (metadata.Getter, error) { return oneAnswer{object: tc.object, err: tc.answer}, nil }}
			w := s.wrap(k)
			inner := func(context.Context) (reconcile.Result, error) {
				calls++
				return reconcile.Result{}, nil
			}

			_, err := w.call(t.Context(), name, true, inner)
			require.NoError(t, err)

			calls = 0
			w.stays[name] = stay{ran: true, stretch: -1, deletion: true} // a stretch ago
			v := visit{shard: s}
			v.into(k.key(name))
			_, err = w.absent(t.Context(), name, inner)
			_, left := v.leave(t.Context(), reconcile.Result{}, nil)
			require.NoError(t, left)
			require.Equal(t, tc.fails, err != nil, "%v", err)
			require.Equal(t, tc.calls, calls)
			require.Equal(t, tc.knows, len(w.stays) > 0)
		})
	}
}

// oneAnswer is an endpoint that has one answer.
type oneAnswer struct {
	metadata.Getter

	object *corev1.ConfigMap
	err    error
}

func (a oneAnswer) Namespace(string) metadata.ResourceInterface { return a }

func (a oneAnswer) Get(context.Context, string, metav1.GetOptions, ...string) (*metav1.PartialObjectMetadata, error) {
	if a.err != nil {
		return nil, a.err
	}

	return &metav1.PartialObjectMetadata{ObjectMeta: a.object.ObjectMeta}, nil
}

// traffic is what the manager sends to the API server about ConfigMaps.
type traffic struct {
	reads atomic.Int64
	lost  atomic.Bool // the next patch is applied, and its answer lost
}

func (f *fixture) traffic() *traffic {
	f.Helper()

	n := &traffic{}
	f.config = rest.CopyConfig(f.config)
	f.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			single := strings.Contains(r.URL.Path, "/configmaps/")
			if single && r.Method == http.MethodGet {
				n.reads.Add(1)
			}

			response, err := next.RoundTrip(r)
			if err == nil && single && r.Method == http.MethodPatch && n.lost.CompareAndSwap(true, false) {
				_ = response.Body.Close()

				return nil, errDown
			}

			return response, err
		})
	})

	return n
}

// If nobody knows whether an object was released, nobody works on it until the API server has told, whatever the cache shows.
func TestAcknowledgementWithoutAnAnswer(t *testing.T) {
	unstructuredMap := &unstructured.Unstructured{}
	unstructuredMap.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))

	metadataMap := &metav1.PartialObjectMetadata{}
	metadataMap.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))

	for form, obj := range map[string]client.Object{"typed": &corev1.ConfigMap{}, "unstructured": unstructuredMap, "metadata": metadataMap} {
		t.Run(form, func(t *testing.T) {
			f := newFixture(t)
			s := f.shard("shard-0")
			b := newBlocker()
			close(b.proceed)

			n := f.traffic()
			cm := f.configMap(s, "a")
			f.start(s, func(mgr ctrl.Manager) { f.controls(mgr, s, obj, b.reconcile) })
			receive(f, b.entered, "it works")

			n.lost.Store(true)
			f.label(cm, s.drainKey, "shard-1")
			f.eventually("the shard learns that it has released the object", func() bool { return s.released.Load() == 1 })
			f.refresh(cm)
			require.Equal(t, "shard-1", cm.Labels[s.shardKey])

			f.configMap(s, "next")
			require.Equal(t, "next", receive(f, b.entered, "it works").Name)
			require.Empty(t, b.entered)
		})
	}
}

// A label that somebody else changes or drops is no deletion. A deletion is one, and costs a request unless it was announced.
func TestRelabelledObjectsAreNotDeleted(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	b := newBlocker()
	close(b.proceed)

	n := f.traffic()
	moved, dropped, deleted, finished := f.configMap(s, "moved"), f.configMap(s, "dropped"), f.configMap(s, "deleted"), f.configMap(s, "finished")
	finished.Finalizers = []string{"example.org/test"}
	require.NoError(t, f.admin.Update(t.Context(), finished))

	var ended *atomic.Int64

	f.start(s, func(mgr ctrl.Manager) {
		wrapped := s.Reconciler(mgr.GetClient(), &corev1.ConfigMap{}, reconcile.Func(b.reconcile))
		ended = f.counts(mgr, s, wrapped)
	})

	for range 4 {
		receive(f, b.entered, "it works")
	}

	for _, step := range []struct {
		object *corev1.ConfigMap
		label  string
	}{{moved, "shard-1"}, {dropped, ""}} {
		before := ended.Load()
		f.label(step.object, s.shardKey, step.label)
		f.eventually("a worker has looked", func() bool { return ended.Load() > before })
		require.Empty(t, b.entered, step.object.Name)
	}

	require.NoError(t, f.admin.Delete(t.Context(), deleted))
	require.Equal(t, "deleted", receive(f, b.entered, "it is deleted").Name)

	require.NoError(t, f.admin.Delete(t.Context(), finished))
	require.Equal(t, "finished", receive(f, b.entered, "it is in deletion").Name)

	before := n.reads.Load()

	finished.Finalizers = nil
	finished.ResourceVersion = ""
	require.NoError(t, f.admin.Update(t.Context(), finished))
	require.Equal(t, "finished", receive(f, b.entered, "it is deleted").Name)
	require.Equal(t, before, n.reads.Load(), "nobody had to ask")
}

// counts adds a controller of ConfigMaps without filters. It returns how many reconciles have ended, the wrapper's part included.
func (f *fixture) counts(mgr ctrl.Manager, s *Shard, wrapped reconcile.Reconciler) *atomic.Int64 {
	f.Helper()

	c := &counting{inner: wrapped, shard: s}
	require.NoError(f, ctrl.NewControllerManagedBy(mgr).Named("test").For(&corev1.ConfigMap{}).Complete(c))

	return &c.ended
}
