package localplane

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fieldOwner is the field manager of Install.
const fieldOwner = client.FieldOwner("localplane")

// installed lists the kinds that Install applies, in this order. Other kinds, such as Deployments, need nodes.
var installed = []string{
	"CustomResourceDefinition", "Namespace", "ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding",
	"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ClusterRing",
}

// Install applies manifests with server-side apply: custom resource definitions (it waits until they are served), namespaces, service
// accounts, RBAC, admission policies, and ClusterRings. It skips objects of other kinds.
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

	for _, kind := range installed {
		for _, o := range objects {
			if o.GetKind() == kind {
				if err := p.apply(ctx, adapted(o)); err != nil {
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

	return p.Aggregate(ctx)
}

// adapted returns the object as this control plane needs it. There is no network of Services, so the policy of the assigner must allow URLs of
// this machine.
func adapted(o *unstructured.Unstructured) *unstructured.Unstructured {
	if o.GetKind() != "ValidatingAdmissionPolicy" || o.GetName() != "assigner.sharding.timebertt.dev" {
		return o
	}

	o = o.DeepCopy()
	variables, _, _ := unstructured.NestedSlice(o.Object, "spec", "variables")

	for _, v := range variables {
		if v, ok := v.(map[string]any); ok && v["name"] == "urls" {
			v["expression"] = "['https://127.0.0.1:', 'https://localhost:']"
		}
	}

	_ = unstructured.SetNestedSlice(o.Object, variables, "spec", "variables")

	return o
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
	finder, err := discovery.NewDiscoveryClientForConfig(p.Config)
	if err != nil {
		return fmt.Errorf("create a discovery client: %w", err)
	}

	for _, o := range objects {
		if o.GetKind() != "CustomResourceDefinition" {
			continue
		}

		var crd apiextensionsv1.CustomResourceDefinition
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &crd); err != nil {
			return fmt.Errorf("read CustomResourceDefinition %s: %w", o.GetName(), err)
		}

		for _, v := range crd.Spec.Versions {
			if !v.Served {
				continue
			}

			gv := crd.Spec.Group + "/" + v.Name

			err := wait.PollUntilContextTimeout(ctx, pollInterval, startTimeout, true, func(ctx context.Context) (bool, error) {
				return serves(ctx, finder, gv, crd.Spec.Names.Plural), nil
			})
			if err != nil {
				return fmt.Errorf("wait until the API server serves %s of %s: %w", crd.Spec.Names.Plural, gv, errors.Join(err, p.crdProblem(ctx, crd.Name)))
			}
		}
	}

	return nil
}

func serves(ctx context.Context, finder *discovery.DiscoveryClient, gv, plural string) bool {
	list, err := finder.ServerResourcesForGroupVersionWithContext(ctx, gv)
	if err != nil {
		return false
	}

	for i := range list.APIResources {
		if list.APIResources[i].Name == plural {
			return true
		}
	}

	return false
}

// crdProblem returns the conditions of the definition, which report problems such as names in use.
func (p *Plane) crdProblem(ctx context.Context, name string) error {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	u.SetName(name)

	if err := p.Client.Get(ctx, client.ObjectKeyFromObject(u), u); err != nil {
		return fmt.Errorf("get CustomResourceDefinition %s: %w", name, err)
	}

	conditions, _, err := unstructured.NestedSlice(u.Object, "status", "conditions")
	if err != nil {
		return fmt.Errorf("read conditions of CustomResourceDefinition %s: %w", name, err)
	}

	return fmt.Errorf("conditions of CustomResourceDefinition %s: %v", name, slices.Clip(conditions))
}
