package setup

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1 "k8s.io/client-go/applyconfigurations/core/v1"
	flowcontrolv1 "k8s.io/client-go/applyconfigurations/flowcontrol/v1"
	rbacv1 "k8s.io/client-go/applyconfigurations/rbac/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

const rbacGroup, leaseGroup = "rbac.authorization.k8s.io", "coordination.k8s.io"

// Objects returns the ring, the permissions, and the priority of requests, to be applied.
func (o *Operator) Objects() []any {
	var read, write, assigner []*rbacv1.PolicyRuleApplyConfiguration

	for _, r := range o.Resources {
		read = append(read, rule(r.Group, r.Resource, "get list watch"))
		write = append(write, rule(r.Group, r.Resource, "get list watch patch"))

		if r.Controls {
			assigner = append(assigner, rule(r.Group, r.Resource, "get"))
		}
	}

	if o.Fence {
		assigner = append(assigner, rule("admissionregistration.k8s.io", "validatingadmissionpolicybindings",
			"create patch update delete").WithResourceNames(contract.FenceName(o.Ring)))
	}

	local := rbacv1.Role(o.Ring+"-shard", o.Namespace).
		WithRules(rule(leaseGroup, "leases", "get list watch create update delete"))
	if o.Slots == 0 {
		local.WithRules(rule("", "pods", "get patch"), rule("apps", "replicasets deployments deployments/scale", "get"))
	}

	role := o.Ring + ":shard"
	kept := map[string]string{contract.LabelClusterRing: o.Ring} // until the services have removed labels and fence
	account := rbacv1.Subject().WithKind("ServiceAccount").WithNamespace(o.Namespace).WithName(o.ServiceAccount)

	objects := []any{
		o.ring(),
		rbacv1.ClusterRole(o.Ring + ":rebalancer").WithLabels(kept).WithRules(write...).
			WithLabels(map[string]string{contract.LabelAggregateToRebalancer: "true"}),
		rbacv1.ClusterRole(o.Ring + ":ringquery").WithRules(read...).
			WithLabels(map[string]string{contract.LabelAggregateToRingQuery: "true"}),
		rbacv1.ClusterRole(role).WithRules(write...),
		rbacv1.ClusterRoleBinding(role).WithSubjects(account).
			WithRoleRef(rbacv1.RoleRef().WithAPIGroup(rbacGroup).WithKind("ClusterRole").WithName(role)),
		local,
		rbacv1.RoleBinding(*local.Name, o.Namespace).WithSubjects(account).
			WithRoleRef(rbacv1.RoleRef().WithAPIGroup(rbacGroup).WithKind("Role").WithName(*local.Name)),
		o.flowSchema(),
	}
	if len(assigner) > 0 {
		objects = append(objects, rbacv1.ClusterRole(o.Ring+":assigner").WithLabels(kept).WithRules(assigner...).
			WithLabels(map[string]string{contract.LabelAggregateToAssigner: "true"}))
	}

	return objects
}

func rule(group, resources, verbs string) *rbacv1.PolicyRuleApplyConfiguration {
	return rbacv1.PolicyRule().WithAPIGroups(group).WithResources(strings.Fields(resources)...).
		WithVerbs(strings.Fields(verbs)...)
}

// ring returns the ring without a status, which others write.
func (o *Operator) ring() any {
	spec := v1alpha1.ClusterRingSpec{ShardNamespaces: []string{o.Namespace}}
	if o.Fence {
		account := v1alpha1.ServiceAccountReference{Namespace: o.Namespace, Name: o.ServiceAccount}
		spec.Fence = &v1alpha1.Fence{
			Mode: v1alpha1.FenceAudit, ServiceAccounts: []v1alpha1.ServiceAccountReference{account}}
	}

	for _, r := range o.Resources {
		if r.Role == roleMain {
			spec.Resources = append(spec.Resources, v1alpha1.RingResource{Group: r.Group, Resource: r.Resource})
			continue
		}

		for i := range spec.Resources {
			main := &spec.Resources[i]
			main.ControlledResources = append(main.ControlledResources,
				v1alpha1.ControlledResource{Group: r.Group, Resource: r.Resource})
		}
	}

	return map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "ClusterRing",
		"metadata": map[string]string{"name": o.Ring}, "spec": spec,
	}
}

// flowSchema lets shards renew their Leases while the API server throttles their other requests.
func (o *Operator) flowSchema() any {
	account := flowcontrolv1.ServiceAccountSubject().WithNamespace(o.Namespace).WithName(o.ServiceAccount)

	return flowcontrolv1.FlowSchema(o.Ring + "-leases").WithSpec(flowcontrolv1.FlowSchemaSpec().
		WithMatchingPrecedence(90). // before all that throttles the account
		WithPriorityLevelConfiguration(flowcontrolv1.PriorityLevelConfigurationReference().WithName("leader-election")).
		WithDistinguisherMethod(flowcontrolv1.FlowDistinguisherMethod().WithType("ByUser")).
		WithRules(flowcontrolv1.PolicyRulesWithSubjects().
			WithSubjects(flowcontrolv1.Subject().WithKind("ServiceAccount").WithServiceAccount(account)).
			WithResourceRules(flowcontrolv1.ResourcePolicyRule().WithAPIGroups(leaseGroup).WithResources("leases").
				WithNamespaces(o.Namespace).WithVerbs("get", "create", "update", "patch", "delete"))))
}

// Patch returns the strategic merge patch of the Deployment: its Pods replace one another, have the time to give their
// objects to others, and are ready when they work or wait for a slot.
func (o *Operator) Patch() any {
	rolling := appsv1.RollingUpdateDeployment().WithMaxSurge(intstr.FromInt32(1)).WithMaxUnavailable(intstr.FromInt32(0))
	ready := corev1.Probe().WithPeriodSeconds(2).WithTimeoutSeconds(2).WithFailureThreshold(2).
		WithHTTPGet(corev1.HTTPGetAction().WithPath("/readyz").WithPort(intstr.FromInt32(8081)))

	spec := appsv1.DeploymentSpec().
		WithStrategy(appsv1.DeploymentStrategy().WithType("RollingUpdate").WithRollingUpdate(rolling)).
		WithTemplate(corev1.PodTemplateSpec().WithSpec(corev1.PodSpec().WithTerminationGracePeriodSeconds(60).
			WithContainers(corev1.Container().WithName(o.Container).WithReadinessProbe(ready))))
	if o.Slots > 0 {
		spec.WithReplicas(int32(o.Slots)) //nolint:gosec // at most contract.MaxSlots
	}

	return (&appsv1.DeploymentApplyConfiguration{}).
		WithAPIVersion("apps/v1").WithKind("Deployment").WithName(o.Deployment).WithSpec(spec)
}

// Code returns the change of the main function, as a diff.
func (o *Operator) Code() string {
	slots := "shard.Scale(), // as many as the Deployment has replicas"
	if o.Slots > 0 {
		slots = fmt.Sprintf("shard.Count(%d),", o.Slots)
	}

	var kinds strings.Builder

	for _, r := range o.Resources {
		group, _, _ := strings.Cut(cmp.Or(r.Group, "core"), ".")
		fmt.Fprintf(&kinds, "+\t\t\tshard.%s(&%s%s.%s{}),\n", r.Role, group, r.Kind.Version, r.Kind.Kind)
	}

	return fmt.Sprintf(`+	"github.com/clusterring/clusterring/pkg/shard"
@@
-	mgr, err := ctrl.NewManager(config, options) // with HealthProbeBindAddress: ":8081"
+	mgr, err := shard.NewManager(config, options, shard.Options{
+		Ring:  %q,
+		Slots: %s
+		Kinds: shard.Kinds{
%s+		},
+	})
`, o.Ring, slots, kinds.String())
}
