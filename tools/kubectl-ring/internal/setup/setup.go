// Package setup describes what an operator needs to become sharded: its ring, the permissions of the shards and of the
// services, the patch of its Deployment, and the change of its main function. deploy/example has the same by hand.
package setup

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

// The roles of resources, which are also names of functions of package shard.
const roleMain, roleControlled = "Main", "Controlled"

// Operator is a controller in a Deployment.
type Operator struct {
	// These are the names of its ring, and of where it runs.
	Ring, Namespace, ServiceAccount, Deployment, Container string
	// Slots is the number of its shards. 0: as many as the Deployment has replicas.
	Slots int
	// Fence makes the API server report writes of shards to objects of other shards.
	Fence bool
	// Resources are those of the ring, the main ones first.
	Resources []Resource
}

// Resource is a resource of a ring.
type Resource struct {
	schema.GroupResource

	// Kind is the kind of its objects, which may be a guess.
	Kind schema.GroupVersionKind
	// Role is roleMain or roleControlled.
	Role string
	// Controls is whether objects of another controlled resource follow its objects.
	Controls bool
}

// Resolve adds the resources of the ring. A controlled one may be a chain, such as replicasets.apps:pods. mapper is
// that of the cluster. Nil: there is no cluster, and resources have their plural names, with their groups.
func (o *Operator) Resolve(mapper meta.RESTMapper, mains, controlled []string) error {
	for i, written := range slices.Concat(mains, controlled) {
		role, chain := roleMain, []string{written}
		if i >= len(mains) {
			role, chain = roleControlled, strings.Split(written, ":")
		}

		for at, name := range chain {
			resource, kind, err := resolve(mapper, name)
			if err != nil {
				return err
			}

			o.Resources = append(o.Resources, Resource{resource, kind, role, at < len(chain)-1})
		}
	}

	return nil
}

func resolve(mapper meta.RESTMapper, name string) (r schema.GroupResource, kind schema.GroupVersionKind, err error) {
	r = schema.ParseGroupResource(name)
	if mapper == nil {
		kind, err = assume(r)
		return r, kind, err
	}

	found, err := mapper.ResourceFor(r.WithVersion(""))
	if err == nil {
		kind, err = mapper.KindFor(found)
	}

	if meta.IsNoMatchError(err) {
		err = failure.New("see what there is: kubectl api-resources; with --offline, the cluster is not asked",
			"the cluster has no resource %q", name)
	} else if err != nil {
		err = failure.New("check the kubeconfig, or do not ask the cluster: --offline", "ask for %s: %w", name, err)
	}

	return found.GroupResource(), kind, err
}

// assume returns the kind of a resource of Kubernetes, or what the kind of a custom resource could be.
func assume(r schema.GroupResource) (kind schema.GroupVersionKind, err error) {
	for _, version := range scheme.Scheme.PrioritizedVersionsForGroup(r.Group) {
		for name := range scheme.Scheme.KnownTypes(version) {
			kind := version.WithKind(name)
			if plural, _ := meta.UnsafeGuessKindToResource(kind); plural.Resource == r.Resource {
				return kind, nil
			}
		}
	}

	err = valid("the plural name in PLURAL.GROUP", r.Resource, validation.IsDNS1123Label)
	if err == nil {
		err = valid("the group in "+r.Resource+".GROUP", r.Group, validation.IsDNS1123Subdomain)
	}

	if err == nil {
		kind.Version, kind.Kind = "v1", strings.ToUpper(r.Resource[:1])+strings.TrimSuffix(r.Resource[1:], "s")
	}

	return kind, err
}

// Validate returns what is wrong with the resources, the names, and the number of slots.
func (o *Operator) Validate() error {
	for i, r := range o.Resources {
		if slices.ContainsFunc(o.Resources[:i], func(k Resource) bool { return k.GroupResource == r.GroupResource }) {
			return failure.New("list it once, either as main or as controlled", "%s is listed twice", r.GroupResource)
		}
	}

	if o.Slots < 0 || o.Slots > contract.MaxSlots {
		return failure.New("", "--slots: %d is not from 1 to %d", o.Slots, contract.MaxSlots)
	}

	for _, n := range []struct {
		what, name string
		check      func(string) []string
	}{
		{"RING", o.Ring, validation.IsDNS1123Subdomain},
		{"the last slot of RING", contract.SlotName(o.Ring, max(o.Slots-1, 0)), validation.IsValidLabelValue},
		{"--namespace", o.Namespace, validation.IsDNS1123Label},
		{"--service-account", o.ServiceAccount, validation.IsDNS1123Subdomain},
		{"--deployment", o.Deployment, validation.IsDNS1123Subdomain},
		{"--container", o.Container, validation.IsDNS1123Label},
	} {
		if err := valid(n.what, n.name, n.check); err != nil {
			return err
		}
	}

	return nil
}

func valid(what, name string, check func(string) []string) error {
	if problems := check(name); len(problems) > 0 {
		return failure.New("see kubectl ring init --help", "%s: %q is invalid: %s", what, name, strings.Join(problems, "; "))
	}

	return nil
}
