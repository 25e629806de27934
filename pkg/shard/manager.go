package shard

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// untilWorkersStopped makes a stopping manager wait for its workers without a limit.
const untilWorkersStopped time.Duration = -1

// ConfigureManager sets up the options of a manager so that it runs as this shard. Call it once, right before manager.New, with
// the config that you also pass to manager.New.
//
// The manager's leader election becomes the shard's Lease: controllers start when the Lease is held, and the Lease is released
// after they have stopped. Of the given kinds, the manager's cache contains only objects with this shard's label; selectors that
// the options already contain also apply. Name every kind whose objects carry the label: the ring's resources and their
// controlled resources. Other kinds are cached as without sharding.
//
// If ConfigureManager returns an error, it has changed nothing. It returns an error if the options request what a shard cannot
// do: a leader election of their own, or a shutdown timeout, after which the Lease would be released while workers still run.
// (A Pod's terminationGracePeriodSeconds limits the shutdown without this risk.)
func (s *Shard) ConfigureManager(config *rest.Config, options *manager.Options, kinds ...client.Object) error {
	if err := s.checkOptions(*options); err != nil {
		return fmt.Errorf("configure the manager of shard %s: %w", s.options.Name, err)
	}

	cacheOptions, err := s.cacheOptions(options.Scheme, options.Cache, kinds)
	if err != nil {
		return fmt.Errorf("configure the cache of shard %s: %w", s.options.Name, err)
	}

	namespaces, err := namespacesOf(options.Scheme, cacheOptions)
	if err != nil {
		return fmt.Errorf("configure the cache of shard %s: %w", s.options.Name, err)
	}

	lock, err := s.connect(config)
	if err != nil {
		return err
	}

	s.mu.Lock()
	s.namespaces = namespaces
	s.mu.Unlock()

	s.handover.follow(&cacheOptions, options.Scheme, s.liveReader)
	options.Cache = cacheOptions
	options.LeaderElection = true
	options.LeaderElectionResourceLockInterface = lock
	options.LeaderElectionReleaseOnCancel = true
	options.LeaderElectionNamespace = s.options.Namespace
	options.LeaderElectionID = s.options.Name
	options.LeaseDuration = new(s.options.LeaseDuration)
	options.RenewDeadline = new(s.options.RenewDeadline)
	options.RetryPeriod = new(s.options.RetryPeriod)
	options.GracefulShutdownTimeout = new(untilWorkersStopped)

	return nil
}

// connect returns the lock for the config. It also lets the shard read what it must not take from a cache.
func (s *Shard) connect(config *rest.Config) (*lock, error) {
	lock, err := s.newLock(config)
	if err != nil {
		return nil, err
	}

	// Drains must not queue behind the writes of the controllers.
	config = rest.CopyConfig(config)
	config.QPS, config.RateLimiter = -1, nil

	live, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the client of shard %s for live reads: %w", s.options.Name, err)
	}
	s.readLive(live)

	s.mu.Lock()
	s.lock = lock
	s.mu.Unlock()

	return lock, nil
}

func (s *Shard) checkOptions(o manager.Options) error {
	var errs []error
	if o.LeaderElectionID != "" || o.LeaderElectionResourceLockInterface != nil {
		errs = append(errs, errors.New("remove the leader election: each shard holds a Lease of its own"))
	}

	if o.LeaseDuration != nil || o.RenewDeadline != nil || o.RetryPeriod != nil {
		errs = append(errs, errors.New("set LeaseDuration, RenewDeadline and RetryPeriod in shard.Options instead"))
	}

	if o.GracefulShutdownTimeout != nil && *o.GracefulShutdownTimeout >= 0 {
		errs = append(errs, errors.New("remove GracefulShutdownTimeout: the Lease is released only after all workers have stopped"))
	}

	return errors.Join(errs...)
}

// cacheOptions returns the options with the shard's selector added for the kinds.
func (s *Shard) cacheOptions(sch *runtime.Scheme, o cache.Options, kinds []client.Object) (cache.Options, error) {
	if sch == nil {
		sch = scheme.Scheme
	}

	if len(kinds) == 0 {
		return o, errors.New("name at least one kind whose objects are sharded")
	}
	// Selectors of DefaultNamespaces take precedence over those of a kind, unless the kind has namespaces of its own. A
	// cluster-scoped kind must not have namespaces.
	for namespace, defaults := range o.DefaultNamespaces {
		if defaults.LabelSelector != nil {
			return o, fmt.Errorf("namespace %q of DefaultNamespaces has a label selector: move it to ByObject", namespace)
		}
	}

	keys, err := keysOf(sch, o.ByObject)
	if err != nil {
		return o, err
	}

	byObject := maps.Clone(o.ByObject)
	if byObject == nil {
		byObject = map[client.Object]cache.ByObject{}
	}

	for _, obj := range kinds {
		gvk, err := apiutil.GVKForObject(obj, sch)
		if err != nil {
			return o, fmt.Errorf("determine the kind of %T: %w", obj, err)
		}

		key, ok := keys[gvk]
		if !ok {
			key, keys[gvk] = obj, obj
		}

		byObject[key] = s.restrict(byObject[key], o.DefaultLabelSelector)
	}

	o.ByObject = byObject

	return o, nil
}

// namespacesOf returns, for the namespaced kinds that are not cached in all namespaces, the namespaces in which they are cached.
func namespacesOf(sch *runtime.Scheme, o cache.Options) (map[schema.GroupVersionKind][]string, error) {
	if sch == nil {
		sch = scheme.Scheme
	}

	keys, err := keysOf(sch, o.ByObject)
	if err != nil {
		return nil, err
	}

	namespaces := map[schema.GroupVersionKind][]string{}

	for gvk, key := range keys {
		configs := o.ByObject[key].Namespaces
		if configs == nil {
			configs = o.DefaultNamespaces
		}

		if _, all := configs[metav1.NamespaceAll]; len(configs) > 0 && !all {
			namespaces[gvk] = slices.Sorted(maps.Keys(configs))
		}
	}

	return namespaces, nil
}

// keysOf returns the objects that represent the kinds in the map, whose keys are pointers.
func keysOf(sch *runtime.Scheme, byObject map[client.Object]cache.ByObject) (map[schema.GroupVersionKind]client.Object, error) {
	keys := make(map[schema.GroupVersionKind]client.Object, len(byObject))
	for obj := range byObject {
		gvk, err := apiutil.GVKForObject(obj, sch)
		if err != nil {
			return nil, fmt.Errorf("determine the kind of %T: %w", obj, err)
		}

		keys[gvk] = obj
	}

	return keys, nil
}

// restrict adds the shard's selector to the cache options of a kind.
func (s *Shard) restrict(o cache.ByObject, defaults labels.Selector) cache.ByObject {
	if o.Label == nil {
		o.Label = defaults
	}

	o.Label = s.and(o.Label)

	o.Namespaces = maps.Clone(o.Namespaces)
	for namespace, config := range o.Namespaces {
		if config.LabelSelector != nil {
			config.LabelSelector = s.and(config.LabelSelector)
			o.Namespaces[namespace] = config
		}
	}

	return o
}

// and returns a selector that matches only what both the given selector and the shard's selector match.
func (s *Shard) and(selector labels.Selector) labels.Selector {
	own := s.Selector()
	if selector == nil {
		return own
	}

	requirements, selectable := own.Requirements()
	if !selectable {
		return own
	}

	return selector.DeepCopySelector().Add(requirements...)
}
