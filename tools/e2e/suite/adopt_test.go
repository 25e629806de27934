package suite_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	shardingv1alpha1 "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/e2e/adopted"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/testkit/history"
)

const (
	// users is the namespace of the JobSets, and userPeriod the time between two of them.
	users      = "e2e-jobset"
	userPeriod = 100 * time.Millisecond
	// operators is what the page about JobSet calls the namespace of the operator, and operator its Deployment.
	operators = "jobset-system"
	operator  = "deployment/jobset-controller-manager"
)

// adopt installs JobSet and shards it as docs/adopt.md says. Users create JobSets all the time while its pods come and
// go. All of its webhooks fail closed, so a create is refused if a pod gets it that does not serve.
func (s *scene) adopt() {
	s.Parallel()

	if s.jobset == "" {
		s.Skip("E2E_JOBSET is not set")
	}

	ctx := s.Context()
	s.installJobSet()
	s.replicas(3)
	must.Do(s.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: users}}))

	var (
		creates  sync.WaitGroup
		mu       sync.Mutex
		all      int
		refused  []string
		restarts int
	)

	// However long each create takes, the next one begins.
	must.Meanwhile(ctx, userPeriod, func(context.Context) {
		for _, replicas := range []int{3, 1} {
			s.replicas(replicas)

			for range s.size.updates {
				s.operator("rollout", "restart", operator)
				s.rolledOut()

				restarts += s.restarts()
			}
		}
		s.replicas(3)
	}, func(ctx context.Context) {
		set := jobSet(all)
		all++

		creates.Go(func() {
			if err := s.Client.Create(ctx, set); err != nil {
				mu.Lock()
				defer mu.Unlock()

				refused = append(refused, history.Now().Time.Format(time.TimeOnly)+" "+err.Error())
			}
		})
	})
	creates.Wait()
	assert.Zero(s, restarts, "restarts of containers")
	assert.Empty(s, refused[:min(len(refused), 5)], "%d of %d creates", len(refused), all)
	must.Until(ctx, patience, func(ctx context.Context) { s.haveJobs(ctx, all-len(refused)) })
}

// installJobSet installs JobSet, whose image has the changes of the page, and does what the page says about its ring
// and its Deployment.
func (s *scene) installJobSet() {
	content, err := os.ReadFile(filepath.Join(s.root, "docs", "adopt.md"))
	require.NoError(s, err)

	ring := filepath.Join(s.TempDir(), "ring.yaml")
	require.NoError(s, os.WriteFile(ring, []byte(adopted.Blocks(string(content), "yaml")[0]), 0o600))

	for _, args := range [][]string{
		{"-k", s.jobset, "--wait=false"}, {"namespace", users, "--wait=false"}, {"-f", ring}, {"clusterring", "jobset"},
	} { // the last one is the first to be removed
		s.finally(func(ctx context.Context) {
			if !s.kept() {
				s.Kubectl(ctx, append([]string{"delete", "--ignore-not-found", "--timeout=120s"}, args...)...)
			}
		})
	}

	s.Kubectl(s.Context(), "apply", "--server-side", "-k", s.jobset)
	s.Kubectl(s.Context(), "apply", "-f", ring)

	var patch string

	for _, block := range adopted.Blocks(string(content), "") {
		if strings.HasPrefix(block, "kubectl -n "+operators+" patch ") {
			_, patch, _ = strings.Cut(strings.TrimSpace(block), "--patch ")
		}
	}
	s.operator("patch", operator, "--patch", strings.Trim(patch, "'"))
	s.rolledOut()
}

// operator runs kubectl in the namespace of the operator.
func (s *scene) operator(args ...string) {
	s.Kubectl(s.Context(), append([]string{"-n", operators}, args...)...)
}

// rolledOut waits for a rollout as users do. Pods of the version before may still be stopping.
func (s *scene) rolledOut() {
	s.operator("rollout", "status", operator, "--timeout="+patience.String())
}

// restarts returns how often the containers of the operator's pods have ended by themselves.
func (s *scene) restarts() (restarts int) {
	var pods corev1.PodList
	must.Do(s.Client.List(s.Context(), &pods, client.InNamespace(operators)))

	for i := range pods.Items {
		for _, container := range pods.Items[i].Status.ContainerStatuses {
			restarts += int(container.RestartCount)
		}
	}

	return restarts
}

// replicas scales the operator, and waits until it has as many shards.
func (s *scene) replicas(replicas int) {
	s.operator("scale", operator, fmt.Sprintf("--replicas=%d", replicas))
	s.rolledOut()
	must.Until(s.Context(), patience, func(ctx context.Context) {
		ring := &shardingv1alpha1.ClusterRing{}
		must.Do(s.Client.Get(ctx, client.ObjectKey{Name: "jobset"}, ring))
		must.Hold(int(ring.Status.AvailableShards) == replicas, "the ring has %d shards of %d",
			ring.Status.AvailableShards, replicas)
	})
}

// jobSet has one Job, which is suspended, so that the cluster need not run its pods. It has no Service: ten new ones
// per second would delay by many seconds that the Service of the webhooks leads elsewhere.
func jobSet(number int) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
		"metadata": map[string]any{"namespace": users, "name": fmt.Sprintf("user-%d", number)},
		"spec": map[string]any{"suspend": true, "network": map[string]any{"enableDNSHostnames": false},
			"replicatedJobs": []any{map[string]any{
				"name": "work", "template": map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
					"restartPolicy": "Never", "containers": []any{map[string]any{"name": "work", "image": "work"}},
				}}}},
			}}},
	}}
}

// haveJobs demands that there are Jobs of as many different JobSets.
func (s *scene) haveJobs(ctx context.Context, jobSets int) {
	var jobs batchv1.JobList
	must.Do(s.Client.List(ctx, &jobs, client.InNamespace(users)))

	owners := map[string]bool{}

	for i := range jobs.Items {
		if owner := metav1.GetControllerOf(&jobs.Items[i]); owner != nil {
			owners[owner.Name] = true
		}
	}

	must.Hold(len(owners) == jobSets, "%d of %d JobSets have a Job", len(owners), jobSets)
}
