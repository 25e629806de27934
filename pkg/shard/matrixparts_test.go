package shard_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// lag is how late shard b sees what follows its objects.
const lag = 300 * time.Millisecond

// cable is a connection that ends with a context.
type cable struct {
	next http.RoundTripper
	ctx  context.Context //nolint:containedctx // that of the network
}

// RoundTrip implements http.RoundTripper.
func (c cable) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	context.AfterFunc(c.ctx, cancel)

	return c.next.RoundTrip(req.WithContext(ctx))
}

// slowSecrets makes the caches of Secrets lag behind those of their owners.
type slowSecrets struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (s slowSecrets) RoundTrip(req *http.Request) (*http.Response, error) {
	response, err := s.RoundTripper.RoundTrip(req)
	if err == nil && strings.HasSuffix(req.URL.Path, "/secrets") && req.URL.Query().Has("watch") {
		response.Body = slowBody{response.Body}
	}

	return response, err
}

type slowBody struct{ io.ReadCloser }

// Read implements io.Reader.
func (b slowBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	<-clock.RealClock{}.After(lag)

	return n, err
}

// ledger is what the reconcilers of both shards have done.
type ledger struct {
	entered chan string // the objects whose reconciles are held

	mu     sync.Mutex
	inside map[string]string        // the shard that works on an object
	given  map[string]bool          // objects that may be b's
	gone   map[string]bool          // objects that are not a's any more
	done   map[string]int           // by shard and object: reconciles that have ended
	gates  map[string]chan struct{} // by object
	wrong  []string
}

func (l *ledger) violates(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

func (l *ledger) violations() []string {
	l.mu.Lock()
	defer l.mu.Unlock()

	return slices.Clone(l.wrong)
}

// begin records that a shard works on an object, until the returned function is called.
func (l *ledger) begin(of, name string) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()

	switch is := l.inside[name]; {
	case is != "":
		l.wrong = append(l.wrong, fmt.Sprintf("%s works on %s while %s does", of, name, is))
	case of == "a" && (l.gone[name] || name == "other"), of == "b" && !l.given[name]:
		l.wrong = append(l.wrong, fmt.Sprintf("%s works on %s, which is not its own", of, name))
	}

	l.inside[name] = of

	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()

		l.inside[name] = ""
		l.done[of+"/"+name]++
	}
}

func (l *ledger) works(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.inside[name] != ""
}

func (l *ledger) ended(of, name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.done[of+"/"+name]
}

// gives records that an object may be b's.
func (l *ledger) gives(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.given[name] = true
}

// leaves records that an object is not a's any more.
func (l *ledger) leaves(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.gone[name] = true
}

// hold makes reconciles of an object by a wait for the channel, or, if that is nil, for the end of their context.
func (l *ledger) hold(name string, gate chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.gates[name] = gate
}

func (l *ledger) gate(name string) (gate chan struct{}, held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	gate, held = l.gates[name]

	return gate, held
}

// maker is an operator that makes a child for each object but "lone", with a name that the API server generates. It counts them in its cache, and
// remembers those that it has made.
type maker struct {
	client.Client
	form    shape
	shard   string
	ledger  *ledger
	patient bool // reconciles that are held outlast their timeout
	made    map[types.UID]bool
}

// Reconcile implements reconcile.Reconciler.
func (m *maker) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	defer m.ledger.begin(m.shard, request.Name)()

	owner := m.form.object("ConfigMap")

	err := m.Get(ctx, request.NamespacedName, owner)
	if err == nil && request.Name != "lone" {
		err = m.ensure(ctx, owner)
	}

	if apierrors.IsNotFound(err) || err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
		m.ledger.violates("%s works on %s: %v", m.shard, request.Name, err)
	}

	gate, held := m.ledger.gate(request.Name)
	if err != nil || !held || m.shard != "a" {
		return reconcile.Result{}, err
	}

	m.ledger.entered <- request.Name

	if gate != nil {
		<-gate
	}

	if gate == nil || m.patient {
		<-ctx.Done()
	}

	return reconcile.Result{}, nil
}

// ensure makes the child of an object, unless it has one.
func (m *maker) ensure(ctx context.Context, owner client.Object) error {
	list := m.form.list("Secret")
	if err := m.List(ctx, list, client.InNamespace(owner.GetNamespace())); err != nil {
		return err
	}

	items, err := meta.ExtractList(list)
	if err != nil {
		return err
	}

	has := slices.ContainsFunc(items, func(item runtime.Object) bool {
		child, ok := item.(client.Object)
		return ok && metav1.IsControlledBy(child, owner)
	})
	if has || m.made[owner.GetUID()] {
		return nil
	}

	child := m.form.create("Secret")
	child.SetNamespace(owner.GetNamespace())
	child.SetGenerateName(owner.GetName() + "-")
	child.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))})

	if err := m.Create(ctx, child); err != nil {
		return err
	}

	m.made[owner.GetUID()] = true

	return nil
}
