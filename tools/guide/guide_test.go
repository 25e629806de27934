package guide_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/ringstatus"
	"github.com/clusterring/clusterring/tools/manifests"
	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

const (
	// name is that of the ring, and of the namespace of its shards and objects.
	name     = "guide"
	objects  = 60
	patience = time.Minute
	interval = 50 * time.Millisecond
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// system is the installation, with the shards of the guide.
type system struct {
	*testing.T
	*localplane.Plane

	dir    string
	shards map[string]*process.Process
}

func newSystem(t *testing.T) *system {
	t.Helper()

	s := &system{T: t, Plane: localplane.Shared(t), dir: t.TempDir(), shards: map[string]*process.Process{}}

	for _, pkg := range []string{
		"services/leasemonitor/cmd/leasemonitor", "services/assigner/cmd/assigner", "services/rebalancer/cmd/rebalancer",
		"tools/guide/cmd/guide",
	} {
		build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o",
			filepath.Join(s.dir, filepath.Base(pkg)), "./"+pkg)
		build.Dir = localplane.Root()
		output, err := build.CombinedOutput()
		require.NoError(t, err, string(output))
	}

	require.NoError(t, s.Install(t.Context(), s.manifests(), "tools/guide/testdata/rbac.yaml"))
	s.serve()

	return s
}

// manifests returns a file with the base and the component sharder, which docs/from-prior-art.md installs.
func (s *system) manifests() string {
	s.Helper()

	built, err := manifests.Combine(localplane.Root(), nil, "sharder")
	require.NoError(s, err)

	var all []byte

	for _, o := range built {
		content, err := yaml.Marshal(o.Object)
		require.NoError(s, err)

		all = append(append(all, "---\n"...), content...)
	}

	file := filepath.Join(s.dir, "manifests.yaml")
	require.NoError(s, os.WriteFile(file, all, 0o600))

	return file
}

// serve runs the services. The rebalancer has the service account that the guide grants its rights to.
func (s *system) serve() {
	s.Helper()

	free, err := process.FreePorts(1)
	require.NoError(s, err)

	group := services.New(services.Options{Plane: s.Plane, BinDir: s.dir, LogDir: s.dir, ShownLines: 20})
	s.Cleanup(func() {
		select {
		case err := <-group.Died():
			s.Error(err)
		default:
		}
		require.NoError(s, group.Stop())
	})

	sharder := "--rebalancer-username=system:serviceaccount:" + v1alpha1.NamespaceSystem + ":sharder"
	require.NoError(s, group.Start(s.Context(),
		services.Spec{Name: services.LeaseMonitor, Binary: services.LeaseMonitor},
		services.Spec{Name: services.Assigner, Binary: services.Assigner,
			Args: append(services.Webhook(free[0], free[0]), sharder)},
		services.Spec{
			Name: services.Rebalancer, Binary: services.Rebalancer, Namespace: v1alpha1.NamespaceSystem, Account: "sharder",
			Args: []string{"--settle-period=" + services.SettlePeriod.String()},
		},
	))
}

// start runs a shard, and waits until the services count it.
func (s *system) start(shard string) {
	s.Helper()

	kubeconfig, err := s.PodKubeconfig(s.Context(), name, "shard", shard)
	require.NoError(s, err)

	p, err := process.Start(process.Spec{
		Name: shard, Path: filepath.Join(s.dir, "guide"), LogFile: filepath.Join(s.dir, shard+".log"),
		Args: []string{
			"--kubeconfig=" + kubeconfig, "--clusterring=" + name, "--lease-namespace=" + name, "--shard=" + shard,
			"--history=" + s.history(shard),
			"--lease-duration=3s", "--renew-deadline=2s", "--retry-period=500ms", "--work=50ms",
		},
	}, func(p *process.Process) {
		s.Errorf("shard %s has ended by itself: %v\n%s", p.Name, p.End(), process.Tail(p.LogFile, 20))
	})
	require.NoError(s, err)

	s.shards[shard] = p
	s.Cleanup(func() { _ = p.Stop(patience) }) // it may have been killed

	want := s.running()
	require.Eventually(s, func() bool {
		ring := &v1alpha1.ClusterRing{}
		require.NoError(s, s.Client.Get(s.Context(), client.ObjectKey{Name: name}, ring))

		return int(ring.Status.AvailableShards) == want
	}, patience, interval, "shard %s joins", shard)
}

func (s *system) running() int {
	running := 0

	for _, p := range s.shards {
		if p.Running() {
			running++
		}
	}

	return running
}

func (s *system) history(shard string) string { return filepath.Join(s.dir, shard+".history") }

// edit changes each object, so that the shards have work to do.
func (s *system) edit(value string) {
	s.Helper()

	patch := client.RawPatch(types.MergePatchType, []byte(`{"data":{"value":"`+value+`"}}`))

	for i := range objects {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "object-" + strconv.Itoa(i)}}
		require.NoError(s, s.Client.Patch(s.Context(), cm, patch))
	}
}

// placed returns how many objects each shard has, if each has a shard, a Secret on the same shard, and no drain;
// otherwise nil.
func (s *system) placed() map[string]int {
	s.Helper()

	shardLabel := v1alpha1.LabelShard(v1alpha1.KindClusterRing, "", name)
	drainLabel := v1alpha1.LabelDrain(v1alpha1.KindClusterRing, "", name)

	var (
		configMaps corev1.ConfigMapList
		secrets    corev1.SecretList
	)
	require.NoError(s, s.Client.List(s.Context(), &configMaps, client.InNamespace(name), client.HasLabels{shardLabel}))
	require.NoError(s, s.Client.List(s.Context(), &secrets, client.InNamespace(name), client.HasLabels{shardLabel}))

	of := map[string]string{}
	for i := range secrets.Items {
		of[secrets.Items[i].Name] = secrets.Items[i].Labels[shardLabel]
	}

	has := map[string]int{}

	for i := range configMaps.Items {
		cm := &configMaps.Items[i]

		_, drained := cm.Labels[drainLabel]
		if drained || of["dummy-"+cm.Name] != cm.Labels[shardLabel] {
			return nil
		}

		has[cm.Labels[shardLabel]]++
	}

	if len(configMaps.Items) < objects {
		return nil
	}

	return has
}

// settles waits until the ring has exactly these shards, all of which have objects, and each object is in its place
// with its Secret.
func (s *system) settles(what string, shards ...string) map[string]int {
	s.Helper()

	var has map[string]int

	require.Eventually(s, func() bool {
		ring := &v1alpha1.ClusterRing{}
		require.NoError(s, s.Client.Get(s.Context(), client.ObjectKey{Name: name}, ring))

		has = s.placed()

		return len(ringstatus.Problems(ring, len(shards))) == 0 && slices.Equal(slices.Sorted(maps.Keys(has)), shards)
	}, patience, interval, what)

	return has
}

func TestProgramOfTheGuideRuns(t *testing.T) {
	s := newSystem(t)
	s.start("shard-a")
	s.start("shard-b")

	for i := range objects {
		require.NoError(t, s.Client.Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: fmt.Sprintf("object-%d", i)}}))
	}

	s.settles("objects are assigned and worked on", "shard-a", "shard-b")

	s.edit("while a shard joins")
	s.start("shard-c")
	s.edit("while drains are acknowledged")

	before := s.settles("objects move to the shard that has joined", "shard-a", "shard-b", "shard-c")
	log, err := os.ReadFile(s.shards["shard-a"].LogFile)
	require.NoError(t, err)
	require.Contains(t, string(log), "Acknowledged drain")

	s.edit("while a shard is killed")
	require.NoError(t, s.shards["shard-a"].Kill())
	s.settles("its objects move", "shard-b", "shard-c")

	// Those that have moved are worked on, too.
	require.NoError(t, s.Client.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace(name)))
	after := s.settles("each Secret is there again", "shard-b", "shard-c")
	require.GreaterOrEqual(t, after["shard-b"], before["shard-b"])
	require.GreaterOrEqual(t, after["shard-c"], before["shard-c"])

	s.requireLimited()

	for _, shard := range []string{"shard-b", "shard-c"} {
		require.NoError(t, s.shards[shard].Stop(patience))
		require.NoError(t, s.shards[shard].Err())

		lease := &coordinationv1.Lease{}
		require.NoError(t, s.Client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: shard}, lease))
		require.True(t, lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != shard, "%s has released its Lease",
			shard)
	}

	s.requireNoOverlap()
}

// requireLimited requires that the account of the guide may do no more than move objects, whatever its roles grant.
func (s *system) requireLimited() {
	s.Helper()

	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + v1alpha1.NamespaceSystem +
		":sharder"}
	sharder, err := client.New(config, client.Options{Scheme: s.Client.Scheme()})
	require.NoError(s, err)

	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "object-0"}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"data":{"value":"stolen"}}`))
	require.ErrorContains(s, sharder.Patch(s.Context(), cm, patch), "the rebalancer may not change data")

	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.NamespaceSystem, Name: "assigner-0"}}
	require.ErrorContains(s, sharder.Create(s.Context(), lease), "only the Lease of its own leader election")
}

// requireNoOverlap requires that no two shards worked on one object at the same time.
func (s *system) requireNoOverlap() {
	s.Helper()

	var reader history.Reader

	ended := map[int]time.Time{}

	for shard, p := range s.shards {
		require.NoError(s, reader.ReadFile(s.history(shard)))

		ended[p.PID()] = p.EndedAt()
	}

	until := map[int]time.Duration{}
	for pid, at := range ended {
		until[pid] = reader.Instant(at)
	}

	spans := history.Close(reader.Spans(), until, 0)
	require.Greater(s, len(spans), 3*objects)
	require.Empty(s, history.Overlaps(spans, func(span history.Span) string { return span.UID }))
}
