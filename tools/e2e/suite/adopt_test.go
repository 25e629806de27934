package suite_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	shardingv1alpha1 "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/e2e/adopted"
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
func (s *suite) adopt(t *testing.T) {
	t.Parallel()

	if s.jobset == "" {
		t.Skip("E2E_JOBSET is not set")
	}

	s.installJobSet(t)
	s.replicas(t, 3)

	require.NoError(t, s.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: users}}))
	creates := s.createJobSets(t)
	restarts := 0

	for _, replicas := range []int{3, 1} {
		s.replicas(t, replicas)

		for range s.size.updates {
			s.operator(t, "rollout", "restart", operator)
			s.rolledOut(t)

			restarts += s.restarts(t)
		}
	}
	s.replicas(t, 3)
	assert.Zero(t, restarts, "restarts of containers")

	created, refused := creates()
	assert.Empty(t, refused[:min(len(refused), 5)], "of %d creates beside %d JobSets", len(refused), created)
	require.NoError(t, s.Until(t.Context(), patience,
		func(ctx context.Context) error { return s.allHaveJobs(ctx, created) }))
}

// installJobSet installs JobSet, whose image has the changes of the page, and does what the page says about its ring
// and its Deployment.
func (s *suite) installJobSet(t *testing.T) {
	t.Helper()

	content, err := os.ReadFile(filepath.Join(s.root, "docs", "adopt.md"))
	require.NoError(t, err)

	ring := filepath.Join(t.TempDir(), "ring.yaml")
	require.NoError(t, os.WriteFile(ring, []byte(adopted.Blocks(string(content), "yaml")[0]), 0o600))

	t.Cleanup(func() {
		if t.Failed() && os.Getenv("E2E_KEEP") != "" {
			return
		}

		ctx := context.WithoutCancel(t.Context())
		for _, args := range [][]string{
			{"clusterring", "jobset"}, {"-f", ring}, {"namespace", users, "--wait=false"}, {"-k", s.jobset, "--wait=false"},
		} {
			_, err := s.Kubectl(ctx, append([]string{"delete", "--ignore-not-found", "--timeout=120s"}, args...)...)
			assert.NoError(t, err)
		}
	})

	for _, args := range [][]string{{"--server-side", "-k", s.jobset}, {"-f", ring}} {
		_, err = s.Kubectl(t.Context(), append([]string{"apply"}, args...)...)
		require.NoError(t, err)
	}

	var patch string

	for _, block := range adopted.Blocks(string(content), "") {
		if strings.HasPrefix(block, "kubectl -n "+operators+" patch ") {
			_, patch, _ = strings.Cut(strings.TrimSpace(block), "--patch ")
		}
	}
	s.operator(t, "patch", operator, "--patch", strings.Trim(patch, "'"))
	s.rolledOut(t)
}

// operator runs kubectl in the namespace of the operator.
func (s *suite) operator(t *testing.T, args ...string) {
	t.Helper()

	_, err := s.Kubectl(t.Context(), append([]string{"-n", operators}, args...)...)
	require.NoError(t, err)
}

// rolledOut waits for a rollout as users do. Pods of the version before may still be stopping.
func (s *suite) rolledOut(t *testing.T) {
	t.Helper()
	s.operator(t, "rollout", "status", operator, "--timeout="+patience.String())
}

// restarts returns how often the containers of the operator's pods have ended by themselves.
func (s *suite) restarts(t *testing.T) int {
	t.Helper()

	var pods corev1.PodList
	require.NoError(t, s.Client.List(t.Context(), &pods, client.InNamespace(operators)))

	restarts := 0

	for i := range pods.Items {
		for _, container := range pods.Items[i].Status.ContainerStatuses {
			restarts += int(container.RestartCount)
		}
	}

	return restarts
}

// replicas scales the operator, and waits until it has as many shards.
func (s *suite) replicas(t *testing.T, replicas int) {
	t.Helper()
	s.operator(t, "scale", operator, fmt.Sprintf("--replicas=%d", replicas))
	s.rolledOut(t)
	require.NoError(t, s.Until(t.Context(), patience, func(ctx context.Context) error {
		ring := &shardingv1alpha1.ClusterRing{}
		if err := s.Client.Get(ctx, client.ObjectKey{Name: "jobset"}, ring); err != nil {
			return err
		}

		if got := int(ring.Status.AvailableShards); got != replicas {
			return fmt.Errorf("the ring has %d shards of %d", got, replicas)
		}

		return nil
	}))
}

// createJobSets creates JobSets at a steady rate, however long each create takes. What it returns stops that, and
// returns how many there are, and the errors of those that are not.
func (s *suite) createJobSets(t *testing.T) (stop func() (created int, refused []string)) {
	t.Helper()

	clients, err := dynamic.NewForConfig(s.Config)
	require.NoError(t, err)

	jobSets := clients.Resource(schema.GroupVersionResource{Group: "jobset.x-k8s.io", Version: "v1alpha2",
		Resource: "jobsets"}).Namespace(users)
	creating, end := context.WithCancel(t.Context())

	var (
		group   sync.WaitGroup
		mu      sync.Mutex
		created int
		refused []string
	)

	create := func(number int) {
		_, err := jobSets.Create(t.Context(), jobSet(number), metav1.CreateOptions{})

		mu.Lock()
		defer mu.Unlock()

		if err == nil {
			created++
		} else {
			refused = append(refused, s.Clock.Now().Format(time.TimeOnly)+" "+err.Error())
		}
	}

	group.Go(func() {
		next := 0

		wait.NonSlidingUntilWithContext(creating, func(context.Context) {
			number := next
			next++

			group.Go(func() { create(number) })
		}, userPeriod)
	})
	t.Cleanup(end)

	return func() (int, []string) {
		end()
		group.Wait()

		return created, refused
	}
}

// jobSet has one Job, which is suspended, so that the cluster need not run its pods. It has no Service: ten new ones
// per second would delay by many seconds that the Service of the webhooks leads elsewhere.
func jobSet(number int) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": map[string]any{"name": fmt.Sprintf("user-%d",
			number)},
		"spec": map[string]any{"suspend": true, "network": map[string]any{"enableDNSHostnames": false},
			"replicatedJobs": []any{map[string]any{
				"name": "work", "template": map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
					"restartPolicy": "Never", "containers": []any{map[string]any{"name": "work", "image": "work"}},
				}}}},
			}}},
	}}
}

// allHaveJobs returns an error unless there are as many Jobs of different JobSets.
func (s *suite) allHaveJobs(ctx context.Context, jobSets int) error {
	var jobs batchv1.JobList
	if err := s.Client.List(ctx, &jobs, client.InNamespace(users)); err != nil {
		return err
	}

	owners := map[string]bool{}

	for i := range jobs.Items {
		if owner := metav1.GetControllerOf(&jobs.Items[i]); owner != nil {
			owners[owner.Name] = true
		}
	}

	if len(owners) != jobSets {
		return fmt.Errorf("%d of %d JobSets have a Job", len(owners), jobSets)
	}

	return nil
}
