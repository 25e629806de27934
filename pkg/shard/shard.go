package shard

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/pkg/shard/internal/hook"
)

const (
	defaultLeaseDuration = 15 * time.Second
	// inClusterNamespaceFile is where a Pod finds the namespace it runs in.
	inClusterNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
	// jitter is the factor by which client-go's leader election stretches its retry period.
	jitter = 1.2
)

// Options say who the shard is and how it keeps its Lease. The zero value lacks the ring's name.
type Options struct {
	// Ring is the name of the ClusterRing that the shard belongs to. Required.
	Ring string
	// Name is the shard's name: the name and the holder of its Lease, and the value of the shard label on its objects. No
	// two processes of a ring may use one name at the same time. Default: the host name, which is the Pod's name in a cluster.
	Name string
	// Namespace holds the shard's Lease. Default: the namespace of the Pod; required outside a cluster.
	Namespace string

	// LeaseDuration is how long the Lease counts as healthy after a renewal, in whole seconds. The objects of a shard that
	// vanished move after twice this time. Default: 15 seconds.
	LeaseDuration time.Duration
	// RenewDeadline is how long the shard tries to renew its Lease before it gives up and ends. Must be less than
	// LeaseDuration. Default: two thirds of LeaseDuration.
	RenewDeadline time.Duration
	// RetryPeriod is the time between renewals. Must be less than RenewDeadline / 1.2. Default: two fifteenths of
	// LeaseDuration.
	RetryPeriod time.Duration
}

// Shard is this process as a member of a ring. It is made by [New] and is safe for concurrent use. A process may hold
// several, one per ring, each with its own manager.
type Shard struct {
	options  Options
	shardKey string
	drainKey string
	guard    *guard

	mu    sync.RWMutex
	kinds map[schema.GroupKind]*kind
}

// New returns the shard that the options describe, with their defaults filled in. It does no I/O on the API server. The
// error names every option that is missing or wrong.
func New(options Options) (*Shard, error) {
	options, err := complete(options, os.Hostname, inClusterNamespaceFile)
	if err != nil {
		return nil, err
	}

	return &Shard{
		options:  options,
		shardKey: v1alpha1.ShardLabel(options.Ring),
		drainKey: v1alpha1.DrainLabel(options.Ring),
		guard:    newGuard(),
		kinds:    map[schema.GroupKind]*kind{},
	}, nil
}

// Name returns the shard's name.
func (s *Shard) Name() string { return s.options.Name }

// Ring returns the name of the shard's ring.
func (s *Shard) Ring() string { return s.options.Ring }

// Namespace returns the namespace of the shard's Lease.
func (s *Shard) Namespace() string { return s.options.Namespace }

// Selector returns the label selector that matches the objects of this shard, draining ones included.
func (s *Shard) Selector() labels.Selector {
	return labels.SelectorFromSet(labels.Set{s.shardKey: s.options.Name})
}

// Owns reports whether the object, as it is given, carries this shard's label, draining or not.
func (s *Shard) Owns(obj client.Object) bool {
	return obj.GetLabels()[s.shardKey] == s.options.Name
}

// Draining reports whether this shard is asked to give the object up: it owns the object, and the object carries the drain
// label with any value.
func (s *Shard) Draining(obj client.Object) bool {
	_, drain := obj.GetLabels()[s.drainKey]

	return drain && s.Owns(obj)
}

// complete fills in defaults and validates. The host name and the namespace file are arguments for the sake of tests.
func complete(o Options, hostname func() (string, error), namespaceFile string) (Options, error) {
	var errs []error
	if o.Name == "" {
		name, err := hostname()
		if err != nil {
			errs = append(errs, fmt.Errorf("name: cannot default to the host name: %w", err))
		}
		o.Name = name
	}
	if o.Namespace == "" {
		namespace, err := os.ReadFile(namespaceFile) //nolint:gosec // a constant outside tests
		if err != nil {
			errs = append(errs, fmt.Errorf("namespace: set it, it can be found out in a Pod only: %w", err))
		}
		o.Namespace = string(bytes.TrimSpace(namespace))
	}
	if o.LeaseDuration == 0 {
		o.LeaseDuration = defaultLeaseDuration
	}
	if o.RenewDeadline == 0 {
		o.RenewDeadline = o.LeaseDuration * 2 / 3
	}
	if o.RetryPeriod == 0 {
		o.RetryPeriod = o.LeaseDuration * 2 / 15
	}

	// A default that could not be found has been reported already.
	if len(errs) == 0 {
		errs = append(errs, validateNames(o)...)
	}
	errs = append(errs, validateTimes(o)...)
	if len(errs) > 0 {
		return o, fmt.Errorf("shard options: %w", errors.Join(errs...))
	}

	return o, nil
}

func validateNames(o Options) []error {
	var errs []error
	if o.Ring == "" {
		errs = append(errs, errors.New("ring: set the name of the shard's ClusterRing"))
	} else {
		errs = append(errs, invalid("ring", o.Ring, labelValue)...)
	}
	errs = append(errs, invalid("name", o.Name, labelValue)...)
	errs = append(errs, invalid("namespace", o.Namespace, validation.IsDNS1123Label)...)
	if o.Name == v1alpha1.LeaseControllerIdentity {
		errs = append(errs, fmt.Errorf("name: %q is how the lease monitor signs Leases that it has taken; choose another", o.Name))
	}

	return errs
}

// labelValue finds what keeps a name from being both the name of an object and the value of a label.
func labelValue(name string) []string {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return problems
	}

	return validation.IsValidLabelValue(name)
}

func invalid(option, value string, check func(string) []string) []error {
	if problems := check(value); len(problems) > 0 {
		return []error{fmt.Errorf("%s: %q is invalid: %s", option, value, strings.Join(problems, "; "))}
	}

	return nil
}

func validateTimes(o Options) []error {
	var errs []error
	if o.LeaseDuration < time.Second || o.LeaseDuration%time.Second != 0 {
		errs = append(errs, fmt.Errorf("lease duration: %s must be whole seconds, at least one", o.LeaseDuration))
	}
	if o.RenewDeadline <= 0 || o.RenewDeadline >= o.LeaseDuration {
		errs = append(errs, fmt.Errorf("renew deadline: %s must be positive and less than the lease duration, %s", o.RenewDeadline, o.LeaseDuration))
	}
	if o.RetryPeriod <= 0 || float64(o.RetryPeriod)*jitter >= float64(o.RenewDeadline) {
		errs = append(errs, fmt.Errorf("retry period: %s must be positive and less than the renew deadline, %s, divided by %v", o.RetryPeriod, o.RenewDeadline, jitter))
	}

	return errs
}

func init() {
	hook.WithoutLease = func(s any) { s.(*Shard).guard.unlock() } //nolint:forcetypeassert // internal, the one caller passes a *Shard
}
