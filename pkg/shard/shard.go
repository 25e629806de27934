package shard

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/shard/internal/elect"
	"github.com/clusterring/clusterring/pkg/shard/internal/within"
)

// Shard is this process as a member of a ring. [NewManager] and [New] create it. It is safe for concurrent use. A
// process may contain several shards, one per ring, each with its own manager.
type Shard struct {
	options  Options
	name     atomic.Pointer[string]
	shardKey string
	drainKey string
	guard    *guard
	term     *term
	stores   *stores
	handover *handovers
	drains   *drains
	progress *progress
	poison   *poison

	mu    sync.RWMutex
	kinds map[schema.GroupKind][]*kind
	// wrappers are the reconcilers and handlers that were wrapped.
	wrappers map[schema.GroupKind][]*wrapped
	// mains are the kinds whose objects follow no controller.
	mains map[schema.GroupKind]bool
	// inventories are the inventories of the manager's caches.
	inventories map[form]*inventory
	// lock is the shard's Lease; nil before the shard has a name.
	lock atomic.Pointer[lock]
	// standsBy is true while this process waits for a slot, and could take one.
	standsBy atomic.Bool
	// released counts the objects that were released.
	released atomic.Int64
	// namespaces are those in which the shard watches its kinds; none for all.
	namespaces []string
	live       atomic.Pointer[metadata.Interface] // see liveReader
}

// New returns the shard that the options describe, with defaults filled in. It does not access the API server. The
// error names every option that is missing or wrong. With [Options].Slots, it has no name before it has one of them.
func New(options Options) (*Shard, error) {
	options, err := options.complete(os.Hostname, mounted)
	if err != nil {
		return nil, err
	}

	return newShard(options), nil
}

func newShard(options Options) *Shard {
	keys := contract.LabelKeysOf(options.Ring, options.ShardLabel)
	s := &Shard{
		options:  options,
		shardKey: keys.Shard,
		drainKey: keys.Drain,
		guard:    newGuard(),
		progress: newProgress(),
		poison:   newPoison(ringKeys(keys)),
		term:     newTerm(options, clock.RealClock{}),
		kinds:    map[schema.GroupKind][]*kind{},
		wrappers: map[schema.GroupKind][]*wrapped{},
		mains:    map[schema.GroupKind]bool{},

		inventories: map[form]*inventory{},
	}
	s.become(options.Name)
	s.stores = newStores(ringKeys(keys), s.liveReader)
	s.handover = newHandovers(options.Ring, s.stores, s.Selector)
	s.drains = &drains{shard: s}
	s.stores.observe = s.drains.watch
	s.term.own = s.drains.run

	return s
}

// Name returns the shard's name; empty as long as it waits for a slot.
func (s *Shard) Name() string { return *s.name.Load() }

// become gives the shard its name. It is called once more when it has a slot.
func (s *Shard) become(name string) { s.name.Store(&name) }

// Ring returns the name of the shard's ring.
func (s *Shard) Ring() string { return s.options.Ring }

// Namespace returns the namespace of the shard's Lease.
func (s *Shard) Namespace() string { return s.options.Namespace }

// LabelKeys returns the keys by which the ring labels and annotates objects.
func (s *Shard) LabelKeys() contract.LabelKeys {
	return contract.LabelKeysOf(s.options.Ring, s.options.ShardLabel)
}

// Selector returns the label selector that matches this shard's objects, also draining ones; none while it waits for a
// slot.
func (s *Shard) Selector() labels.Selector {
	name := s.Name()
	if name == "" {
		return labels.Nothing()
	}

	return labels.SelectorFromSet(labels.Set{s.shardKey: name})
}

// Owns reports whether the object, as it is given, carries this shard's label, draining or not.
func (s *Shard) Owns(obj metav1.Object) bool {
	name := s.Name()

	return name != "" && obj.GetLabels()[s.shardKey] == name
}

// draining reports whether this shard is asked to release the object: it owns the object, which carries the drain label
// with any value.
func (s *Shard) draining(obj metav1.Object) bool {
	_, drain := obj.GetLabels()[s.drainKey]

	return drain && s.Owns(obj)
}

const (
	// mounted is the directory that contains the namespace of the Pod and its token.
	mounted = "/var/run/secrets/kubernetes.io/serviceaccount"

	// maxLeaseDuration is the longest duration that the services count.
	maxLeaseDuration = 24 * time.Hour
	defaultHoldOff   = 2 * time.Second
	// defaultDrainTimeout leaves half of a Pod's default grace period for the reconciles that run then.
	defaultDrainTimeout = 15 * time.Second
	// minHoldOff is longer than a write that takes an object from a shard: the rebalancer relies for 500 ms on an answer
	// that the Lease is free, and abandons a write that has not ended a second later. The cache needs no part of it.
	minHoldOff = 1500 * time.Millisecond
	// randomLength makes the names of processes outside a cluster differ.
	randomLength = 8
	// jitter is the factor by which client-go's leader election stretches its retry period.
	jitter = 1.2
)

// Options describe the shard and how it keeps its Lease. The zero value lacks only the ring's name.
type Options struct {
	// Ring is the name of the ClusterRing that the shard belongs to. Required.
	Ring string
	// CheckWrites makes the client of the manager one of [Shard.CheckWrites]. Repeated applies get conflicts. Default:
	// false.
	CheckWrites bool
	// ShowLabels makes the clients and caches of the manager show the labels and annotations of the ring. The program has
	// to keep them. Default: false.
	ShowLabels bool
	// Name is the shard's name: the name and the holder of its Lease, and the value of the shard label on its objects. No
	// two processes of a ring may use it at the same time. Default: that of the Pod in its token, or of the host name.
	Name string
	// Pod is the name of the Pod that runs the shard, if it differs from Name, for the fence of a ring. Default: none,
	// which stands for Name. With Slots: the name of the Pod, and a random name outside a cluster.
	Pod string
	// PodUID is the uid of that Pod. With it, the lease monitor gives the shard up as soon as the kubelet reports that the
	// Pod has ended. Default: that of the Pod's token, which the kubelet mounts; none outside a cluster.
	PodUID types.UID
	// Slots are names that outlive Pods: [Scale], [Count], or [Named]. The shard takes one that no other Pod holds. When a
	// Pod is replaced, its successor takes the slot, and no object moves. Name must be empty then, and Pod must be unique
	// in the namespace. The slots of a ring belong to one namespace. Default: none, so that it has the name of its Pod.
	Slots Slots
	// Kinds are the kinds whose objects the ring assigns: its resources, by [Main], and their controlled resources, by
	// [Controlled]. [NewManager] requires them; [Shard.Run] does not use them.
	Kinds Kinds
	// Controllers declare, by name, the controllers of a manager whose For kind is not one of Kinds: [EveryReplica] or
	// [OneReplica]. [Sharded] and [ShardedBy] declare those of which the manager cannot see what they work on. The name is
	// that of builder.Named, by default the lowercase kind of builder.For.
	Controllers map[string]Placement
	// Runnables declare those other runnables of a manager that would run where the leader is: [EveryReplica] or
	// [OneReplica]. The key is the name of the Go type, such as "*example.Collector", or, for a manager.RunnableFunc, the
	// path of the package of its function. Add refuses one that is not declared, with an error that contains its key.
	Runnables map[string]Placement
	// ShardLabel is spec.shardLabel of the ring, without which it must be empty. A shard with another key gets no objects:
	// the condition ShardsAvailable of the ring reports it, and an admission policy refuses the Lease, which announces the
	// key. Default: none, which stands for the key that follows from the ring's name.
	ShardLabel string
	// Namespace holds the shard's Lease. Default: the namespace of the Pod; required outside a cluster.
	Namespace string

	// LeaseDuration is how long the Lease counts as healthy after a renewal, in whole seconds, at most a day. If a shard
	// vanishes, its objects move after twice this time. Default: 15 seconds.
	LeaseDuration time.Duration
	// RenewDeadline is how long the shard works after the last successful renewal of its Lease was sent. Then, the
	// contexts of its workers are cancelled, and Exit is called if they outlast LeaseDuration. Default: two thirds of
	// LeaseDuration.
	RenewDeadline time.Duration
	// RetryPeriod is the time between renewals. Less than RenewDeadline / 1.2. Default: two fifteenths of LeaseDuration.
	RetryPeriod time.Duration

	// HoldOff is how long the shard waits before it works, after it has taken a free Lease or created one: while a Lease
	// is free, the rebalancer takes objects from the shard without asking it. The Lease announces this time. If it
	// announces a longer one, of a predecessor, the shard waits that long once. At least 1.5 seconds. Default: 2 seconds.
	HoldOff time.Duration

	// DrainTimeout is how long a shard that was told to stop works until its objects are drained. It stops earlier when it
	// has no objects, when nobody drains them, or when another process waits for its slot, and takes over all objects. The
	// Pod's terminationGracePeriodSeconds must be longer than this and the longest reconcile. Negative: it stops at once.
	// Default: 15 seconds.
	DrainTimeout time.Duration

	// Healthy is asked before each renewal of the Lease. An error, or no answer within RetryPeriod, makes the shard skip
	// the renewal and ask again after RetryPeriod. After RenewDeadline without a good answer, the shard is over, as if the
	// Lease was lost, with an [ErrLost] that wraps the last error. If all workers stop in time, the Lease is released;
	// otherwise, it expires. It is asked before caches are full, and perhaps before it has returned. Default: none.
	Healthy func(ctx context.Context) error

	// Exit is called when the Lease, or that of what runs in one replica, is lost and workers have not stopped in time. It
	// may run in the goroutine of a worker, and must end the process. Default: log the error and exit with code 1.
	Exit func(error)
}

// complete fills in defaults and validates. Tests pass the host name and the directory of what the kubelet mounts.
func (o Options) complete(hostname func() (string, error), mounted string) (Options, error) {
	var errs []error

	token, noToken := os.ReadFile(filepath.Join(mounted, "token"))

	mine := bound(token)

	own := &o.Name
	if o.Slots.any() {
		own = &o.Pod
	}

	switch {
	case *own != "":
	case o.Slots.any() && noToken != nil:
		o.Pod = "process-" + utilrand.String(randomLength) // the host may run several
	case mine.name != "": // Pods that share the network of their node share its host name, too
		*own = mine.name
	default:
		var err error
		if *own, err = hostname(); err != nil {
			errs = append(errs, fmt.Errorf("name: set it, the host has none: %w", err))
		}
	}

	if o.Namespace == "" {
		namespace, err := os.ReadFile(filepath.Join(mounted, "namespace"))
		if o.Namespace = string(bytes.TrimSpace(namespace)); err != nil {
			errs = append(errs, fmt.Errorf("namespace: set it, outside of a Pod it is not known: %w", err))
		}
	}

	o.PodUID = cmp.Or(o.PodUID, mine.uid) // without a token, the Lease announces no uid
	o.LeaseDuration = cmp.Or(o.LeaseDuration, elect.LeaseDuration)
	o.RenewDeadline = cmp.Or(o.RenewDeadline, o.LeaseDuration*2/3)
	o.RetryPeriod = cmp.Or(o.RetryPeriod, o.LeaseDuration*2/15)
	o.HoldOff = cmp.Or(o.HoldOff, defaultHoldOff)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, defaultDrainTimeout)

	if errs = append(errs, o.validate()...); len(errs) > 0 {
		return o, fmt.Errorf("shard options: %w", errors.Join(errs...))
	}

	return o, nil
}

// bound returns the Pod that a service account token is bound to; empty for none. It is not verified: it is the
// process's own.
func bound(token []byte) pod {
	var claims struct {
		Kubernetes struct {
			Pod struct {
				Name string    `json:"name"`
				UID  types.UID `json:"uid"`
			} `json:"pod"`
		} `json:"kubernetes.io"`
	}

	_, rest, _ := bytes.Cut(token, []byte(".")) // header, claims, signature
	encoded, _, _ := bytes.Cut(rest, []byte("."))

	text, err := base64.RawURLEncoding.DecodeString(string(encoded))
	if err == nil {
		err = json.Unmarshal(text, &claims)
	}

	if err != nil {
		return pod{}
	}

	return pod{claims.Kubernetes.Pod.Name, claims.Kubernetes.Pod.UID}
}

// validate returns what is wrong with options that are complete. It does not report names that have no default:
// complete has reported them.
func (o Options) validate() []error {
	var errs []error

	must := func(is bool, otherwise error) {
		if !is {
			errs = append(errs, otherwise)
		}
	}
	named := func(option, name string, check func(string) []string) {
		if problems := check(name); name != "" && len(problems) > 0 {
			errs = append(errs, fmt.Errorf("%s: %q is invalid: %s", option, name, strings.Join(problems, "; ")))
		}
	}

	must(o.Ring != "", errors.New("ring: set the name of the shard's ClusterRing"))
	named("ring", o.Ring, objectAndLabel)
	named("name", o.Name, shardName)
	named("namespace", o.Namespace, validation.IsDNS1123Label)
	named("pod", o.Pod, validation.IsDNS1123Subdomain)
	named("shard label", o.ShardLabel, contract.ValidateShardLabel)

	s := o.Slots
	must(!s.any() || o.Name == "", fmt.Errorf("name: remove %q: with slots, the name is that of the slot", o.Name))
	must(s.from != countSlots || s.count >= 1 && s.count <= contract.MaxSlots,
		fmt.Errorf("slots: their number, %d, must be from 1 to %d", s.count, contract.MaxSlots))
	must(s.from != namedSlots || len(s.names) > 0 && !slices.Contains(s.names, ""),
		errors.New("slots: give Named at least one name, and none that is empty"))

	if o.Ring != "" && (s.from == countSlots || s.from == scaleSlots) {
		named("slots", contract.SlotName(o.Ring, max(s.count-1, 0)), shardName) // the longest
	}

	for _, name := range s.names {
		named("slots", name, shardName)
	}

	must(o.LeaseDuration >= time.Second && o.LeaseDuration <= maxLeaseDuration && o.LeaseDuration%time.Second == 0,
		fmt.Errorf("lease duration: %s must be whole seconds, at least one, at most %s", o.LeaseDuration, maxLeaseDuration))
	must(o.RenewDeadline > 0 && o.RenewDeadline < o.LeaseDuration,
		fmt.Errorf("renew deadline: %s must be positive and less than the lease duration, %s", o.RenewDeadline,
			o.LeaseDuration))
	must(o.RetryPeriod > 0 && float64(o.RetryPeriod)*jitter < float64(o.RenewDeadline),
		fmt.Errorf("retry period: %s must be positive and less than the renew deadline, %s, divided by %v", o.RetryPeriod,
			o.RenewDeadline, jitter))
	must(o.HoldOff >= minHoldOff, fmt.Errorf("hold-off: %s must be at least %s", o.HoldOff, minHoldOff))

	return errs
}

// objectAndLabel returns why a name cannot be both the name of an object and the value of a label.
func objectAndLabel(name string) []string {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return problems
	}

	return validation.IsValidLabelValue(name)
}

// shardName returns why a name cannot be that of a shard.
func shardName(name string) []string {
	if name == contract.LeaseControllerIdentity {
		return []string{"it is how the lease monitor signs Leases that it has taken; choose another"}
	}

	return objectAndLabel(name)
}

// Run runs a controller without a manager as this shard. It waits for a slot, if the shard has slots, takes the shard's
// Lease with the given config, waits for the end of the hold-off, calls work, and then releases the Lease. Call it
// once.
//
// When ctx ends, the shard works until its objects are drained, as [Options].DrainTimeout describes. Then the context
// of work ends. It also ends when the Lease is lost. Work must return only after everything that it has started has
// stopped; if it does not, the process ends as described at [Options].Exit. Informers with [Shard.TweakListOptions]
// must start in work, where the shard has its name.
//
// Run returns the error of work. If the Lease was lost, it returns an [ErrLost], and the process must end with a
// non-zero exit code. It returns nil if ctx ended before the Lease was taken.
func (s *Shard) Run(ctx context.Context, config *rest.Config, work func(ctx context.Context) error) error {
	if err := s.connect(config); err != nil {
		return err
	}

	defer running.add(s)()

	t, err := s.hold(ctx, config)

	switch {
	case ctx.Err() != nil && t == nil:
		return nil
	case err != nil:
		return fmt.Errorf("run a shard of ring %s: %w", s.options.Ring, err)
	}

	defer t.end()

	if err := s.during(s.untilDrained(ctx), work); err != nil {
		return fmt.Errorf("run shard %s: %w", s.Name(), err)
	}

	return nil
}

// during calls the function as a worker, after the hold-off. It returns an ErrLost if the term ends before it returned.
func (s *Shard) during(ctx context.Context, work func(ctx context.Context) error) error {
	working, end, err := s.term.begin(ctx)
	for wait := (waitError{}); errors.As(err, &wait); working, end, err = s.term.begin(ctx) {
		select {
		case <-ctx.Done():
			return nil
		case <-s.term.clock.After(wait.left):
		}
	}

	if err != nil {
		return err
	}

	defer end()

	return errors.Join(work(working), s.term.lost())
}

// TweakListOptions restricts a list or watch to the objects of this shard, in addition to what the options already
// select. It is meant for informer factories: informers.WithTweakListOptions(s.TweakListOptions).
func (s *Shard) TweakListOptions(o *metav1.ListOptions) {
	selector := s.Selector().String()
	if o.LabelSelector != "" {
		selector = o.LabelSelector + "," + selector
	}

	o.LabelSelector = selector
}

func newWithin(w within.Shard) (*Shard, error) {
	return New(Options{Ring: w.Ring, Name: w.Name, Namespace: w.Namespace, Exit: w.Exit})
}

// Without returns a shard whose reconcilers work without a Lease. It is for packages compat/controller and shardtest,
// and nobody else can call it. With a config, its caches may be older than the term, which begins with the first
// reconcile.
func Without(w within.Shard) (*Shard, error) {
	w.Namespace = cmp.Or(w.Namespace, "default") // required, and not used

	s, err := newWithin(w)
	if err != nil {
		return nil, err
	}

	s.term.unlimited()

	if w.Config != nil {
		s.term.stretch = 1
		err = s.connect(w.Config)
	}

	return s, err
}

// Elect returns the lock of a shard whose election the program configures itself, for compat/lease, and nobody else can
// call it.
func Elect(w within.Shard) (resourcelock.Interface, error) {
	s, err := newWithin(w)
	if err != nil {
		return nil, err
	}

	lock := s.lockFor(w.Leases.Leases(s.Namespace()), s.Name())
	lock.events = w.Events

	return &programLock{lock}, nil
}

// programLock is the lock of a program whose workers it does not know. In addition to the promises of lock:
//
//	P1  The election learns that the Lease was taken when the hold-off has ended, so that no worker begins before. If
//	    that takes long, the election fails for a while, but renews the Lease.
//	P2  The program counts as a worker until the election releases the Lease: a process that has lost it ends. This is
//	    all that stops a process that was frozen, or whose workers ignore their contexts.
//	P3  The deadline is the duration of the Lease, because that of the election, which is not known, is shorter. The
//	    program gets another third of the duration to end. The Lease is taken after twice the duration.
type programLock struct{ *lock }

func (l *programLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.take(ctx, record, l.lock.Create)
}

func (l *programLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		return l.lock.Update(ctx, record)
	}

	return l.take(ctx, record, l.lock.Update)
}

func (l *programLock) take(
	ctx context.Context, record resourcelock.LeaderElectionRecord,
	write func(context.Context, resourcelock.LeaderElectionRecord) error,
) error {
	duration := time.Duration(record.LeaseDurationSeconds) * time.Second
	l.term.lasting(duration)

	if err := write(ctx, record); err != nil || l.leave != nil {
		return err
	}

	begin := func() (err error) {
		_, l.leave, err = l.term.begin(context.WithoutCancel(ctx))
		return err
	}

	err := begin()
	if wait := (waitError{}); errors.As(err, &wait) {
		timer := l.term.clock.NewTimer(min(wait.left, duration/2)) // the Lease must be renewed
		defer timer.Stop()

		select {
		case <-ctx.Done():
			return nil // the election releases the Lease, which it does not after an error
		case <-timer.C():
			err = begin()
		}
	}

	return err
}

// lasting sets the duration of the Lease that the term depends on, as P3 describes.
func (t *term) lasting(duration time.Duration) {
	const stopping = 3 // the part of the duration that the program gets to end

	t.mu.Lock()
	defer t.mu.Unlock()

	t.renewDeadline, t.leaseDuration = duration, duration+duration/stopping
}
