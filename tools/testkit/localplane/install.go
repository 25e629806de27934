package localplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// The policy about Leases of rings, what describes rings to it, the label of a ring's Leases, and part of its refusal. This package imports
// nothing of the product, so it repeats them: with another name, waitPolicies would wait for nothing.
const (
	leasePolicy  = "ring-shards.sharding.timebertt.dev"
	leaseRefusal = "spec.shardNamespaces of the ring does not list it"
	ringLabel    = "alpha.sharding.timebertt.dev/clusterring"
)

var parameterKind = schema.GroupVersionKind{Group: "sharding.timebertt.dev", Version: "v1alpha1", Kind: "PolicyParameter"}

// fieldOwner is the field manager of Install.
const fieldOwner = client.FieldOwner("localplane")

// installed lists the kinds that Install applies, in this order. Other kinds, such as Deployments, need nodes. So do the Pods of a StatefulSet, but
// processes that play them read how many there should be.
var installed = []string{
	"CustomResourceDefinition", "Namespace", "ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding",
	"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "ClusterRing", "StatefulSet",
	"PriorityLevelConfiguration", "FlowSchema",
}

// Install applies manifests with server-side apply: custom resource definitions (it waits until they are served), namespaces, service
// accounts, RBAC, admission policies, ClusterRings, StatefulSets, and the priorities of requests. It skips objects of other kinds.
//
// A path is a YAML file, or a directory with a kustomization.yaml whose resources are followed. Relative paths start at the root of the
// repository. On return, aggregated ClusterRoles are complete, also without a controller manager.
func (p *Plane) Install(ctx context.Context, paths ...string) error {
	var objects []*unstructured.Unstructured

	for _, path := range paths {
		found, err := readManifests(fromRoot(path))
		if err != nil {
			return err
		}

		objects = append(objects, found...)
	}

	if err := allowLocalURLs(objects); err != nil {
		return err
	}

	for _, kind := range installed {
		for _, o := range objects {
			if o.GetKind() == kind {
				if err := p.apply(ctx, o); err != nil {
					return err
				}
			}
		}

		if kind == "CustomResourceDefinition" {
			if err := p.waitServed(ctx, objects); err != nil {
				return err
			}
		}
	}

	if err := p.Aggregate(ctx); err != nil {
		return err
	}

	return p.waitPolicies(ctx)
}

// waitPolicies waits until the policy about Leases of rings is in force, if it is installed. From when the API server knows a policy with a
// parameter until it has listed the parameters, it refuses all writes that the policy is about, so a write that is allowed shows nothing. A ring
// that exists only in the parameter has its shards in no namespace: the policy is in force when it says so.
func (p *Plane) waitPolicies(ctx context.Context) error {
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{}

	err := p.Client.Get(ctx, client.ObjectKey{Name: leasePolicy}, policy)
	if apierrors.IsNotFound(err) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("read the policy about Leases of rings: %w", err)
	}

	parameter := &unstructured.Unstructured{Object: map[string]any{
		"data": map[string]any{"namespaces.probe": "none", "from": "probe", "to": "probe-"},
	}}
	parameter.SetGroupVersionKind(parameterKind)
	parameter.SetName("probe")

	err = p.Client.Create(ctx, parameter)
	if apierrors.IsAlreadyExists(err) {
		return nil // its writer waits
	}

	if err != nil {
		return fmt.Errorf("create a parameter for the policy about Leases of rings: %w", err)
	}

	return errors.Join(p.waitRefused(ctx), client.IgnoreNotFound(p.Client.Delete(ctx, parameter)))
}

// waitRefused waits until the policy about Leases of rings refuses a Lease of a ring that has its shards elsewhere. The Lease is that of a user
// who may create Leases, but not change rings.
func (p *Plane) waitRefused(ctx context.Context) error {
	config := rest.CopyConfig(p.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:kube-controller-manager"}

	user, err := client.New(config, client.Options{Scheme: p.Client.Scheme(), Mapper: p.Client.RESTMapper()})
	if err != nil {
		return fmt.Errorf("create a client without rights on rings: %w", err)
	}

	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "probe", Labels: map[string]string{ringLabel: "probe"}},
		Spec:       coordinationv1.LeaseSpec{LeaseDurationSeconds: new(int32(1))},
	}

	var last error

	err = wait.PollUntilContextTimeout(ctx, pollInterval, startTimeout, true, func(ctx context.Context) (bool, error) {
		last = user.Create(ctx, lease.DeepCopy(), client.DryRunAll)

		return last != nil && strings.Contains(last.Error(), leaseRefusal), nil
	})
	if err != nil {
		return fmt.Errorf("wait until the API server refuses a Lease by its admission policies: %w", errors.Join(err, last))
	}

	return nil
}

// allowLocalURLs changes the admission policies of webhook configurations: they allow the assigner only the URLs in their variable urls, which
// must contain the addresses of this machine, because it has no network of Services. It finds the policies by what they match, not by name.
func allowLocalURLs(objects []*unstructured.Unstructured) error {
	const variable, local = "urls", "['https://127.0.0.1:', 'https://localhost:']"

	var unchanged []string

	for _, o := range objects {
		if o.GetKind() != "ValidatingAdmissionPolicy" {
			continue
		}

		policy := &admissionregistrationv1.ValidatingAdmissionPolicy{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, policy); err != nil {
			return fmt.Errorf("read ValidatingAdmissionPolicy %s: %w", o.GetName(), err)
		}

		variables := policy.Spec.Variables

		i := slices.IndexFunc(variables, func(v admissionregistrationv1.Variable) bool { return v.Name == variable })
		switch {
		case !matchesWebhooks(policy):
		case i < 0:
			unchanged = append(unchanged, policy.Name)
		default:
			list, _, _ := unstructured.NestedSlice(o.Object, "spec", "variables")
			list[i] = map[string]any{"name": variable, "expression": local}

			return unstructured.SetNestedSlice(o.Object, list, "spec", "variables") //nolint:wrapcheck // cannot fail: spec is a map
		}
	}

	if unchanged == nil {
		return nil // nothing restricts webhooks
	}

	return fmt.Errorf("no ValidatingAdmissionPolicy of webhook configurations (%s) has the variable %s, which must contain the URLs of this machine: "+
		"adapt tools/testkit/localplane to the new name of the variable", strings.Join(unchanged, ", "), variable)
}

// matchesWebhooks reports whether the policy matches the configurations of mutating webhooks.
func matchesWebhooks(policy *admissionregistrationv1.ValidatingAdmissionPolicy) bool {
	constraints := policy.Spec.MatchConstraints

	return constraints != nil && slices.ContainsFunc(constraints.ResourceRules, func(r admissionregistrationv1.NamedRuleWithOperations) bool {
		return slices.Contains(r.Resources, "mutatingwebhookconfigurations")
	})
}

func (p *Plane) apply(ctx context.Context, o *unstructured.Unstructured) error {
	err := p.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o.DeepCopy()), fieldOwner, client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", o.GetKind(), client.ObjectKeyFromObject(o), err)
	}

	return nil
}

// waitServed waits until all versions of the custom resource definitions among the objects are served.
func (p *Plane) waitServed(ctx context.Context, objects []*unstructured.Unstructured) error {
	var crds []*apiextensionsv1.CustomResourceDefinition

	for _, o := range objects {
		if o.GetKind() != "CustomResourceDefinition" {
			continue
		}

		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, crd); err != nil {
			return fmt.Errorf("read CustomResourceDefinition %s: %w", o.GetName(), err)
		}

		crds = append(crds, crd)
	}

	err := envtest.WaitForCRDs(p.Config, crds, envtest.CRDInstallOptions{MaxTime: startTimeout, PollInterval: pollInterval})
	if err == nil {
		return nil
	}

	errs := []error{err}
	for _, crd := range crds {
		errs = append(errs, p.crdProblem(ctx, crd.Name))
	}

	return fmt.Errorf("wait until the API server serves custom resources: %w", errors.Join(errs...))
}

// crdProblem returns the conditions of the definition, which report problems such as names in use.
func (p *Plane) crdProblem(ctx context.Context, name string) error {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	u.SetName(name)

	if err := p.Client.Get(ctx, client.ObjectKeyFromObject(u), u); err != nil {
		return fmt.Errorf("get CustomResourceDefinition %s: %w", name, err)
	}

	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")

	return fmt.Errorf("conditions of CustomResourceDefinition %s: %v", name, conditions)
}
