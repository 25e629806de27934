package shard

import (
	"fmt"
	"os"
	"reflect"
	"sync"
	"time"

	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/pkg/shard/internal/hook"
	"github.com/clusterring/clusterring/pkg/shard/internal/self"
)

// members are the shards of this process whose leader election the program configures itself: one part of the program keeps the Lease,
// others wrap reconcilers, and only the names of ring and shard connect them. A *Shard connects all others.
//
//	M1  All reconcilers of a shard share its term and its guard, whoever has built them.
//	M2  The term ends with the Lease: its duration is that of the last renewal. The deadline of such a shard is the whole duration, because
//	    the renew deadline of the election, which is not known, is shorter. Workers get another third of the duration to stop; the Lease is
//	    taken after twice the duration.
//	M3  The Lease announces a hold-off only if a reconciler was wrapped before the Lease was taken. A program without such
//	    reconcilers works as soon as the election calls it, so nobody must rely on a hold-off.
//	M4  A shard without a Lease of this process belongs to one client, so that tests with several API servers do not share it.
//	M5  A Lease without a config is only kept: it exists too late for reconcilers that are wrapped before the election, and nothing can be
//	    read live for them.
type members struct {
	mu sync.Mutex
	of map[memberKey]*Shard
}

// memberKey identifies a member; the client is nil for members that keep their Lease.
type memberKey struct {
	ring, name string
	client     client.Client
}

func newMembers() *members { return &members{of: map[memberKey]*Shard{}} }

// completeIdentity fills in the name and the namespace as [New] does.
func completeIdentity(id hook.Identity) (hook.Identity, error) {
	o, err := Options{Ring: id.Ring, Name: id.Name, Namespace: id.Namespace, ShardLabel: id.ShardLabel}.complete(os.Hostname, self.Mounted)

	return hook.Identity{Ring: o.Ring, Name: o.Name, Namespace: o.Namespace, ShardLabel: o.ShardLabel}, err
}

// memberOf returns a new shard whose durations the election decides.
func memberOf(id hook.Identity) (*Shard, error) {
	s, err := New(Options{Ring: id.Ring, Name: id.Name, Namespace: id.Namespace, ShardLabel: id.ShardLabel})
	if err == nil {
		s.member = true
	}

	return s, err
}

// join implements [hook.Join].
func (m *members) join(id hook.Identity, config *rest.Config) (hook.Member, error) {
	s, err := memberOf(id)
	if err != nil {
		return nil, err
	}

	if config == nil {
		return elected{s}, nil
	}

	live, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the client of shard %s for live reads: %w", id.Name, err)
	}

	s.readLive(live)

	m.mu.Lock()
	defer m.mu.Unlock()

	m.of[memberKey{ring: id.Ring, name: s.Name()}] = s

	return elected{s}, nil
}

// elected implements [hook.Member].
type elected struct{ shard *Shard }

// Elect implements [hook.Member].
func (e elected) Elect(l hook.Lock) resourcelock.Interface {
	lock := e.shard.lockFor(l.Leases, e.shard.Name())
	lock.Labels, lock.LockConfig.EventRecorder = l.Labels, l.Events

	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()

	e.shard.lock = lock

	return lock
}

// wrap implements [hook.Wrap].
func (m *members) wrap(w hook.Wrapped) (reconcile.Reconciler, error) {
	s, err := m.shard(w)
	if err != nil {
		return nil, err
	}

	s.attended.Store(true)

	wrapped := s.wrap(s.kindOf(w.Client, w.Object))
	wrapped.presentOnly = true

	return &reconciler{wrapped: wrapped, inner: w.Do}, nil
}

// shard returns the shard of a reconciler.
func (m *members) shard(w hook.Wrapped) (*Shard, error) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if s := m.of[memberKey{ring: w.Ring, name: w.Name}]; s != nil {
		return s, nil
	}

	key := memberKey{w.Ring, w.Name, w.Client}
	shareable := reflect.TypeOf(w.Client).Comparable()

	if shareable && m.of[key] != nil {
		return m.of[key], nil
	}

	w.Namespace = elsewhere

	s, err := memberOf(w.Identity)
	if err != nil {
		return nil, err
	}

	s.term.unlimited()

	if shareable {
		m.of[key] = s
	}

	return s, nil
}

// labelKeys implements [hook.LabelKeys].
func (m *members) labelKeys(ring, name string) v1alpha1.LabelKeys {
	m.mu.Lock()
	defer m.mu.Unlock()

	if s := m.of[memberKey{ring: ring, name: name}]; s != nil {
		return s.LabelKeys()
	}

	return v1alpha1.LabelKeysOf(ring, "")
}

// elsewhere stands for the namespace of a Lease that another part of the program keeps.
const elsewhere = "default"

// lasting sets the duration of the Lease that the term depends on, as M2 describes.
func (t *term) lasting(duration time.Duration) {
	const stopping = 3 // the part of the duration that workers get to stop

	t.mu.Lock()
	defer t.mu.Unlock()

	t.renewDeadline, t.leaseDuration = duration, duration+duration/stopping
}

func init() {
	m := newMembers()
	hook.Complete, hook.Join, hook.Wrap, hook.LabelKeys = completeIdentity, m.join, m.wrap, m.labelKeys
	hook.Client = func(config *rest.Config) (coordinationv1client.LeasesGetter, error) {
		c, _, err := leaseClients(config, Options{RenewDeadline: defaultLeaseDuration * 2 / 3})

		return c, err //nolint:mnd // as by default
	}
}
