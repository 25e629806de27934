package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	shardingv1alpha1 "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/kubelettest"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// Example is the installed example. Other rings are modeled on it.
var Example = Ring{Name: "example", Shards: Deployment{"example", "example-shard"}, Slots: true}

// Ring is a ring that shards the Websites in the namespace of its shards.
type Ring struct {
	Name string
	// Shards is the Deployment whose pods are the shards.
	Shards Deployment
	// Slots lets the pods hold slots. Without it, a shard has the name of its pod.
	Slots bool
}

// NewRing returns a ring for [Cluster.AddRing]. Its namespace has the name of the ring.
func NewRing(name string) Ring {
	return Ring{Name: name, Shards: Deployment{name, Example.Shards.Name}}
}

// Namespace returns the namespace of the ring's shards and Websites.
func (r Ring) Namespace() string { return r.Shards.Namespace }

// AddRing creates a ring like that of the example: its namespace, the given number of shards with the image and the
// permissions of the example, and the ClusterRing. The shards write their history to their logs. Their Leases last as
// long as by default: with shorter ones, shards on a busy machine lose them, and the kubelet restarts a process ever
// later that ends again and again.
func (c *Cluster) AddRing(ctx context.Context, ring Ring, shards int) error {
	template, role, example := &appsv1.Deployment{}, &rbacv1.Role{}, &shardingv1alpha1.ClusterRing{}
	if err := errors.Join(c.Client.Get(ctx, Example.Shards.key(), template),
		c.Client.Get(ctx, Example.Shards.key(), role),
		c.Client.Get(ctx, client.ObjectKey{Name: Example.Name}, example)); err != nil {
		return fmt.Errorf("create ring %s: read the example's Deployment, Role, and ring: %w", ring.Name, err)
	}

	return c.Create(ctx, append(ring.objects(template, shards), ring.role(role), ring.manifest(example.Spec))...)
}

// Create creates objects.
func (c *Cluster) Create(ctx context.Context, objects ...client.Object) error {
	for _, o := range objects {
		if err := c.Client.Create(ctx, o); err != nil {
			return fmt.Errorf("create %T %s: %w", o, client.ObjectKeyFromObject(o), err)
		}
	}

	return nil
}

// RemoveRing deletes the objects of AddRing, the ring first. It does not wait.
func (c *Cluster) RemoveRing(ctx context.Context, ring Ring) error {
	for _, o := range []client.Object{
		&shardingv1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: ring.Name}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ring.Namespace()}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: ring.Name}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: ring.Name + ":assigner"}},
	} {
		if err := client.IgnoreNotFound(c.Client.Delete(ctx, o)); err != nil && !meta.IsNoMatchError(err) {
			return fmt.Errorf("remove ring %s: delete %T: %w", ring.Name, o, err)
		}
	}

	return nil
}

// objects returns the objects of the ring.
func (r Ring) objects(template *appsv1.Deployment, shards int) []client.Object {
	own := metav1.ObjectMeta{Namespace: r.Namespace(), Name: r.Shards.Name}
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
			RoleRef: roleRef("ClusterRole", Example.Shards.Name),
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

// manifest returns the ring, which shards what the example's ring does, in the namespace of its shards.
func (r Ring) manifest(spec shardingv1alpha1.ClusterRingSpec) *shardingv1alpha1.ClusterRing {
	spec.ShardNamespaces = []string{r.Namespace()}
	spec.NamespaceSelector = &metav1.LabelSelector{
		MatchLabels: map[string]string{corev1.LabelMetadataName: r.Namespace()},
	}
	spec.Fence = &shardingv1alpha1.Fence{
		Mode:            shardingv1alpha1.FenceEnforce,
		ServiceAccounts: []shardingv1alpha1.ServiceAccountReference{{Namespace: r.Namespace(), Name: r.Shards.Name}},
	}

	return &shardingv1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: r.Name}, Spec: spec}
}

// role returns the Role of the ring's shards: with slots that of the example, and without only what they need then.
func (r Ring) role(example *rbacv1.Role) *rbacv1.Role {
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace(), Name: r.Shards.Name},
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
func (c *Cluster) AddPod(ctx context.Context, ring Ring, name string) (*corev1.Pod, error) {
	d, err := c.deployment(ctx, ring.Shards)
	if err != nil {
		return nil, err
	}

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ring.Namespace(), Name: name,
			Labels: map[string]string{"app.kubernetes.io/name": name}},
		Spec: *d.Spec.Template.Spec.DeepCopy(),
	}

	pod.Spec.RestartPolicy, pod.Spec.TopologySpreadConstraints = corev1.RestartPolicyNever, nil

	return pod, c.Create(ctx, pod)
}

// AddWebsites creates the Websites site-0, site-1, and so on.
func (c *Cluster) AddWebsites(ctx context.Context, ring Ring, count int) error {
	sites := make([]client.Object, count)
	for i := range sites {
		sites[i] = &v1alpha1.Website{
			ObjectMeta: metav1.ObjectMeta{Namespace: ring.Namespace(), Name: fmt.Sprintf("site-%d", i)},
			Spec:       v1alpha1.WebsiteSpec{Title: "End to end"},
		}
	}

	return c.Create(ctx, sites...)
}

// AddFleets creates Fleets of three Ships each.
func (c *Cluster) AddFleets(ctx context.Context, ring Ring, count int) error {
	const shipsOfEach = 3

	fleets := make([]client.Object, count)
	for i := range fleets {
		fleets[i] = &v1alpha1.Fleet{
			ObjectMeta: metav1.ObjectMeta{Namespace: ring.Namespace(), Name: fmt.Sprintf("fleet-%d", i)},
			Spec:       v1alpha1.FleetSpec{Replicas: shipsOfEach},
		}
	}

	return c.Create(ctx, fleets...)
}

// Watch records, until ctx ends, the Websites and Fleets in the ring's namespace, what they control, and the Leases of
// the ring's shards.
func (c *Cluster) Watch(ctx context.Context, ring Ring) (watched *system.Ring, err error) {
	var objects []record.Objects
	for _, kind := range []string{check.Website, check.ConfigMap, check.Fleet, check.Ship} {
		objects = append(objects, record.Objects{Kind: kind, Namespace: ring.Namespace()})
	}

	err = must.Attempt(func() {
		watched = system.Watch(ctx, c.Config, c.Client,
			record.Options{Ring: ring.Name, LeaseNamespace: ring.Namespace(), Objects: objects})
	})

	return watched, err
}

// settling is how long it may take until all is in place. On a slow machine with many objects, that is several times as
// long as anything else.
const settling = 20 * time.Minute

// InPlace waits until all is in place that is there: exactly the given number of shards hold their Leases, and the work
// on each object that was asked for before was done. With status, the status of the ring says so, too.
func (c *Cluster) InPlace(ctx context.Context, ring Ring, shards int, status bool) error {
	watching, stop := context.WithCancel(ctx)

	watched, err := c.Watch(watching, ring)
	if err != nil {
		stop()
		return err
	}

	defer func() { stop(); watched.Wait() }()

	return c.Until(ctx, settling, func(ctx context.Context) error {
		return must.Attempt(func() {
			holders := watched.Holders()
			must.Hold(len(holders) == shards, "ring %s has %d available shards, not %d", ring.Name, len(holders), shards)

			problems := watched.ObjectProblems(holders, true)
			if status {
				problems = append(problems, system.StatusProblems(watched.Stored(ctx), shards)...)
			}

			must.Hold(len(problems) == 0, "ring %s: %d problems: %s", ring.Name, len(problems),
				strings.Join(problems[:min(len(problems), 5)], "; "))
		})
	})
}
