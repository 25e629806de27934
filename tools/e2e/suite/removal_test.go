package suite_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	shardingv1alpha1 "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/lab/must"
	lab "github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// removal removes everything: the rings first, for the services take their labels off the objects, and then the rest.
func (s *scene) removal() {
	s.refused()

	began := record.Now()
	// Rings that were under load may have tens of thousands of objects, whose namespaces are being deleted at the same
	// time.
	s.Kubectl(s.Context(), "delete", "clusterrings", "--all", "--timeout=300s")
	s.Logf("rings gone after %s", since(began))
	s.noLabels()
	s.uninstall()
	s.Logf("all gone after %s", since(began))
}

// removalAtOnce removes the example with its API, its shards, its rights and its ring in one go, and then the services.
func (s *scene) removalAtOnce() {
	ctx, began, example := s.Context(), record.Now(), filepath.Join(s.root, "deploy/example")

	_, err := cluster.Command(ctx, "kubectl", "delete", "-k", example, "--timeout=180s")
	require.ErrorContains(s, err, "ring example exists", "the rights stay as long as the ring")
	// After such an error, kubectl does not wait.
	s.Kubectl(ctx, "wait", "--for=delete", "clusterring", "--all", "--timeout=180s")
	s.Logf("rings gone after %s", since(began))
	s.noLabels()
	s.Kubectl(ctx, "delete", "-k", example, "--ignore-not-found", "--timeout=60s") // without the ring, its rights can go
	s.uninstall()
	s.Logf("all gone after %s", since(began))
}

// refused demands that the installation cannot be deleted before the rings, and that an attempt harms nothing.
func (s *scene) refused() {
	ctx := s.Context()
	s.guarded()

	before := s.servicePods()
	out, err := cluster.Command(ctx, "kubectl", "delete", "-k", filepath.Join(s.root, "deploy/base"), "--timeout=60s")
	require.ErrorContains(s, err, "First run: kubectl delete clusterrings --all")

	for line := range strings.Lines(out) {
		// kubectl deletes the FlowSchema after the policies, which protect it until the API server notices that they are
		// gone.
		assert.Regexp(s, "^(validatingadmissionpolicy|flowschema)", line, "only the guard was deleted")
	}

	s.admission()
	s.InPlace(ctx, cluster.Example, 3, false)
	require.ElementsMatch(s, names(before), names(s.servicePods()), "no pod was replaced")
	// The policies could be deleted, because admission policies do not see policies. The ring reports that.
	s.fenced(metav1.ConditionFalse, shardingv1alpha1.ReasonFenceFailed)
	s.Kubectl(ctx, "apply", "-k", s.dir)
	s.guarded()
	s.fenced(metav1.ConditionTrue, shardingv1alpha1.ReasonFenceEnforced)
	s.complete(cluster.Example, 3)
}

// names returns the names of pods, which have random parts.
func names(pods []corev1.Pod) (names []string) {
	for i := range pods {
		names = append(names, pods[i].Name)
	}

	return names
}

// fenced waits until the example's ring has this condition Fenced.
func (s *scene) fenced(status metav1.ConditionStatus, reason string) {
	must.Until(s.Context(), patience, func(ctx context.Context) {
		ring := &shardingv1alpha1.ClusterRing{}
		must.Do(s.Client.Get(ctx, client.ObjectKey{Name: cluster.Example.Name}, ring))

		c := meta.FindStatusCondition(ring.Status.Conditions, shardingv1alpha1.ConditionFenced)
		must.Hold(c != nil && c.Status == status && c.Reason == reason, "the condition Fenced is %+v", c)
	})
}

// guarded waits until the API server guards the installation: it takes it a moment to notice a new policy.
func (s *scene) guarded() {
	must.Until(s.Context(), patience, func(ctx context.Context) {
		_, err := cluster.Command(ctx, "kubectl", "delete", "namespace", system, "--dry-run=server")
		must.Hold(err != nil && strings.Contains(err.Error(), "denied request"), "namespace %s could be deleted: %v", system,
			err)
	})
}

// noLabels demands that no object has a label of a ring, and waits until no webhook is registered and no fence is left:
// the assigner removes both when it sees that the ring is gone. Fences that it may not remove any more, the garbage
// collector removes; it needs the definition of ClusterRings for that.
func (s *scene) noLabels() {
	assert.Empty(s, lab.Labelled(lab.Stored(s.Context(), s.Client)), "objects with labels of rings")
	must.Until(s.Context(), patience, func(ctx context.Context) {
		var (
			hooks  admissionregistrationv1.MutatingWebhookConfigurationList
			fences admissionregistrationv1.ValidatingAdmissionPolicyBindingList
		)
		must.Do(errors.Join(s.Client.List(ctx, &hooks, client.HasLabels{contract.LabelClusterRing}),
			s.Client.List(ctx, &fences, client.HasLabels{contract.LabelClusterRing})))
		must.Hold(len(hooks.Items)+len(fences.Items) == 0, "%d webhook configurations and %d fences are left",
			len(hooks.Items), len(fences.Items))
	})
}

// uninstall deletes the installation and waits until nothing is left of it.
func (s *scene) uninstall() {
	s.Kubectl(s.Context(), "delete", "-k", s.dir, "--ignore-not-found", "--timeout=240s")
	must.Until(s.Context(), patience, s.remains)
}

// remains demands that nothing is left of the installation and of the rings of the tests.
func (s *suite) remains(ctx context.Context) {
	var (
		left       []string
		namespaces corev1.NamespaceList
	)
	must.Do(s.Client.List(ctx, &namespaces))

	for _, n := range namespaces.Items {
		if n.Name == system || n.Name == cluster.Example.Namespace() || strings.HasPrefix(n.Name, "e2e-") {
			left = append(left, "namespace "+n.Name)
		}
	}

	for _, args := range [][]string{
		{"mutatingwebhookconfigurations,validatingadmissionpolicybindings,leases,clusterroles", "-A", "-l",
			contract.LabelClusterRing},
		{"clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings", "-l", partOf},
		append([]string{"crd", "--ignore-not-found"}, crds...),
	} {
		left = append(left, strings.Fields(s.Kubectl(ctx, append([]string{"get", "-o", "name"}, args...)...))...)
	}

	must.None("there is something left", left)
}

// upgrade installs the previous version on a cluster that has nothing, applies this one under load, and removes it.
func (s *scene) upgrade() {
	if s.previous == "" {
		s.Skip("E2E_PREVIOUS is not set: make e2e has found no commit to upgrade from")
	}

	s.absent()

	began := record.Now()
	s.apply(version{
		definitions: []string{"-f", filepath.Join(s.previous, "crd.yaml")},
		all:         []string{"-f", filepath.Join(s.previous, "all.yaml")},
	})
	s.Logf("the previous version is ready after %s", since(began))
	s.admission()
	s.Run("UnderLoad", s.play((*scene).upgradeUnderLoad))
	s.Run("Removal", s.play((*scene).removalAtOnce))
}

// upgradeUnderLoad applies this version, first of the services and then of the shards, while Websites are created.
func (s *scene) upgradeUnderLoad() {
	ctx := s.Context()
	oneAtATime := s.follow(cluster.Ring{Name: "e2e-upgrade"})
	ring := s.ring("upgrade", 3)
	before := s.images()

	run := s.pressure(ring, rate)
	s.lasts(run, between)

	began := record.Now()
	s.apply(s.present())
	s.Logf("services upgraded after %s", since(began))

	for d, image := range s.images() {
		assert.NotEqual(s, before[d], image, "%s is upgraded", d)
	}
	s.lasts(run, between)

	began = record.Now()
	s.Kubectl(ctx, "set", "image", "deployment/"+ring.Shards().Name, "*="+s.image(cluster.Example.Shards()),
		"-n", ring.Namespace())
	s.Restart(ctx, ring.Shards()) // also if the image is the same
	s.Rolled(ctx, ring.Shards())
	s.Logf("shards upgraded after %s", since(began))
	s.lasts(run, between)

	s.assignedAtOnce(s.noneFailed(run))
	s.complete(ring, 3)
	oneAtATime(s)
}

// image returns the image of a Deployment.
func (s *scene) image(d cluster.Deployment) string {
	return s.Deployment(s.Context(), d).Spec.Template.Spec.Containers[0].Image
}

// images returns what the services run.
func (s *scene) images() map[string]string {
	all := map[string]string{}
	for _, name := range services {
		all[name] = s.image(service(name))
	}

	return all
}
