package registration

import (
	"context"
	"errors"
	"fmt"
	"maps"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// fenced brings the ring's fence into the state that it should have, and returns the condition about it, also with an error; nil if there is
// nothing to report. A ring that is being deleted keeps its fence.
func (r *Reconciler) fenced(ctx context.Context, ring *v1alpha1.ClusterRing, set *resources.Set) (*metav1.Condition, error) {
	if set == nil {
		return meta.FindStatusCondition(ring.Status.Conditions, v1alpha1.ConditionFenced), nil // as it was before the ring was deleted
	}

	problem, err := r.fence(ctx, ring, set)
	if ring.Spec.Fence == nil {
		return nil, err
	}

	c := &metav1.Condition{Type: v1alpha1.ConditionFenced, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonFenceFailed, Message: problem}

	switch {
	case errors.As(err, new(*kit.ContestedError)):
		c.Message = err.Error() + nowAndThen
	case err != nil:
		c.Message = err.Error()
	case problem != "":
	case ring.Spec.Fence.Mode == v1alpha1.FenceOff:
		c.Reason, c.Message = v1alpha1.ReasonFenceOff, "the API server allows shards to write all objects, because spec.fence.mode is Off"
	case ring.Spec.Fence.Mode == v1alpha1.FenceAudit:
		c.Reason = v1alpha1.ReasonFenceAudited
		c.Message = "the API server reports writes of shards to objects of other shards, and allows them, because spec.fence.mode is Audit" + unbound(ring)
	default:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonFenceEnforced
		c.Message = "the API server refuses writes of shards to objects of other shards" + unbound(ring)
	}

	return c, err
}

// unbound adds what a ring that accepts all tokens has to know before its fence is enforced.
func unbound(ring *v1alpha1.ClusterRing) string {
	if ring.Annotations[contract.AnnotationUnboundShards] != "true" {
		return ""
	}

	return fmt.Sprintf("; annotation %s lets shards hold their Leases with tokens that are bound to no Pod, but the fence refuses all their writes to objects",
		contract.AnnotationUnboundShards)
}

// fence writes or removes the ring's binding. It returns why the fence cannot work; otherwise "".
func (r *Reconciler) fence(ctx context.Context, ring *v1alpha1.ClusterRing, set *resources.Set) (problem string, err error) {
	want := Fence(ring, set)
	if want == nil {
		if err := r.unfence(ctx, ring.Name); err != nil || ring.Spec.FenceMode() == v1alpha1.FenceOff {
			return "", err
		}

		return "the API server serves no resource of the ring", nil
	}

	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: contract.FencePolicyName}, policy); apierrors.IsNotFound(err) {
		problem = fmt.Sprintf("ValidatingAdmissionPolicy %s does not exist: install deploy/base/guard", contract.FencePolicyName)
	} else if err != nil {
		return "", fmt.Errorf("read ValidatingAdmissionPolicy %s: %w", contract.FencePolicyName, err)
	} else if problem, err = r.parameterProblem(ctx, ring); err != nil {
		return "", err
	}

	return problem, r.bind(ctx, want)
}

// parameterProblem returns why the fence does not know the ring; otherwise "".
func (r *Reconciler) parameterProblem(ctx context.Context, ring *v1alpha1.ClusterRing) (string, error) {
	parameter := &v1alpha1.PolicyParameter{}
	key := client.ObjectKey{Name: contract.FenceName(ring.Name)}

	err := r.Client.Get(ctx, key, parameter)
	want := parameter.DeepCopy()
	want.Data = clusterring.CorrectedFence(parameter, ring)

	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("PolicyParameter %s does not exist, without which the fence allows all writes: check that leasemonitor runs, which creates it", key.Name), nil
	case err != nil:
		return "", fmt.Errorf("read PolicyParameter %s: %w", key.Name, err)
	case !maps.Equal(parameter.Data, want.Data):
		who, what := kit.Changed(parameter, want, "PolicyParameter", "leasemonitor")

		return fmt.Sprintf("PolicyParameter %s, which describes the ring to its fence, differs from the spec: check that leasemonitor runs, which updates it, and whether %s keeps changing %s", key.Name, who, what), nil
	}

	return "", nil
}

// bind writes a binding if it is not as it should be.
func (r *Reconciler) bind(ctx context.Context, want *admissionregistrationv1.ValidatingAdmissionPolicyBinding) error {
	have := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}

	err := r.Client.Get(ctx, client.ObjectKeyFromObject(want), have)
	if apierrors.IsNotFound(err) {
		what := "somebody keeps deleting ValidatingAdmissionPolicyBinding " + want.Name + ", or the label " + contract.LabelClusterRing + " of it"

		return r.Restores.Write(want.Name, want, what, func() error { return r.fenceNew(ctx, want) })
	}

	if err != nil {
		return fmt.Errorf("read ValidatingAdmissionPolicyBinding %s: %w", want.Name, err)
	}

	next := have.DeepCopy()
	next.OwnerReferences, next.Spec = want.OwnerReferences, want.Spec
	next.Labels = added(have.Labels, want.Labels)

	if equality.Semantic.DeepEqual(have, next) {
		return nil
	}

	who, what := kit.Changed(have, next, want.Kind, r.Status.Owner)

	return r.Restores.Write(want.Name, want, who+keepsChanging+what, func() error {
		if err := r.Client.Update(ctx, next, client.FieldOwner(r.Status.Owner)); err != nil {
			return permission(want.Name, fmt.Errorf("update ValidatingAdmissionPolicyBinding %s: %w", want.Name, err))
		}

		log.FromContext(ctx).Info("Fence updated", "binding", want.Name)

		return nil
	})
}

// fenceNew creates a binding, with server-side apply: RBAC can restrict that by name. One that exists without its label is restored.
func (r *Reconciler) fenceNew(ctx context.Context, want *admissionregistrationv1.ValidatingAdmissionPolicyBinding) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(want)
	if err != nil {
		return fmt.Errorf("encode ValidatingAdmissionPolicyBinding %s: %w", want.Name, err)
	}

	apply := client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: content})
	if err := r.Client.Apply(ctx, apply, client.FieldOwner(r.Status.Owner), client.ForceOwnership); err != nil {
		return permission(want.Name, fmt.Errorf("create ValidatingAdmissionPolicyBinding %s: %w", want.Name, err))
	}

	log.FromContext(ctx).Info("Fence set up", "binding", want.Name)

	return nil
}

// permission adds to an error what an administrator can do about a permission that is missing.
func permission(binding string, err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}

	return fmt.Errorf("%w: create a ClusterRole with the label %s=true that grants create, patch, update, and delete on validatingadmissionpolicybindings with the name %s, as deploy/example does",
		err, contract.LabelAggregateToAssigner, binding)
}

// unfence removes the fence of the ring with the given name, if there is one.
func (r *Reconciler) unfence(ctx context.Context, ring string) error {
	b := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}

	err := r.Client.Get(ctx, client.ObjectKey{Name: contract.FenceName(ring)}, b)
	if apierrors.IsNotFound(err) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("read ValidatingAdmissionPolicyBinding %s: %w", contract.FenceName(ring), err)
	}

	if b.Labels[contract.LabelClusterRing] != ring {
		return nil // that of a ring with the same suffix
	}

	err = r.Restores.Write(b.Name, nil, "somebody keeps creating ValidatingAdmissionPolicyBinding "+b.Name, func() error {
		return r.Client.Delete(ctx, b, client.Preconditions{UID: &b.UID, ResourceVersion: &b.ResourceVersion})
	})

	switch {
	case errors.As(err, new(*kit.ContestedError)):
		return err
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return permission(b.Name, fmt.Errorf("delete ValidatingAdmissionPolicyBinding %s: %w", b.Name, err))
	}

	log.FromContext(ctx).Info("Fence removed", "binding", b.Name)

	return nil
}
