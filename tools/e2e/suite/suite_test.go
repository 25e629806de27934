package suite_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/e2e/load"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

// patience is how long anything may take to settle.
const patience = 4 * time.Minute

// system is the namespace of the services.
const system = "sharding-system"

// TestCluster runs the scenarios on one installation. The order counts: some need the services undisturbed, some
// disturb them.
func TestCluster(t *testing.T) {
	s := begin(t)
	if !s.reuse && !t.Run("Install", s.install) {
		t.Fatal("without the installation there is nothing to test")
	}
	t.Run("Shards", func(t *testing.T) {
		t.Run("Adopt", s.adopt) // it takes longest
		t.Run("Scale", s.scaleShards)
		t.Run("DeletePod", s.deletePod)
		t.Run("KillPod", s.killPod)
		t.Run("Restart", s.restartShards)
		t.Run("Slots", s.slots)
		t.Run("Ask", s.ask)
	})
	t.Run("Assigner", s.assigner)
	t.Run("Services", s.services)

	if !s.reuse {
		t.Run("Removal", s.removal)
		t.Run("Upgrade", s.upgrade)
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
	// rate is the number of creates per second.
	rate int
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
	"":      {rate: 50, websites: 60, fleets: 25, window: time.Minute, updates: 2},
	"small": {rate: 50, websites: 60, fleets: 25, window: time.Minute, updates: 2},
	"full":  {rate: 50, websites: 500, fleets: 100, window: 3 * time.Minute, updates: 20},
}

// begin connects to the cluster, or skips the test.
func begin(t *testing.T) *suite {
	t.Helper()

	s := &suite{dir: os.Getenv("E2E_INSTALL"), root: os.Getenv("E2E_ROOT"), bin: os.Getenv("E2E_BIN"),
		reuse: os.Getenv("E2E_REUSE") != ""}
	if s.dir == "" {
		t.Skip("E2E_INSTALL is not set: make e2e runs this")
	}

	s.previous, s.jobset = os.Getenv("E2E_PREVIOUS"), os.Getenv("E2E_JOBSET")

	var known bool

	s.size, known = sizes[os.Getenv("E2E_SCALE")]
	require.True(t, known, "E2E_SCALE must be small or full")

	ctrl.SetLogger(klog.Background())

	var err error

	s.Cluster, err = cluster.Connect()
	require.NoError(t, err)

	return s
}

func (s *suite) program(name string) string { return filepath.Join(s.bin, name) }

func service(name string) cluster.Deployment {
	return cluster.Deployment{Namespace: system, Name: name}
}

// ring adds a ring with shards of its own that have the names of their pods; see add.
func (s *suite) ring(t *testing.T, name string, shards int) cluster.Ring {
	t.Helper()

	ring := cluster.NewRing("e2e-" + name)
	s.add(t, ring, shards)

	return ring
}

// add adds a ring, waits until its shards are there, and removes it all at the end of the test.
func (s *suite) add(t *testing.T, ring cluster.Ring, shards int) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() || os.Getenv("E2E_KEEP") == "" {
			assert.NoError(t, s.RemoveRing(context.WithoutCancel(t.Context()), ring))
		}
	})
	require.NoError(t, s.AddRing(t.Context(), ring, shards))
	require.NoError(t, s.Rolled(t.Context(), ring.Shards, patience))
	s.complete(t, ring, shards)
}

// complete waits until all of the ring is where it should be, and the work that has been asked of its objects up to now
// is done.
func (s *suite) complete(t *testing.T, ring cluster.Ring, shards int) {
	t.Helper()

	if err := s.InPlace(t.Context(), ring, shards, true); err != nil {
		shown, _ := s.Kubectl(t.Context(), "get", "pods,leases", "-n", ring.Namespace(), "-o", "wide")
		require.NoError(t, err, shown)
	}
}

// after does something, waits until the Deployment has rolled and the ring is complete, and notes how long that took.
func (s *suite) after(t *testing.T, ring cluster.Ring, e event) {
	t.Helper()

	began := s.Clock.Now()
	require.NoError(t, e.do(t.Context()), e.name)
	require.NoError(t, s.Rolled(t.Context(), ring.Shards, patience), e.name)
	s.complete(t, ring, e.shards)
	t.Logf("%s: complete after %s", e.name, s.since(began))
}

// event is something that happens to the shards of a ring.
type event struct {
	name string
	do   func(context.Context) error
	// shards is how many there are afterwards.
	shards int
	// still demands that no object moves.
	still bool
}

// since returns how long ago a time is, as logs have it.
func (s *suite) since(began time.Time) time.Duration {
	return s.Clock.Since(began).Round(100 * time.Millisecond)
}

// pressure starts a load on the ring, of the given number of creates per second.
func (s *suite) pressure(t *testing.T, ring cluster.Ring, rate int) *load.Run {
	t.Helper()

	return load.Start(t.Context(), load.Options{
		Client: s.Client, Namespace: ring.Namespace(), Ring: ring.Name, Rate: rate, Clock: s.Clock,
	})
}

// slowdown is how many times longer than at its rate a load may take, for it waits for shards that are slow.
const slowdown = 10

// lasts waits until so many objects more have been created as the load's rate gives in the time.
func (s *suite) lasts(t *testing.T, run *load.Run, d time.Duration) {
	t.Helper()

	goal := run.Created() + int(d.Seconds()*float64(run.Rate()))
	require.NoError(t, s.Until(t.Context(), slowdown*d+patience, func(context.Context) error {
		if got := run.Created(); got < goal {
			return fmt.Errorf("%d of %d objects have been created", got, goal)
		}

		return nil
	}))
}

// noneFailed stops the load and demands that no create has failed.
func (s *suite) noneFailed(t *testing.T, run *load.Run) load.Result {
	t.Helper()

	result := run.Stop()
	t.Logf("%d creates, 99 %% of which took at most %s", result.Created, result.Late)
	assert.Zero(t, result.Failed, "creates that failed")
	assert.Empty(t, result.Errors)

	return result
}

// crds are the definitions that are installed.
var crds = []string{"clusterrings.sharding.timebertt.dev", "policyparameters.sharding.timebertt.dev",
	"websites.example.clusterring.dev"}

var services = []string{"leasemonitor", "assigner", "rebalancer", "ringquery"}

// partOf marks what belongs to the services.
const partOf = "app.kubernetes.io/part-of=clusterring"

// install installs everything on a cluster that has nothing of it, as a user would.
func (s *suite) install(t *testing.T) {
	ctx := t.Context()
	s.absent(t)
	began := s.Clock.Now()
	s.apply(t, s.present())
	t.Logf("ready after %s", s.since(began))

	s.admission(t)

	for i := range s.size.websites {
		site := &v1alpha1.Website{
			ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Example.Namespace(), Name: fmt.Sprintf("site-%d", i)},
			Spec:       v1alpha1.WebsiteSpec{Title: "Installed"},
		}
		require.NoError(t, s.Client.Create(ctx, site))
		require.NotEmpty(t, site.Labels[contract.ShardLabel("example")], "assigned in admission")
	}
	s.complete(t, cluster.Example, 3)

	restarts := 0

	for _, name := range services {
		pods, err := s.Pods(ctx, service(name))
		require.NoError(t, err)

		for _, p := range pods {
			restarts += int(p.Status.ContainerStatuses[0].RestartCount)
		}
	}
	require.Zero(t, restarts, "restarts of services")
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
func (s *suite) absent(t *testing.T) {
	t.Helper()
	err := s.Client.Get(t.Context(), client.ObjectKey{Name: system}, &corev1.Namespace{})
	require.True(t, apierrors.IsNotFound(err),
		"namespace %s is there already (%v): remove it, or set E2E_REUSE to use what is installed", system, err)
}

// apply applies a version and waits until all of it runs, and the example's ring is complete.
func (s *suite) apply(t *testing.T, v version) {
	t.Helper()

	ctx := t.Context()
	for args := range slices.Chunk(v.definitions, 2) { // kubectl takes one -k at a time
		_, err := s.Kubectl(ctx, append([]string{"apply"}, args...)...)
		require.NoError(t, err)
	}

	// A previous version may have fewer.
	applied, err := s.Kubectl(ctx, append([]string{"get", "crd", "--ignore-not-found", "-o", "name"}, crds...)...)
	require.NoError(t, err)

	_, err = s.Kubectl(ctx, append([]string{"wait", "--for=condition=Established", "--timeout=60s"},
		strings.Fields(applied)...)...)
	require.NoError(t, err)

	_, err = s.Kubectl(ctx, append([]string{"apply"}, v.all...)...)
	require.NoError(t, err)

	for _, name := range services {
		require.NoError(t, s.Rolled(ctx, service(name), patience))
	}
	require.NoError(t, s.Rolled(ctx, cluster.Example.Shards, patience))
	s.complete(t, cluster.Example, 3)
}

// admission waits until the API server asks the assigner: it takes it a moment to notice a new registration.
func (s *suite) admission(t *testing.T) {
	t.Helper()

	began := s.Clock.Now()
	require.NoError(t, wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true,
		func(ctx context.Context) (bool, error) {
			probe := &v1alpha1.Website{
				ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Example.Namespace(), Name: "probe"},
				Spec:       v1alpha1.WebsiteSpec{Title: "Nobody sees this"},
			}
			err := s.Client.Create(ctx, probe, client.DryRunAll)

			return probe.Labels[contract.ShardLabel("example")] != "", err
		}), "nothing is assigned in admission")
	t.Logf("first admission after %s", s.since(began))
}
