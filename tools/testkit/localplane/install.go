package localplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"
)

// The policy about Leases of rings, what describes rings to it, the label of a ring's Leases, and part of its refusal.
// This package imports nothing of the product, so it repeats them: with another name, waitPolicies would wait for
// nothing.
const (
	leasePolicy  = "ring-shards.sharding.timebertt.dev"
	leaseRefusal = "spec.shardNamespaces of the ring does not list it"
	ringLabel    = "alpha.sharding.timebertt.dev/clusterring"
)

var parameterKind = schema.GroupVersionKind{Group: "sharding.timebertt.dev", Version: "v1alpha1",
	Kind: "PolicyParameter"}

// fieldOwner is the field manager of Install.
const fieldOwner = client.FieldOwner("localplane")

// installed lists the kinds that Install applies, in this order. Other kinds, such as Deployments, need nodes. So do
// the Pods of a StatefulSet, but processes that play them read how many there should be.
var installed = []string{
	"CustomResourceDefinition", "Namespace", "ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding",
	"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicy",
	"MutatingAdmissionPolicyBinding", "ClusterRing", "StatefulSet",
	"PriorityLevelConfiguration", "FlowSchema",
}

// Install applies manifests with server-side apply: custom resource definitions (it waits until they are served),
// namespaces, service accounts, RBAC, admission policies, ClusterRings, StatefulSets, and the priorities of requests.
// It skips objects of other kinds.
//
// A path is a YAML file, or a directory with a kustomization.yaml whose resources are followed. Relative paths start at
// the root of the repository. On return, aggregated ClusterRoles are complete, also without a controller manager.
func (p *Plane) Install(ctx context.Context, paths ...string) error {
	var objects []*unstructured.Unstructured

	for _, path := range paths {
		found, err := Manifests(path)
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
			if err := p.waitServed(objects); err != nil {
				return err
			}
		}
	}

	if err := p.Aggregate(ctx); err != nil {
		return err
	}

	return p.waitPolicies(ctx)
}

// waitPolicies waits until the policy about Leases of rings is in force, if it is installed. From when the API server
// knows a policy with a parameter until it has listed the parameters, it refuses all writes that the policy is about,
// so a write that is allowed shows nothing. A ring that exists only in the parameter has its shards in no namespace:
// the policy is in force when it says so.
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

// waitRefused waits until the policy about Leases of rings refuses a Lease of a ring that has its shards elsewhere. The
// Lease is that of a user who may create Leases, but not change rings.
func (p *Plane) waitRefused(ctx context.Context) error {
	config := rest.CopyConfig(p.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:kube-controller-manager"}

	user, err := client.New(config, client.Options{Scheme: p.Client.Scheme(), Mapper: p.Client.RESTMapper()})
	if err != nil {
		return fmt.Errorf("create a client without rights on rings: %w", err)
	}

	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "probe",
			Labels: map[string]string{ringLabel: "probe"}},
		Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: new(int32(1))},
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

// allowLocalURLs changes the admission policy of webhook configurations: it allows the assigner only the URLs in its
// variable urls, which must contain the addresses of this machine, because it has no network of Services.
func allowLocalURLs(objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		variables, _, _ := unstructured.NestedSlice(o.Object, "spec", "variables") // none in other objects

		for i := range variables {
			if v, ok := variables[i].(map[string]any); ok && v["name"] == "urls" {
				v["expression"] = "['https://127.0.0.1:', 'https://localhost:']"

				return unstructured.SetNestedSlice(o.Object, variables, "spec", "variables") //nolint:wrapcheck // cannot fail: spec is a map
			}
		}
	}

	return nil
}

func (p *Plane) apply(ctx context.Context, o *unstructured.Unstructured) error {
	err := p.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o.DeepCopy()), fieldOwner, client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", o.GetKind(), client.ObjectKeyFromObject(o), err)
	}

	return nil
}

// waitServed waits until all versions of the custom resource definitions among the objects are served.
func (p *Plane) waitServed(objects []*unstructured.Unstructured) error {
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

	if err := envtest.WaitForCRDs(p.Config, crds, envtest.CRDInstallOptions{MaxTime: startTimeout,
		PollInterval: pollInterval}); err != nil {
		return fmt.Errorf("wait until the API server serves custom resources: %w", err)
	}

	return nil
}

// Manifests returns the objects of a YAML file, or of a directory with a kustomization.yaml whose resources are
// followed. Relative paths start at the root of the repository.
func Manifests(path string) ([]*unstructured.Unstructured, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(Root(), path)
	}

	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}

	if !info.IsDir() {
		return readFile(path)
	}

	file := filepath.Join(path, "kustomization.yaml")

	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}

	// Other fields are an error: without their patches, the manifests would differ from those of a cluster.
	var k struct {
		APIVersion, Kind string
		Resources        []string
	}
	if err := yaml.UnmarshalStrict(content, &k); err != nil {
		return nil, fmt.Errorf("read %s (only resources are supported): %w", file, err)
	}

	var objects []*unstructured.Unstructured

	for _, resource := range k.Resources {
		found, err := Manifests(filepath.Join(path, resource))
		if err != nil {
			return nil, err
		}

		objects = append(objects, found...)
	}

	return objects, nil
}

// readFile returns the objects of one YAML file.
func readFile(path string) ([]*unstructured.Unstructured, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}

	var objects []*unstructured.Unstructured

	for document := range strings.SplitSeq(string(content), "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}

		if len(object.Object) > 0 { // otherwise, comments only
			objects = append(objects, object)
		}
	}

	return objects, nil
}

// Aggregate does what kube-controller-manager does in the background: it gives every ClusterRole with an aggregation
// rule the rules of the selected roles. Without it, tests would need that process and wait for it.
func (p *Plane) Aggregate(ctx context.Context) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var roles rbacv1.ClusterRoleList
		if err := p.Client.List(ctx, &roles); err != nil {
			return err //nolint:wrapcheck // wrapped below
		}

		for i := range roles.Items {
			if err := p.aggregateInto(ctx, &roles.Items[i], roles.Items); err != nil {
				return err
			}
		}

		return nil
	})
	if err != nil {
		return fmt.Errorf("aggregate cluster roles: %w", err)
	}

	return nil
}

// aggregateInto aggregates the rules of all other roles into one role.
func (p *Plane) aggregateInto(ctx context.Context, role *rbacv1.ClusterRole, all []rbacv1.ClusterRole) error {
	if role.AggregationRule == nil {
		return nil
	}

	old := role.DeepCopy()
	role.Rules = nil

	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			return fmt.Errorf("aggregation rule of cluster role %s: %w", role.Name, err)
		}

		for j := range all {
			if all[j].Name != role.Name && selector.Matches(labels.Set(all[j].Labels)) {
				role.Rules = append(role.Rules, all[j].Rules...)
			}
		}
	}

	if equality.Semantic.DeepEqual(role.Rules, old.Rules) {
		return nil
	}

	return p.Client.Patch(ctx, role, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})) //nolint:wrapcheck // the caller wraps
}
