package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	shardingv1alpha1 "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/ringstatus"
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
	template, role := &appsv1.Deployment{}, &rbacv1.Role{}
	if err := errors.Join(c.Client.Get(ctx, Example.Shards.key(), template),
		c.Client.Get(ctx, Example.Shards.key(), role)); err != nil {
		return fmt.Errorf("create ring %s: read the example's Deployment and Role: %w", ring.Name, err)
	}

	return c.create(ctx, append(ring.objects(template, shards), ring.role(role))...)
}

// create creates objects.
func (c *Cluster) create(ctx context.Context, objects ...client.Object) error {
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
		&shardingv1alpha1.ClusterRing{
			ObjectMeta: metav1.ObjectMeta{Name: r.Name},
			Spec: shardingv1alpha1.ClusterRingSpec{
				ShardNamespaces: []string{r.Namespace()},
				Fence: &shardingv1alpha1.Fence{
					Mode:            shardingv1alpha1.FenceEnforce,
					ServiceAccounts: []shardingv1alpha1.ServiceAccountReference{{Namespace: own.Namespace, Name: own.Name}},
				},
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: r.Namespace()}},
				Resources: []shardingv1alpha1.RingResource{{
					Group: v1alpha1.SchemeGroupVersion.Group, Resource: "websites",
					ControlledResources: []shardingv1alpha1.ControlledResource{{Resource: "configmaps"}},
				}},
			},
		},
		deployment,
		&policyv1.PodDisruptionBudget{
			ObjectMeta: own,
			Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)),
				Selector: deployment.Spec.Selector},
		},
	}
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

	return pod, c.create(ctx, pod)
}

// AddWebsites creates the given number of Websites. Their names consist of the prefix and a number.
func (c *Cluster) AddWebsites(ctx context.Context, ring Ring, prefix string, count int) error {
	sites := make([]client.Object, count)
	for i := range sites {
		sites[i] = &v1alpha1.Website{
			ObjectMeta: metav1.ObjectMeta{Namespace: ring.Namespace(), Name: fmt.Sprintf("%s-%d", prefix, i)},
			Spec:       v1alpha1.WebsiteSpec{Title: "End to end"},
		}
	}

	return c.create(ctx, sites...)
}

// Available returns the names of the ring's shards that hold their Leases.
func (c *Cluster) Available(ctx context.Context, ring Ring) ([]string, error) {
	leases, err := c.Leases(ctx, ring)
	if err != nil {
		return nil, err
	}

	var available []string

	for _, l := range leases {
		if l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity == l.Name {
			available = append(available, l.Name)
		}
	}

	return available, nil
}

// Leases returns the Leases of the ring's shards.
func (c *Cluster) Leases(ctx context.Context, ring Ring) ([]coordinationv1.Lease, error) {
	var leases coordinationv1.LeaseList
	if err := c.Client.List(ctx, &leases, client.MatchingLabels{contract.LabelClusterRing: ring.Name}); err != nil {
		return nil, fmt.Errorf("list the Leases of ring %s: %w", ring.Name, err)
	}

	return leases.Items, nil
}

// Asked is what has been asked of Websites up to a time: their generations.
type Asked map[types.UID]int64

// Asked returns what has been asked of the Websites in the ring's namespace up to now.
func (c *Cluster) Asked(ctx context.Context, ring Ring) (Asked, error) {
	var sites v1alpha1.WebsiteList
	if err := c.Client.List(ctx, &sites, client.InNamespace(ring.Namespace())); err != nil {
		return nil, fmt.Errorf("list Websites of %s: %w", ring.Namespace(), err)
	}

	asked := Asked{}
	for i := range sites.Items {
		asked[sites.Items[i].UID] = sites.Items[i].Generation
	}

	return asked, nil
}

// done reports whether a shard has done what was asked of the Website. Of a Website that has changed since, nothing
// more is demanded: Websites that change all the time are seldom all done at the same moment.
func (a Asked) done(site *v1alpha1.Website) bool {
	generation, known := a[site.UID]

	return site.Done() || known && site.Status.ObservedGeneration >= generation &&
		meta.IsStatusConditionTrue(site.Status.Conditions, v1alpha1.ConditionReady)
}

// Objects returns the stored Websites in the ring's namespace and the ConfigMaps that they control. They are complete
// if the work that was asked of them is done; nil asks for the work on what is stored.
func (c *Cluster) Objects(ctx context.Context, ring Ring, asked Asked) ([]check.Version, error) {
	var pages corev1.ConfigMapList
	if err := c.Client.List(ctx, &pages, client.InNamespace(ring.Namespace())); err != nil {
		return nil, fmt.Errorf("list ConfigMaps of %s: %w", ring.Namespace(), err)
	}

	var sites v1alpha1.WebsiteList
	if err := c.Client.List(ctx, &sites, client.InNamespace(ring.Namespace())); err != nil {
		return nil, fmt.Errorf("list Websites of %s: %w", ring.Namespace(), err)
	}

	var objects []check.Version

	labels := record.Labels{Shard: contract.ShardLabel(ring.Name), Drain: contract.DrainLabel(ring.Name)}
	known := map[string]bool{}

	for i := range sites.Items {
		site := &sites.Items[i]
		object := record.Labelled(labels, check.Website, site)
		object.Complete = asked.done(site)
		known[object.UID], objects = true, append(objects, object)
	}

	for i := range pages.Items {
		// others have no owner, or their owner is gone
		if object := record.Labelled(labels, check.ConfigMap, &pages.Items[i]); known[object.Owner] {
			objects = append(objects, object)
		}
	}

	return objects, nil
}

// Complete returns an error unless the ring has exactly the given number of available shards, its conditions are true,
// all objects are in place, and the work that was asked of them is done.
func (c *Cluster) Complete(ctx context.Context, ring Ring, shards int, asked Asked) error {
	if err := c.Placed(ctx, ring, shards, asked); err != nil {
		return err
	}

	stored := &shardingv1alpha1.ClusterRing{}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: ring.Name}, stored); err != nil {
		return fmt.Errorf("read ring %s: %w", ring.Name, err)
	}

	if problems := ringstatus.Problems(stored, shards); len(problems) > 0 {
		return fmt.Errorf("ring %s: %s", ring.Name, strings.Join(problems, "; "))
	}

	return nil
}

// Placed is like [Cluster.Complete], but disregards the ring's conditions.
func (c *Cluster) Placed(ctx context.Context, ring Ring, shards int, asked Asked) error {
	available, err := c.Available(ctx, ring)
	if err != nil {
		return err
	}

	if len(available) != shards {
		return fmt.Errorf("ring %s has %d available shards, not %d", ring.Name, len(available), shards)
	}

	objects, err := c.Objects(ctx, ring, asked)
	if err != nil {
		return err
	}

	if problems := check.Final(check.State{Versions: objects, Available: available}); len(problems) > 0 {
		var texts []string
		for _, p := range problems[:min(len(problems), 5)] {
			texts = append(texts, p.Text)
		}

		return fmt.Errorf("ring %s: %d problems with %d objects: %s",
			ring.Name, len(problems), len(objects), strings.Join(texts, "; "))
	}

	return nil
}

// shipsOfEach is the size of a Fleet.
const shipsOfEach = 3

// AddFleets adds Fleets and their Ships to the resources of a ring, and creates the given number of Fleets.
func (c *Cluster) AddFleets(ctx context.Context, ring Ring, count int) error {
	stored := &shardingv1alpha1.ClusterRing{}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: ring.Name}, stored); err != nil {
		return fmt.Errorf("read ring %s: %w", ring.Name, err)
	}

	before := stored.DeepCopy()
	group := v1alpha1.SchemeGroupVersion.Group

	stored.Spec.Resources = append(stored.Spec.Resources, shardingv1alpha1.RingResource{
		Group: group, Resource: "fleets", ControlledResources: []shardingv1alpha1.ControlledResource{{Group: group,
			Resource: "ships"}},
	})
	if err := c.Client.Patch(ctx, stored, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("add Fleets to ring %s: %w", ring.Name, err)
	}

	fleets := make([]client.Object, count)
	for i := range fleets {
		fleets[i] = &v1alpha1.Fleet{
			ObjectMeta: metav1.ObjectMeta{Namespace: ring.Namespace(), Name: fmt.Sprintf("fleet-%d", i)},
			Spec:       v1alpha1.FleetSpec{Replicas: shipsOfEach},
		}
	}

	return c.create(ctx, fleets...)
}

// Fleets returns the Fleets of the ring. It returns an error if a Fleet is not complete, or a Ship has another shard
// than its Fleet.
func (c *Cluster) Fleets(ctx context.Context, ring Ring) ([]v1alpha1.Fleet, error) {
	var (
		fleets v1alpha1.FleetList
		ships  v1alpha1.ShipList
	)
	for _, list := range []client.ObjectList{&ships, &fleets} {
		if err := c.Client.List(ctx, list, client.InNamespace(ring.Namespace())); err != nil {
			return nil, fmt.Errorf("list the Fleets of ring %s and their Ships: %w", ring.Name, err)
		}
	}

	label := contract.ShardLabel(ring.Name)
	at := map[string]int{}

	for i := range ships.Items {
		if controller := metav1.GetControllerOfNoCopy(&ships.Items[i]); controller != nil {
			at[string(controller.UID)+" "+ships.Items[i].Labels[label]]++
		}
	}

	for i := range fleets.Items {
		fleet := &fleets.Items[i]
		if with := at[string(fleet.UID)+" "+fleet.Labels[label]]; with != int(fleet.Spec.Replicas) || !fleet.Done() ||
			fleet.Labels[label] == "" {
			return nil, fmt.Errorf("ring %s: Fleet %s has the shard %q with %d of %d Ships, and the status %+v",
				ring.Name, fleet.Name, fleet.Labels[label], with, fleet.Spec.Replicas, fleet.Status)
		}
	}

	return fleets.Items, nil
}
