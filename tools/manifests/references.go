package manifests

import (
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// Installation contains the objects of one kustomization that refer to each other.
type Installation struct {
	// Deployments contains the StatefulSets, too.
	Deployments []*appsv1.Deployment
	services    []*corev1.Service
	budgets     []*policyv1.PodDisruptionBudget
	bindings    []*rbacv1.RoleBinding // and ClusterRoleBindings, which have the same fields
	accounts    []string              // namespace/name
	roles       []string              // kind namespace/name
	namespaces  map[string]map[string]string
}

// Read builds an Installation from objects. It returns an error if an object has an unknown field.
func Read(objects []*unstructured.Unstructured) (*Installation, error) {
	in := &Installation{namespaces: map[string]map[string]string{}}
	for _, o := range objects {
		if err := in.add(o); err != nil {
			return nil, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}

	return in, nil
}

func (in *Installation) add(o *unstructured.Unstructured) error {
	switch o.GetKind() {
	case "Deployment":
		return into(o, &in.Deployments)
	case "StatefulSet":
		set, d := &appsv1.StatefulSet{}, &appsv1.Deployment{} // its pods are in the same place
		in.Deployments = append(in.Deployments, d)

		return errors.Join(convert(o, set), runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, d))
	case "Service":
		return into(o, &in.services)
	case "PodDisruptionBudget":
		return into(o, &in.budgets)
	case "ServiceAccount":
		in.accounts = append(in.accounts, o.GetNamespace()+"/"+o.GetName())
	case "Namespace":
		in.namespaces[o.GetName()] = o.GetLabels()
	case "Role", "ClusterRole":
		in.roles = append(in.roles, o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName())
	case "RoleBinding", "ClusterRoleBinding":
		return into(o, &in.bindings)
	}

	return nil
}

func into[T any](o *unstructured.Unstructured, list *[]*T) error {
	typed := new(T)
	if err := convert(o, typed); err != nil {
		return err
	}

	*list = append(*list, typed)

	return nil
}

func convert(o *unstructured.Unstructured, typed any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, typed, true); err != nil {
		return fmt.Errorf("read it: %w", err)
	}

	return nil
}

// Beside lets the installation refer to the roles and service accounts of another one, which is installed before.
func (in *Installation) Beside(other *Installation) {
	in.roles, in.accounts = append(in.roles, other.roles...), append(in.accounts, other.accounts...)
}

// Dangling returns the references to missing objects, one sentence each.
func (in *Installation) Dangling() []string {
	var r report

	for _, d := range in.Deployments {
		account := d.Namespace + "/" + d.Spec.Template.Spec.ServiceAccountName
		r.problem(!slices.Contains(in.accounts, account), "Deployment %s: there is no service account %s", d.Name, account)
		r.problem(in.namespaces[d.Namespace]["pod-security.kubernetes.io/enforce"] != "restricted",
			"Deployment %s: namespace %s does not enforce restricted Pod Security", d.Name, d.Namespace)
		r.problem(!in.selects(d.Namespace, d.Spec.Selector, d.Name), "Deployment %s does not select its own pods", d.Name)

		budgets := 0
		for _, b := range in.budgets {
			if in.selects(b.Namespace, b.Spec.Selector, d.Name) {
				budgets++
			}
		}

		r.problem(budgets != 1, "Deployment %s has %d PodDisruptionBudgets", d.Name, budgets)
	}

	for _, b := range in.budgets {
		r.problem(!in.selects(b.Namespace, b.Spec.Selector, ""), "PodDisruptionBudget %s selects no pods", b.Name)
	}

	in.danglingPorts(&r)
	in.danglingRights(&r)

	return r.found
}

// selects reports whether a selector matches the pods of the named Deployment, or of any Deployment if the name is
// empty.
func (in *Installation) selects(namespace string, selector *metav1.LabelSelector, name string) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)

	return err == nil && slices.ContainsFunc(in.Deployments, func(d *appsv1.Deployment) bool {
		return d.Namespace == namespace && (name == "" || d.Name == name) && s.Matches(labels.Set(d.Spec.Template.Labels))
	})
}

func (in *Installation) danglingPorts(r *report) {
	for _, s := range in.services {
		for _, port := range s.Spec.Ports {
			named := slices.ContainsFunc(in.Deployments, func(d *appsv1.Deployment) bool {
				return in.selects(s.Namespace, &metav1.LabelSelector{MatchLabels: s.Spec.Selector}, d.Name) &&
					slices.ContainsFunc(d.Spec.Template.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool {
						return p.Name == port.TargetPort.StrVal
					})
			})
			r.problem(!named, "Service %s: no pod has a port %q", s.Name, port.TargetPort.String())
		}
	}
}

func (in *Installation) danglingRights(r *report) {
	for _, b := range in.bindings {
		namespace := b.Namespace
		if b.RoleRef.Kind == "ClusterRole" {
			namespace = ""
		}

		role := b.RoleRef.Kind + " " + namespace + "/" + b.RoleRef.Name
		r.problem(!slices.Contains(in.roles, role), "binding %s: there is no %s", b.Name, role)

		for _, s := range b.Subjects {
			account := s.Namespace + "/" + s.Name
			r.problem(s.Kind == rbacv1.ServiceAccountKind && !slices.Contains(in.accounts, account),
				"binding %s: there is no service account %s", b.Name, account)
		}
	}
}
