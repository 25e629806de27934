package suite_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/e2e/load"
	"github.com/clusterring/clusterring/tools/lab/must"
	lab "github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// patience is how long anything may take to settle.
const patience = cluster.Patience

// system is the namespace of the services.
const system = "sharding-system"

// TestCluster runs the scenarios on one installation. The order counts: some need the services undisturbed, some
// disturb them.
func TestCluster(t *testing.T) {
	s := begin(t)
	if !s.reuse && !t.Run("Install", s.play((*scene).install)) {
		t.Fatal("without the installation there is nothing to test")
	}
	t.Run("Shards", func(t *testing.T) {
		t.Run("Adopt", s.play((*scene).adopt)) // it takes longest
		t.Run("Scale", s.play((*scene).scaleShards))
		t.Run("DeletePod", s.play((*scene).deletePod))
		t.Run("KillPod", s.play((*scene).killPod))
		t.Run("Restart", s.play((*scene).restartShards))
		t.Run("Slots", s.play((*scene).slots))
		t.Run("Ask", s.play((*scene).ask))
	})
	t.Run("Assigner", s.play((*scene).assigner))
	t.Run("Services", s.play((*scene).services))

	if !s.reuse {
		t.Run("Removal", s.play((*scene).removal))
		t.Run("Upgrade", s.play((*scene).upgrade))
	}
}

// suite is what the scenarios share.
type suite struct {
	*cluster.Cluster

	dir, root, bin string
	previous       string
	jobset         string
	reuse          bool
	size           size
}

// size says how much and how long.
type size struct {
	// websites is the number of Websites of a ring that is not under load.
	websites int
	// fleets is the number of its Fleets: four such rings have a hundred.
	fleets int
	// window is how long the shares of replicas are measured.
	window time.Duration
	// updates is how many rolling updates a ring with slots goes through.
	updates int
}

var sizes = map[string]size{
	"small": {websites: 60, fleets: 25, window: time.Minute, updates: 2},
	"full":  {websites: 500, fleets: 100, window: 3 * time.Minute, updates: 20},
}

// begin connects to the cluster, or skips the test.
func begin(t *testing.T) *suite {
	t.Helper()

	s := &suite{dir: os.Getenv("E2E_INSTALL"), root: os.Getenv("E2E_ROOT"), bin: os.Getenv("E2E_BIN"),
		previous: os.Getenv("E2E_PREVIOUS"), jobset: os.Getenv("E2E_JOBSET"), reuse: os.Getenv("E2E_REUSE") != ""}
	if s.dir == "" {
		t.Skip("E2E_INSTALL is not set: make e2e runs this")
	}

	var known bool

	s.size, known = sizes[cmp.Or(os.Getenv("E2E_SCALE"), "small")]
	require.True(t, known, "E2E_SCALE must be small or full")

	ctrl.SetLogger(klog.Background())
	require.NoError(t, must.Attempt(func() { s.Cluster = cluster.Connect("") }))

	return s
}

// scene is one scenario. What fails in it ends it.
type scene struct {
	*testing.T
	*suite
}

// play returns a test that plays a scenario. If that fails, the test shows in which step.
func (s *suite) play(steps func(*scene)) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()

		defer func() {
			if failure := recover(); failure != nil {
				t.Fatalf("%v\n%s", failure, debug.Stack())
			}
		}()
		steps(&scene{T: t, suite: s})
	}
}

// finally has something done at the end of the scenario.
func (s *scene) finally(do func(context.Context)) {
	ctx := context.WithoutCancel(s.Context())
	s.Cleanup(func() { assert.NoError(s, must.Attempt(func() { do(ctx) })) })
}

// kept reports whether what a failed scenario has made is kept.
func (s *scene) kept() bool { return s.Failed() && os.Getenv("E2E_KEEP") != "" }

func service(name string) cluster.Deployment {
	return cluster.Deployment{Namespace: system, Name: name}
}

// ring adds a ring with shards of its own that have the names of their pods; see add.
func (s *scene) ring(name string, shards int) cluster.Ring {
	ring := cluster.Ring{Name: "e2e-" + name}
	s.add(ring, shards)

	return ring
}

// add adds a ring, waits until its shards are there, and removes it all at the end of the test.
func (s *scene) add(ring cluster.Ring, shards int) {
	s.finally(func(ctx context.Context) {
		if !s.kept() {
			s.RemoveRing(ctx, ring)
		}
	})
	s.AddRing(s.Context(), ring, shards)
	s.Rolled(s.Context(), ring.Shards())
	s.complete(ring, shards)
}

// complete waits until all of the ring is where it should be, and the work that has been asked of its objects up to now
// is done.
func (s *scene) complete(ring cluster.Ring, shards int) {
	ctx := s.Context()
	if err := must.Attempt(func() { s.InPlace(ctx, ring, shards, true) }); err != nil {
		shown, _ := cluster.Command(ctx, "kubectl", "get", "pods,leases", "-n", ring.Namespace(), "-o", "wide") // for people
		must.Do(fmt.Errorf("%w\n%s", err, shown))
	}
}

// since returns how long ago a time of [record.Now] is, as logs have it.
func since(began time.Duration) time.Duration {
	return (record.Now() - began).Round(100 * time.Millisecond)
}

// rate is the number of creates per second of all loads that go on at a time.
const rate = 50

// pressure starts a load on the ring, of the given number of creates per second.
func (s *scene) pressure(ring cluster.Ring, rate int) *load.Run {
	return load.Start(s.Context(), s.Client, ring.Name, rate)
}

// slowdown is how many times longer than at its rate a load may take, for it waits for shards that are slow.
const slowdown = 10

// lasts waits until so many objects more have been created as the load's rate gives in the time.
func (s *scene) lasts(run *load.Run, d time.Duration) {
	goal := run.Created() + int(d.Seconds()*float64(run.Rate()))
	must.Until(s.Context(), slowdown*d+patience, func(context.Context) {
		got := run.Created()
		must.Hold(got >= goal, "%d of %d objects have been created", got, goal)
	})
}

// noneFailed stops the load and demands that no create has failed.
func (s *scene) noneFailed(run *load.Run) load.Result {
	result := run.Stop()
	s.Logf("%d creates, 99 %% of which took at most %s", result.Created, result.Late)
	assert.Empty(s, result.Errors, "creates that failed, or the first few of them")

	return result
}

// crds are the definitions that are installed.
var crds = []string{"clusterrings.sharding.timebertt.dev", "policyparameters.sharding.timebertt.dev",
	"websites.example.clusterring.dev"}

var services = []string{"leasemonitor", "assigner", "rebalancer", "ringquery"}

// servicePods returns the pods of the services.
func (s *scene) servicePods() []corev1.Pod {
	var all []corev1.Pod
	for _, name := range services {
		all = append(all, s.Pods(s.Context(), service(name))...)
	}

	return all
}

// partOf marks what belongs to the services.
const partOf = "app.kubernetes.io/part-of=clusterring"

// install installs everything on a cluster that has nothing of it, as a user would.
func (s *scene) install() {
	s.absent()

	began := record.Now()
	s.apply(s.present())
	s.Logf("ready after %s", since(began))
	s.admission()

	for i := range s.size.websites {
		site := lab.Website(cluster.Example.Namespace(), lab.Site(i))
		must.Do(s.Client.Create(s.Context(), site))
		require.NotEmpty(s, site.Labels[contract.ShardLabel("example")], "assigned in admission")
	}
	s.complete(cluster.Example, 3)

	for _, p := range s.servicePods() {
		require.Zero(s, p.Status.ContainerStatuses[0].RestartCount, "restarts of %s", p.Name)
	}
}

// version is a version of all that is installed: its definitions, which come first, and everything, each as arguments
// of kubectl.
type version struct{ definitions, all []string }

// present is the version under test.
func (s *suite) present() version {
	return version{
		definitions: []string{"-k", filepath.Join(s.root, "deploy/base/crd"), "-k",
			filepath.Join(s.root, "deploy/example/crd")},
		all: []string{"-k", s.dir},
	}
}

// absent demands that nothing is installed.
func (s *scene) absent() {
	err := s.Client.Get(s.Context(), client.ObjectKey{Name: system}, &corev1.Namespace{})
	require.True(s, apierrors.IsNotFound(err),
		"namespace %s is there already (%v): remove it, or set E2E_REUSE to use what is installed", system, err)
}

// apply applies a version and waits until all of it runs, and the example's ring is complete.
func (s *scene) apply(v version) {
	ctx := s.Context()
	for args := range slices.Chunk(v.definitions, 2) { // kubectl takes one -k at a time
		s.Kubectl(ctx, append([]string{"apply"}, args...)...)
	}

	// A previous version may have fewer.
	applied := s.Kubectl(ctx, append([]string{"get", "crd", "--ignore-not-found", "-o", "name"}, crds...)...)
	s.Kubectl(ctx, append([]string{"wait", "--for=condition=Established", "--timeout=60s"},
		strings.Fields(applied)...)...)
	s.Kubectl(ctx, append([]string{"apply"}, v.all...)...)
	s.serve()
	s.Rolled(ctx, cluster.Example.Shards())
	s.complete(cluster.Example, 3)
}

// serve waits until all services run.
func (s *scene) serve() {
	for _, name := range services {
		s.Rolled(s.Context(), service(name))
	}
}

// admission waits until the API server asks the assigner: it takes it a moment to notice a new registration.
func (s *scene) admission() {
	began := record.Now()
	must.Until(s.Context(), patience, func(ctx context.Context) {
		probe := lab.Website(cluster.Example.Namespace(), "probe")
		must.Do(s.Client.Create(ctx, probe, client.DryRunAll))
		must.Hold(probe.Labels[contract.ShardLabel("example")] != "", "nothing is assigned in admission")
	})
	s.Logf("first admission after %s", since(began))
}
