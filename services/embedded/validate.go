package embedded

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// The limits of the CustomResourceDefinition. A test compares what both accept.
const (
	maxName       = 63
	maxGroup      = 253
	maxResources  = 256
	maxControlled = 32
	maxActive     = 2000
	maxShardNames = 1000
	patternLabel  = `[a-z0-9]([-a-z0-9]*[a-z0-9])?`
	patternGroups = patternLabel + `(\.` + patternLabel + `)*`
)

var (
	ringPattern     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)
	resourcePattern = regexp.MustCompile(`^` + patternLabel + `$`)
	namePattern     = regexp.MustCompile(`^` + patternGroups + `$`)
	groupPattern    = regexp.MustCompile(`^(` + patternGroups + `)?$`)

	protectedGroups = sets.New("admissionregistration.k8s.io", "events.k8s.io", "rbac.authorization.k8s.io", v1alpha1.GroupVersion.Group)
)

type groupResource struct{ group, resource string }

func validateName(ring string) error {
	switch {
	case ring == "":
		return errors.New("ring: set its name")
	case len(ring) > maxName || !ringPattern.MatchString(ring):
		return fmt.Errorf("ring: the name %q must be a valid label value, of small letters, of at most %d characters", ring, maxName)
	}

	return nil
}

// validateSpec returns everything that is wrong with a spec which no API server validates, or nil.
func validateSpec(spec v1alpha1.ClusterRingSpec) error {
	var errs []error

	if n := len(spec.Resources); n < 1 || n > maxResources {
		errs = append(errs, fmt.Errorf("spec.resources has %d entries: it needs 1 to %d", n, maxResources))
	}

	main := sets.New[groupResource]()

	for i, r := range spec.Resources {
		at := fmt.Sprintf("spec.resources[%d]", i)
		gr := groupResource{r.Group, r.Resource}

		if main.Has(gr) {
			errs = append(errs, fmt.Errorf("%s lists %s of group %q again", at, r.Resource, r.Group))
		}

		main.Insert(gr)

		errs = append(errs, validateResource(at, gr), validateKey(at+".key", r.Key, spec.ShardLabel))
	}

	for i, r := range spec.Resources {
		errs = append(errs, validateControlled(fmt.Sprintf("spec.resources[%d].controlledResources", i), r.ControlledResources, main))
	}

	if n := spec.ActiveShards; n != nil && (*n < 1 || *n > maxActive) {
		errs = append(errs, fmt.Errorf("spec.activeShards is %d: it must be 1 to %d", *n, maxActive))
	}

	if spec.FenceMode() != v1alpha1.FenceOff {
		errs = append(errs, errors.New("spec.fence: a ring with an embedded sharder cannot have a fence: the shards themselves write the labels of all objects"))
	}

	_, err := spec.ObjectRequirements()

	return errors.Join(append(errs, validateNames(spec), validateSelector(spec.NamespaceSelector), err)...)
}

// validateKey returns what is wrong with the key of a resource. shardLabel is that of the ring; empty if it has none of its own.
func validateKey(at string, k *v1alpha1.ObjectKey, shardLabel string) error {
	if k == nil {
		return nil
	}

	domain, _, _ := strings.Cut(k.Label, "/")

	switch {
	case k.Type == v1alpha1.KeyName || k.Type == v1alpha1.KeyNamespace:
		if k.Label != "" {
			return fmt.Errorf("%s has a label, which only a key of type %s has", at, v1alpha1.KeyLabel)
		}

		return nil
	case k.Type != v1alpha1.KeyLabel:
		return fmt.Errorf("%s.type is %q: it must be %s, %s, or %s", at, k.Type, v1alpha1.KeyName, v1alpha1.KeyNamespace, v1alpha1.KeyLabel)
	case domain == v1alpha1.GroupVersion.Group || strings.HasSuffix(domain, "."+v1alpha1.GroupVersion.Group),
		shardLabel != "" && (k.Label == shardLabel || k.Label == shardLabel+contract.DrainSuffix):
		return fmt.Errorf("%s.label is %s, a label of the ring itself, which changes when the object moves", at, k.Label)
	}

	if problems := validation.IsQualifiedName(k.Label); len(problems) > 0 {
		return fmt.Errorf("%s.label %q is not the key of a label: %s", at, k.Label, strings.Join(problems, "; "))
	}

	return nil
}

// validateNames returns what is wrong with the label of the ring and the names of its shards.
func validateNames(spec v1alpha1.ClusterRingSpec) error {
	var errs []error

	if spec.ShardLabel != "" {
		if problems := contract.ValidateShardLabel(spec.ShardLabel); len(problems) > 0 {
			errs = append(errs, fmt.Errorf("spec.shardLabel is %q: %s", spec.ShardLabel, strings.Join(problems, "; ")))
		}
	}

	if len(spec.ShardNames) > maxShardNames {
		errs = append(errs, fmt.Errorf("spec.shardNames has %d entries: at most %d are allowed", len(spec.ShardNames), maxShardNames))
	}

	seen := sets.New[string]()

	for i, name := range spec.ShardNames {
		if len(name) > maxName || !namePattern.MatchString(name) || name == contract.LeaseControllerIdentity || seen.Has(name) {
			errs = append(errs, fmt.Errorf("spec.shardNames[%d] is %q: each name must be there once, be a DNS subdomain of at most %d characters, and not be that of the lease monitor", i, name, maxName))
		}

		seen.Insert(name)
	}

	return errors.Join(errs...)
}

func validateControlled(at string, list []v1alpha1.ControlledResource, main sets.Set[groupResource]) error {
	var errs []error

	seen := sets.New[groupResource]()

	if len(list) > maxControlled {
		errs = append(errs, fmt.Errorf("%s has %d entries: at most %d are allowed", at, len(list), maxControlled))
	}

	for i, c := range list {
		gr := groupResource{c.Group, c.Resource}
		errs = append(errs, validateResource(fmt.Sprintf("%s[%d]", at, i), gr))

		if main.Has(gr) {
			errs = append(errs, fmt.Errorf("%s[%d]: %s must not be listed both as a main and as a controlled resource", at, i, c.Resource))
		}

		if seen.Has(gr) {
			errs = append(errs, fmt.Errorf("%s[%d]: %s is listed again", at, i, c.Resource))
		}

		seen.Insert(gr)
	}

	return errors.Join(errs...)
}

func validateResource(at string, gr groupResource) error {
	switch {
	case len(gr.resource) > maxName || !resourcePattern.MatchString(gr.resource):
		return fmt.Errorf("%s.resource is %q: it must be the plural name of a resource, as in the path of the API", at, gr.resource)
	case len(gr.group) > maxGroup || !groupPattern.MatchString(gr.group):
		return fmt.Errorf("%s.group is %q: it must be an API group, empty for the core group", at, gr.group)
	case protectedGroups.Has(gr.group), gr == groupResource{"coordination.k8s.io", "leases"},
		gr.group == "" && slices.Contains([]string{"events", "nodes"}, gr.resource):
		return fmt.Errorf("%s: a ring cannot shard %s of group %q: the sharder and the cluster depend on them", at, gr.resource, gr.group)
	}

	return nil
}

func validateSelector(selector *metav1.LabelSelector) error {
	if selector == nil {
		return nil
	}

	if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
		return fmt.Errorf("spec.namespaceSelector: %w", err)
	}

	return nil
}
