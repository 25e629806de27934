package suite_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	shardingv1alpha1 "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

// removal removes everything: the rings first, for the services take their labels off the objects, and then the rest.
func (s *suite) removal(t *testing.T) {
	s.refused(t)
	began := s.Clock.Now()
	// Rings that were under load may have tens of thousands of objects, whose namespaces are being deleted at the same
	// time.
	_, err := s.Kubectl(t.Context(), "delete", "clusterrings", "--all", "--timeout=300s")
	require.NoError(t, err)
	t.Logf("rings gone after %s", s.since(began))
	s.noLabels(t)
	s.uninstall(t)
	t.Logf("all gone after %s", s.since(began))
}

// removalAtOnce removes the example with its API, its shards, its rights and its ring in one go, and then the services.
func (s *suite) removalAtOnce(t *testing.T) {
	ctx := t.Context()
	began := s.Clock.Now()
	example := filepath.Join(s.root, "deploy/example")
	_, err := s.Kubectl(ctx, "delete", "-k", example, "--timeout=180s")
	require.ErrorContains(t, err, "ring example exists", "the rights stay as long as the ring")
	// After such an error, kubectl does not wait.
	_, err = s.Kubectl(ctx, "wait", "--for=delete", "clusterring", "--all", "--timeout=180s")
	require.NoError(t, err)
	t.Logf("rings gone after %s", s.since(began))
	s.noLabels(t)
	_, err = s.Kubectl(ctx, "delete", "-k", example, "--ignore-not-found", "--timeout=60s")
	require.NoError(t, err, "without the ring, its rights can go")
	s.uninstall(t)
	t.Logf("all gone after %s", s.since(began))
}

// refused demands that the installation cannot be deleted before the rings, and that an attempt harms nothing.
func (s *suite) refused(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	s.guarded(t)
	before := s.servicePods(t)
	out, err := s.Kubectl(ctx, "delete", "-k", filepath.Join(s.root, "deploy/base"), "--timeout=60s")
	require.ErrorContains(t, err, "First run: kubectl delete clusterrings --all")

	var deleted []string

	for line := range strings.Lines(out) {
		// kubectl deletes the FlowSchema after the policies, which protect it until the API server notices that they are
		// gone.
		if !strings.HasPrefix(line, "validatingadmissionpolicy") && !strings.HasPrefix(line, "flowschema") {
			deleted = append(deleted, strings.TrimSpace(line))
		}
	}
	assert.Empty(t, deleted, "besides the guard")

	s.admission(t)
	require.NoError(t, s.InPlace(ctx, cluster.Example, 3, false))
	require.Equal(t, before, s.servicePods(t), "no pod was replaced")
	// The policies could be deleted, because admission policies do not see policies. The ring reports that.
	s.fenced(t, metav1.ConditionFalse, shardingv1alpha1.ReasonFenceFailed)
	_, err = s.Kubectl(ctx, "apply", "-k", s.dir)
	require.NoError(t, err)
	s.guarded(t)
	s.fenced(t, metav1.ConditionTrue, shardingv1alpha1.ReasonFenceEnforced)
	s.complete(t, cluster.Example, 3)
}

// fenced waits until the example's ring has this condition Fenced.
func (s *suite) fenced(t *testing.T, status metav1.ConditionStatus, reason string) {
	t.Helper()
	require.NoError(t, s.Until(t.Context(), patience, func(ctx context.Context) error {
		ring := &shardingv1alpha1.ClusterRing{}
		if err := s.Client.Get(ctx, client.ObjectKey{Name: cluster.Example.Name}, ring); err != nil {
			return fmt.Errorf("read the ring: %w", err)
		}

		if c := meta.FindStatusCondition(ring.Status.Conditions, shardingv1alpha1.ConditionFenced); c == nil ||
			c.Status != status || c.Reason != reason {
			return fmt.Errorf("the condition Fenced is %+v", c)
		}

		return nil
	}))
}

// guarded waits until the API server guards the installation: it takes it a moment to notice a new policy.
func (s *suite) guarded(t *testing.T) {
	t.Helper()
	require.NoError(t, s.Until(t.Context(), patience, func(ctx context.Context) error {
		if _, err := s.Kubectl(ctx, "delete", "namespace", system, "--dry-run=server"); err == nil {
			return fmt.Errorf("namespace %s could be deleted", system)
		} else if !strings.Contains(err.Error(), "denied request") {
			return err
		}

		return nil
	}))
}

// servicePods returns the pods of the services.
func (s *suite) servicePods(t *testing.T) map[types.UID]string {
	t.Helper()

	all := map[types.UID]string{}

	for _, name := range services {
		pods, err := s.Pods(t.Context(), service(name))
		require.NoError(t, err)

		for _, p := range pods {
			all[p.UID] = p.Name
		}
	}

	return all
}

// noLabels demands that no object has a label of a ring, and waits until no webhook is registered and no fence is left:
// the assigner removes both when it sees that the ring is gone. Fences that it may not remove any more, the garbage
// collector removes; it needs the definition of ClusterRings for that.
func (s *suite) noLabels(t *testing.T) {
	t.Helper()
	assert.Empty(t, s.labelled(t), "objects with labels of rings")
	require.NoError(t, s.Until(t.Context(), patience, func(ctx context.Context) error {
		var (
			hooks  admissionregistrationv1.MutatingWebhookConfigurationList
			fences admissionregistrationv1.ValidatingAdmissionPolicyBindingList
		)

		err := errors.Join(s.Client.List(ctx, &hooks, client.HasLabels{contract.LabelClusterRing}),
			s.Client.List(ctx, &fences, client.HasLabels{contract.LabelClusterRing}))
		if err != nil || len(hooks.Items)+len(fences.Items) > 0 {
			return fmt.Errorf("%d webhook configurations and %d fences are left (%w)", len(hooks.Items), len(fences.Items), err)
		}

		return nil
	}))
}

// uninstall deletes the installation and waits until nothing is left of it.
func (s *suite) uninstall(t *testing.T) {
	t.Helper()
	_, err := s.Kubectl(t.Context(), "delete", "-k", s.dir, "--ignore-not-found", "--timeout=240s")
	require.NoError(t, err)
	require.NoError(t, s.Until(t.Context(), patience, s.remains))
}

// labelled returns the objects of any namespace that have a label of a ring.
func (s *suite) labelled(t *testing.T) []string {
	t.Helper()

	var (
		found []string
		sites v1alpha1.WebsiteList
	)
	require.NoError(t, client.IgnoreNotFound(s.Client.List(t.Context(), &sites)), "their definition may be gone")

	var pages corev1.ConfigMapList
	require.NoError(t, s.Client.List(t.Context(), &pages))

	var objects []client.Object
	for i := range sites.Items {
		objects = append(objects, &sites.Items[i])
	}

	for i := range pages.Items {
		objects = append(objects, &pages.Items[i])
	}

	for _, o := range objects {
		for key := range o.GetLabels() {
			if strings.HasPrefix(key, contract.LabelShardPrefix) || strings.HasPrefix(key, contract.LabelDrainPrefix) {
				found = append(found, fmt.Sprintf("%T %s/%s: %s", o, o.GetNamespace(), o.GetName(), key))
			}
		}
	}

	return found
}

// remains returns an error that names what is left of the installation and of the rings of the tests.
func (s *suite) remains(ctx context.Context) error {
	var (
		left       []string
		namespaces corev1.NamespaceList
	)
	if err := s.Client.List(ctx, &namespaces); err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}

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
		found, err := s.Kubectl(ctx, append([]string{"get", "-o", "name"}, args...)...)
		if err != nil {
			return err
		}

		left = append(left, strings.Fields(found)...)
	}

	if len(left) > 0 {
		return fmt.Errorf("there is left: %s", strings.Join(left, ", "))
	}

	return nil
}

// upgrade installs the previous version on a cluster that has nothing, applies this one under load, and removes it.
func (s *suite) upgrade(t *testing.T) {
	if s.previous == "" {
		t.Skip("E2E_PREVIOUS is not set: make e2e has found no commit to upgrade from")
	}
	s.absent(t)
	began := s.Clock.Now()
	s.apply(t, version{
		definitions: []string{"-f", filepath.Join(s.previous, "crd.yaml")},
		all:         []string{"-f", filepath.Join(s.previous, "all.yaml")},
	})
	t.Logf("the previous version is ready after %s", s.since(began))
	s.admission(t)
	t.Run("UnderLoad", s.upgradeUnderLoad)
	t.Run("Removal", s.removalAtOnce)
}

// upgradeUnderLoad applies this version, first of the services and then of the shards, while Websites are created.
func (s *suite) upgradeUnderLoad(t *testing.T) {
	ctx := t.Context()
	oneAtATime := s.follow(t, cluster.NewRing("e2e-upgrade"))
	ring := s.ring(t, "upgrade", 3)
	before := s.images(t)

	run := s.pressure(t, ring, s.size.rate)
	s.lasts(t, run, between)
	began := s.Clock.Now()
	s.apply(t, s.present())
	t.Logf("services upgraded after %s", s.since(began))

	for d, image := range s.images(t) {
		assert.NotEqual(t, before[d], image, "%s is upgraded", d)
	}
	s.lasts(t, run, between)

	began = s.Clock.Now()
	image, err := s.Image(ctx, cluster.Example.Shards)
	require.NoError(t, err)
	require.NoError(t, s.SetImage(ctx, ring.Shards, image))
	require.NoError(t, s.Restart(ctx, ring.Shards), "also if the image is the same")
	require.NoError(t, s.Rolled(ctx, ring.Shards, patience))
	t.Logf("shards upgraded after %s", s.since(began))
	s.lasts(t, run, between)

	s.assignedAtOnce(t, s.noneFailed(t, run))
	s.complete(t, ring, 3)
	oneAtATime(t)
}

// images returns what the services run.
func (s *suite) images(t *testing.T) map[string]string {
	t.Helper()

	all := map[string]string{}

	for _, name := range services {
		image, err := s.Image(t.Context(), service(name))
		require.NoError(t, err)

		all[name] = image
	}

	return all
}
