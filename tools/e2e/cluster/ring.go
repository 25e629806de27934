package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	shardingv1alpha1 "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/kubelettest"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// Example is the installed example. Other rings are modeled on it.
var Example = Ring{Name: "example", Slots: true}

// Ring is a ring that shards the Websites in the namespace of its shards, which has the name of the ring.
type Ring struct {
	Name string
	// Slots lets the pods hold slots. Without it, a shard has the name of its pod.
	Slots bool
}

// Shards returns the name of the Deployment whose pods are the shards.
func (r Ring) Shards() Deployment { return Deployment{Namespace: r.Name, Name: "example-shard"} }

// Namespace returns the namespace of the ring's shards and Websites.
func (r Ring) Namespace() string { return r.Name }

// AddRing creates a ring like that of the example: its namespace, the given number of shards with the image and the
// permissions of the example, and the ClusterRing. The shards write their history to their logs. Their Leases last as
// long as by default: with shorter ones, shards on a busy machine lose them, and the kubelet restarts a process ever
// later that ends again and again.
func (c *Cluster) AddRing(ctx context.Context, ring Ring, shards int) {
	role, example := &rbacv1.Role{}, &shardingv1alpha1.ClusterRing{}
	must.Do(errors.Join(c.Client.Get(ctx, Example.Shards(), role),
		c.Client.Get(ctx, client.ObjectKey{Name: Example.Name}, example)))

	objects := ring.objects(c.Deployment(ctx, Example.Shards()), shards)
	c.Create(ctx, append(objects, ring.role(role), ring.manifest(example.Spec))...)
}

// Create creates objects, one after the other.
func (c *Cluster) Create(ctx context.Context, objects ...client.Object) {
	for _, o := range objects {
		must.Do(c.Client.Create(ctx, o))
	}
}

// RemoveRing deletes what AddRing creates, the ring first. It does not wait.
func (c *Cluster) RemoveRing(ctx context.Context, ring Ring) {
	c.Kubectl(ctx, "delete", "--ignore-not-found", "--wait=false", "clusterring/"+ring.Name,
		"namespace/"+ring.Namespace(), "clusterrolebinding/"+ring.Name, "clusterrole/"+ring.Name+":assigner")
}

// objects returns the objects of the ring.
func (r Ring) objects(template *appsv1.Deployment, shards int) []client.Object {
	own := metav1.ObjectMeta{Namespace: r.Namespace(), Name: r.Shards().Name}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: own.Namespace, Name: own.Name}}

	deployment := &appsv1.Deployment{ObjectMeta: own, Spec: *template.Spec.DeepCopy()}
	deployment.Labels = template.Labels
	deployment.Spec.Replicas = new(int32(shards)) //nolint:gosec // a few
	container := &deployment.Spec.Template.Spec.Containers[0]
	container.Args = append(slices.DeleteFunc(slices.Clone(container.Args), func(arg string) bool {
		return !r.Slots && strings.HasPrefix(arg, "--slots=") ||
			strings.HasPrefix(arg, "--ring=") || strings.HasPrefix(arg, "--log-level=") ||
			strings.HasPrefix(arg, "--lease-duration=")
	}), "--ring="+r.Name, "--history-file=-", "--work-duration=20ms")

	return []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.Namespace(), Labels: map[string]string{
			"pod-security.kubernetes.io/enforce": "restricted",
		}}},
		&corev1.ServiceAccount{ObjectMeta: own},
		&rbacv1.RoleBinding{ObjectMeta: own, Subjects: subjects, RoleRef: roleRef("Role", own.Name)},
		kubelettest.Binding(r.Namespace()),
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: r.Name}, Subjects: subjects,
			RoleRef: roleRef("ClusterRole", Example.Shards().Name),
		},
		&rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{
				Name: r.Name + ":assigner", Labels: map[string]string{"sharding.timebertt.dev/aggregate-to-assigner": "true"},
			},
			Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{"admissionregistration.k8s.io"}, Resources: []string{"validatingadmissionpolicybindings"},
				ResourceNames: []string{contract.FenceName(r.Name)}, Verbs: []string{"create", "patch", "update", "delete"},
			}},
		},
		deployment,
		&policyv1.PodDisruptionBudget{
			ObjectMeta: own,
			Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)),
				Selector: deployment.Spec.Selector},
		},
	}
}

func roleRef(kind, name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
}

// manifest returns the ring, which shards what the example's ring does, in the namespace of its shards.
func (r Ring) manifest(spec shardingv1alpha1.ClusterRingSpec) *shardingv1alpha1.ClusterRing {
	spec.ShardNamespaces = []string{r.Namespace()}
	spec.NamespaceSelector = &metav1.LabelSelector{
		MatchLabels: map[string]string{corev1.LabelMetadataName: r.Namespace()},
	}
	spec.Fence = &shardingv1alpha1.Fence{
		Mode:            shardingv1alpha1.FenceEnforce,
		ServiceAccounts: []shardingv1alpha1.ServiceAccountReference{{Namespace: r.Namespace(), Name: r.Shards().Name}},
	}

	return &shardingv1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: r.Name}, Spec: spec}
}

// role returns the Role of the ring's shards: with slots that of the example, and without only what they need then.
func (r Ring) role(example *rbacv1.Role) *rbacv1.Role {
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace(), Name: r.Shards().Name},
		Rules: example.Rules}
	if !r.Slots {
		role.Rules = []rbacv1.PolicyRule{{
			APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: []string{"get",
				"create", "update"},
		}}
	}

	return role
}

// AddPod creates a pod like those of the ring's shards that no Deployment owns, and whose container is not restarted.
func (c *Cluster) AddPod(ctx context.Context, ring Ring, name string) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ring.Namespace(), Name: name,
			Labels: map[string]string{"app.kubernetes.io/name": name}},
		Spec: *c.Deployment(ctx, ring.Shards()).Spec.Template.Spec.DeepCopy(),
	}

	pod.Spec.RestartPolicy, pod.Spec.TopologySpreadConstraints = corev1.RestartPolicyNever, nil
	c.Create(ctx, pod)
}

// Watch records, until ctx ends, the Websites and Fleets in the ring's namespace, what they control, and the Leases of
// the ring's shards.
func (c *Cluster) Watch(ctx context.Context, ring Ring) *system.Ring {
	return system.Watch(ctx, c.Config, c.Client, record.Options{Ring: ring.Name, LeaseNamespace: ring.Namespace(),
		Objects: system.Objects(ring.Namespace())})
}

// settling is how long it may take until all is in place. On a slow machine with many objects, that is several times as
// long as anything else.
const settling = 20 * time.Minute

// InPlace waits until all is in place that is there: exactly the given number of shards hold their Leases, and the work
// on each object that was asked for before was done. With status, the status of the ring says so, too.
func (c *Cluster) InPlace(ctx context.Context, ring Ring, shards int, status bool) {
	watching, stop := context.WithCancel(ctx)
	defer stop()

	watched := c.Watch(watching, ring)
	must.Until(ctx, settling, func(ctx context.Context) {
		holders := watched.Holders()
		must.Hold(len(holders) == shards, "ring %s has %d available shards, not %d", ring.Name, len(holders), shards)
		must.None("ring "+ring.Name, watched.ObjectProblems(holders, true))

		if status {
			must.None("ring "+ring.Name, system.StatusProblems(watched.Stored(ctx), shards))
		}
	})
}
