// Package setup describes what an operator needs to become sharded: its ring, the permissions of the shards and of the
// services, the patch of its Deployment, and the change of its main function. deploy/example has the same by hand.
package setup

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

// The roles of resources, as in package shard.
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

		if len(chain) >= contract.MaxDepth {
			return failure.New("name fewer levels", "--controlled %s: an object follows its main object in at most %d levels", written,
				contract.MaxDepth)
		}

		for at, name := range chain {
			resource, kind, err := resolve(mapper, name)
			if err != nil {
				return err
			}

			controls := at < len(chain)-1

			known := slices.IndexFunc(o.Resources, func(k Resource) bool {
				return k.GroupResource == resource && k.Role == role && role == roleControlled
			})
			if known >= 0 { // another chain has it, too
				o.Resources[known].Controls = o.Resources[known].Controls || controls
				continue
			}

			o.Resources = append(o.Resources, Resource{resource, kind, role, controls})
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

	err = errors.Join(
		valid("the plural name in PLURAL.GROUP", r.Resource, validation.IsDNS1123Label(r.Resource)),
		valid("the group in "+r.Resource+".GROUP", r.Group, validation.IsDNS1123Subdomain(r.Group)),
	)
	if err == nil {
		kind.Version, kind.Kind = "v1", strings.ToUpper(r.Resource[:1])+strings.TrimSuffix(r.Resource[1:], "s")
	}

	return kind, err
}

// Validate returns what is wrong with the resources, the names, and the number of slots.
func (o *Operator) Validate() error {
	last := contract.SlotName(o.Ring, cmp.Or(o.Slots, contract.MaxSlots)-1)

	for i, r := range o.Resources {
		if slices.ContainsFunc(o.Resources[:i], func(k Resource) bool { return k.GroupResource == r.GroupResource }) {
			return failure.New("list it once, either as main or as controlled", "%s is listed twice", r.GroupResource)
		}
	}

	return errors.Join(
		valid("RING", o.Ring, validation.IsDNS1123Subdomain(o.Ring)),
		valid("the last slot of RING", last, validation.IsValidLabelValue(last)),
		valid("--slots", strconv.Itoa(o.Slots), validation.IsInRange(o.Slots, 0, contract.MaxSlots)),
		valid("--namespace", o.Namespace, validation.IsDNS1123Label(o.Namespace)),
		valid("--service-account", o.ServiceAccount, validation.IsDNS1123Subdomain(o.ServiceAccount)),
		valid("--deployment", o.Deployment, validation.IsDNS1123Subdomain(o.Deployment)),
		valid("--container", o.Container, validation.IsDNS1123Label(o.Container)),
	)
}

func valid(what, name string, problems []string) error {
	if len(problems) > 0 {
		return failure.New("see kubectl ring init --help", "%s: %q is invalid: %s", what, name, strings.Join(problems, "; "))
	}

	return nil
}
