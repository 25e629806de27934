package scenario

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/example/history"
	"github.com/clusterring/clusterring/tools/lab/process"
	"github.com/clusterring/clusterring/tools/lab/record"
)

const (
	// guideRing is the name of the ring, and of the namespace of its shards and objects, in guideRights.
	guideRing   = "guide"
	guideRights = "tools/guide/testdata/rbac.yaml"
	guideRole   = "sharding:clusterring:guide"
)

// guide runs the program that the guide of kubernetes-controller-sharding prints: two shards share ConfigMaps, a third one joins, one is killed.
func (s *Story) guide(ctx context.Context) error {
	if err := inOrder(ctx, s.withoutRing, s.installGuide); err != nil {
		return err
	}

	since := record.Now()
	shards := []string{"guide-a", "guide-b", "guide-c"}

	if err := s.startGuide(ctx, shards[:2]...); err != nil {
		return err
	}

	err := atOnce(ctx, s.Objects, func(ctx context.Context, i int) error {
		configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: guideRing, Name: fmt.Sprintf("object-%d", i)}}
		if err := s.client.Create(ctx, configMap); err != nil {
			return fmt.Errorf("create a ConfigMap: %w", err)
		}

		return nil
	})
	if err != nil {
		return err
	}

	if err := s.awaitGuide(ctx, shards[:2]...); err != nil {
		return err
	}
	s.ok("%d ConfigMaps have a shard, and a Secret at the same shard", s.Objects)

	joins := time.Now()

	if err := s.startGuide(ctx, shards[2]); err != nil {
		return err
	}

	if err := s.awaitGuide(ctx, shards...); err != nil {
		return err
	}
	s.ok("a third shard has its part %s after its start", seconds(joins))

	first := s.system.Process(shards[0])
	if err := first.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", first.Name, err)
	}

	if err := s.awaitGuide(ctx, shards[1:]...); err != nil {
		return err
	}
	s.ok("a shard was killed: others have its objects after %s", seconds(first.EndedAt()))

	if err := s.endGuide(ctx, shards[1:]...); err != nil {
		return err
	}

	spans, err := s.spansSince(since, shards...)
	if err != nil {
		return err
	}

	ended := map[int]time.Duration{first.PID(): record.At(first.EndedAt())}
	overlaps := history.Overlaps(history.Close(spans, ended, record.Now()), func(span history.Span) string { return span.UID })

	if err := wrong("two shards worked on one object at the same time", overlaps); err != nil {
		return err
	}
	s.ok("%d reconciles recorded: no two shards worked on one object at the same time", len(spans))

	return nil
}

// installGuide installs the ring and what the guide grants. There, the rebalancer runs as the service account sharder; here, the role is bound to
// the accounts of the services, too.
func (s *Story) installGuide(ctx context.Context) error {
	if err := s.system.Plane.Install(ctx, guideRights); err != nil {
		return fmt.Errorf("install the ring of the guide: %w", err)
	}

	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "demo:" + guideRole},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: guideRole},
	}
	for _, account := range []string{localsystem.Rebalancer, "ringquery"} {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{
			Kind: rbacv1.ServiceAccountKind, Namespace: v1alpha1.SystemNamespace, Name: account,
		})
	}

	if err := client.IgnoreAlreadyExists(s.client.Create(ctx, binding)); err != nil {
		return fmt.Errorf("grant the services their rights at the ring of the guide: %w", err)
	}

	return nil
}

// startGuide starts shards.
func (s *Story) startGuide(ctx context.Context, names ...string) error {
	probes, err := process.FreePorts(len(names))
	if err != nil {
		return fmt.Errorf("find ports for the shards: %w", err)
	}

	for i, name := range names {
		kubeconfig, err := s.system.Plane.PodKubeconfig(ctx, guideRing, "shard", name)
		if err != nil {
			return fmt.Errorf("make a kubeconfig for %s: %w", name, err)
		}

		spec := process.Spec{Name: name, Path: filepath.Join(s.system.BinDir, "guide"), Args: []string{
			"--kubeconfig=" + kubeconfig, "--clusterring=" + guideRing, "--lease-namespace=" + guideRing, "--shard=" + name,
			"--history=" + s.system.HistoryFile(name), "--lease-duration=" + localsystem.LeaseDuration.String(), "--renew-deadline=5s",
			"--retry-period=800ms", "--work=50ms", "--health-probe-bind-address=" + probes[i],
		}}
		if err := s.system.Launch(ctx, spec, process.Readiness{URL: "http://" + probes[i] + "/readyz"}); err != nil {
			return err
		}
	}

	return nil
}

// awaitGuide waits until exactly these shards have objects, and each ConfigMap has a Secret at its shard.
func (s *Story) awaitGuide(ctx context.Context, shards ...string) error {
	shardLabel, drainLabel := v1alpha1.ShardLabel(guideRing), v1alpha1.DrainLabel(guideRing)

	return s.await(ctx, func(ctx context.Context) (string, error) {
		var (
			configMaps corev1.ConfigMapList
			secrets    corev1.SecretList
		)

		for _, list := range []client.ObjectList{&configMaps, &secrets} {
			if err := s.client.List(ctx, list, client.InNamespace(guideRing)); err != nil {
				return "", fmt.Errorf("list the objects of the guide: %w", err)
			}
		}

		at, missing, having := map[string]string{}, 0, map[string]int{}
		for _, secret := range secrets.Items {
			at[secret.Name] = secret.Labels[shardLabel]
		}

		for _, configMap := range configMaps.Items {
			shard, draining := configMap.Labels[shardLabel], configMap.Labels[drainLabel]
			if metav1.GetControllerOfNoCopy(&configMap) != nil || configMap.Name == "kube-root-ca.crt" {
				continue
			}

			if having[shard]++; draining != "" || !slices.Contains(shards, shard) || at["dummy-"+configMap.Name] != shard {
				missing++
			}
		}

		if missing == 0 && len(having) != len(shards) {
			return fmt.Sprintf("%d shards have objects, not %d", len(having), len(shards)), nil
		}

		return unless(missing == 0, fmt.Sprintf("%d ConfigMaps or their Secrets are not in place", missing)), nil
	})
}

// endGuide stops the shards and deletes the ring.
func (s *Story) endGuide(ctx context.Context, shards ...string) error {
	if err := s.system.End(shards...); err != nil {
		return fmt.Errorf("stop the shards: %w", err)
	}

	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: guideRing}}
	if err := s.client.Delete(ctx, ring); err != nil {
		return fmt.Errorf("delete the ring of the guide: %w", err)
	}

	return s.await(ctx, func(ctx context.Context) (string, error) {
		err := s.client.Get(ctx, client.ObjectKeyFromObject(ring), ring)

		return unless(err != nil, "the ring of the guide is still there"), client.IgnoreNotFound(err)
	})
}
