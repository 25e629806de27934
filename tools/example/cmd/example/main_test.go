package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	shardingv1alpha1 "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/checksum"
	"github.com/clusterring/clusterring/tools/example/website"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

const (
	ring      = "example"
	shardName = "shard-0"
	namespace = "example"
	patience  = 30 * time.Second
	interval  = 20 * time.Millisecond
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, shardingv1alpha1.AddToScheme)) }

// suite is one running shard. No service runs: the test assigns objects itself.
type suite struct {
	*testing.T
	admin   client.Client
	options options
}

// The shard runs with the permissions of deploy/example, so that missing ones are detected.
func TestShard(t *testing.T) {
	p := localplane.Shared(t)
	o := options{
		kubeconfig: p.Kubeconfig(), qps: 100, burst: 100,
		metricsAddress: localplane.FreeAddress(t), probeAddress: localplane.FreeAddress(t),
		logLevel: "error", logFormat: "json",
		concurrency: 2, historyFile: filepath.Join(t.TempDir(), "history.jsonl"),
		ring: ring, shardName: shardName, leaseNamespace: namespace, leaseDuration: 3 * time.Second, controllers: controllers,
	}
	early := o
	early.metricsAddress, early.probeAddress = "0", "0" // a manager that does not start keeps its addresses
	require.ErrorContains(t, try(t.Context(), early), "install deploy/example first")
	require.NoError(t, p.Install(t.Context(), "deploy/example"))

	taken, err := net.Listen("tcp", o.probeAddress)
	require.NoError(t, err)
	require.ErrorContains(t, try(t.Context(), o), o.probeAddress+": bind: address already in use")
	require.NoError(t, taken.Close())

	admin, err := client.New(p.Config, client.Options{Scheme: newScheme()})
	require.NoError(t, err)
	o.kubeconfig, err = p.PodKubeconfig(t.Context(), namespace, "example-shard", shardName)
	require.NoError(t, err)

	s := &suite{T: t, admin: admin, options: o}
	s.run()

	s.get(s.options.probeAddress, "/readyz")
	t.Run("renders", s.renders)
	t.Run("corrects", s.corrects)
	t.Run("leaves what is not its own", s.leavesForeign)
	t.Run("sees late what belongs to it", s.seesLate)
	t.Run("makes ships", s.makesShips)
	require.Contains(t, s.get(s.options.metricsAddress, "/metrics"),
		`controller_runtime_reconcile_total{controller="website",result="success"}`)

	recorded, err := os.ReadFile(o.historyFile)
	require.NoError(t, err)

	for _, controller := range []string{"website", "fleet", "checksum"} {
		require.Contains(t, string(recorded), `"controller":"`+controller+`"`)
	}
}

func (s *suite) run() {
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)

	go func() { stopped <- try(ctx, s.options) }()
	s.Cleanup(func() { cancel(); require.NoError(s, <-stopped) })
}

func (s *suite) renders(t *testing.T) {
	site := s.website(t, "renders")
	configMap := s.configMap(t, site.Name, func(cm *corev1.ConfigMap) bool { return metav1.IsControlledBy(cm, site) })
	require.Equal(t, website.Render(site.Spec), configMap.Data)
	s.ready(t, site, metav1.ConditionTrue)
	require.Equal(t, site.Generation, site.Status.ObservedGeneration)

	assign(t, s, configMap)
	sum, err := checksum.Of(configMap.Data)
	require.NoError(t, err)
	s.configMap(t, site.Name, func(cm *corev1.ConfigMap) bool { return cm.Annotations[checksum.Annotation] == sum })

	site.Spec.Title = "Cats & dogs"
	require.NoError(t, s.admin.Update(t.Context(), site))
	s.configMap(t, site.Name, func(cm *corev1.ConfigMap) bool {
		return strings.Contains(cm.Data[website.Page], "\n<h1>Cats &amp; dogs</h1>\n<p>A body</p>\n")
	})
}

func (s *suite) corrects(t *testing.T) {
	site := s.website(t, "corrects")
	configMap := s.configMap(t, site.Name, nil)
	assign(t, s, configMap)
	s.configMap(t, site.Name, func(cm *corev1.ConfigMap) bool { return cm.Annotations[checksum.Annotation] != "" })

	patch := client.RawPatch(types.MergePatchType, []byte(`{"data":{"index.html":"drifted","more":"drift"}}`))
	require.NoError(t, s.admin.Patch(t.Context(), configMap, patch))
	corrected := s.configMap(t, site.Name,
		func(cm *corev1.ConfigMap) bool { return len(cm.Data) == 1 && cm.Data[website.Page] != "drifted" })
	require.Equal(t, shardName, corrected.Labels[contract.ShardLabel(ring)], "the assignment stays")

	require.NoError(t, s.admin.Delete(t.Context(), corrected))
	s.configMap(t, site.Name, func(cm *corev1.ConfigMap) bool { return cm.UID != corrected.UID })
}

func (s *suite) leavesForeign(t *testing.T) {
	taken := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "taken"}, Data: map[string]string{"a": "b"},
	}
	require.NoError(t, s.admin.Create(t.Context(), taken))
	site := s.website(t, "taken")
	s.ready(t, site, metav1.ConditionFalse)
	require.Equal(t, v1alpha1.ReasonConfigMapTaken, site.Status.Conditions[0].Reason)
	require.Equal(t, taken.Data, s.configMap(t, "taken", nil).Data)

	require.NoError(t, s.admin.Delete(t.Context(), taken)) // the shard does not see that
	s.ready(t, site, metav1.ConditionTrue)
	require.True(t, metav1.IsControlledBy(s.configMap(t, "taken", nil), site))

	other := s.website(t, "other", func(site *v1alpha1.Website) { site.Labels = nil })
	s.website(t, "after")
	s.configMap(t, "after", nil)
	require.NoError(t, s.admin.Get(t.Context(), client.ObjectKeyFromObject(other), other))
	require.Empty(t, other.Status.Conditions, "not assigned to this shard")
}

// A fleet has the desired number of ships, and no other ship was ever created: the controller waits for ships that the
// cache does not show yet.
func (s *suite) makesShips(t *testing.T) {
	fleet := &v1alpha1.Fleet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "fleet",
			Labels: map[string]string{contract.ShardLabel(ring): shardName}},
		Spec: v1alpha1.FleetSpec{Replicas: 3},
	}
	require.NoError(t, s.admin.Create(t.Context(), fleet))

	ever := map[types.UID]bool{}
	ships := func() (list []v1alpha1.Ship) {
		all := &v1alpha1.ShipList{}
		require.NoError(t, s.admin.List(t.Context(), all, client.InNamespace(namespace)))

		for i := range all.Items {
			if metav1.IsControlledBy(&all.Items[i], fleet) {
				ever[all.Items[i].UID] = true
				list = append(list, all.Items[i])
			}
		}

		return list
	}

	eventually(t, func() bool { return len(ships()) == 3 })

	for _, ship := range ships() {
		require.Equal(t, shardName, ship.Labels[contract.ShardLabel(ring)], "it is the shard's from the start")
	}

	done := func() bool {
		require.NoError(t, s.admin.Get(t.Context(), client.ObjectKeyFromObject(fleet), fleet))
		return fleet.Done()
	}
	eventually(t, done)

	fleet.Spec.Replicas = 1
	require.NoError(t, s.admin.Update(t.Context(), fleet))
	eventually(t, done)
	require.Len(t, ships(), 1)
	require.Len(t, ever, 3)
}

// website creates a Website that is assigned to the shard.
func (s *suite) website(t *testing.T, name string, change ...func(*v1alpha1.Website)) *v1alpha1.Website {
	t.Helper()

	site := &v1alpha1.Website{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			Labels: map[string]string{contract.ShardLabel(ring): shardName}},
		Spec: v1alpha1.WebsiteSpec{Title: name, Body: "A body"},
	}
	for _, f := range change {
		f(site)
	}
	require.NoError(t, s.admin.Create(t.Context(), site))

	return site
}

// assign assigns the object to the shard, as the services would.
func assign(t *testing.T, s *suite, obj client.Object) {
	t.Helper()

	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, contract.ShardLabel(ring), shardName)
	require.NoError(t, s.admin.Patch(t.Context(), obj, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// configMap waits until a matching ConfigMap exists, and returns it.
func (s *suite) configMap(t *testing.T, name string, as func(*corev1.ConfigMap) bool) *corev1.ConfigMap {
	t.Helper()

	var configMap *corev1.ConfigMap
	eventually(t, func() bool {
		configMap = &corev1.ConfigMap{}
		err := s.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, configMap)
		require.NoError(t, client.IgnoreNotFound(err))

		return err == nil && (as == nil || as(configMap))
	})

	return configMap
}

// seesLate creates a Website whose ConfigMap exists, but is not assigned, because nobody answered when it was created.
func (s *suite) seesLate(t *testing.T) {
	site := s.website(t, "late", func(site *v1alpha1.Website) { site.Labels = nil })
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: site.Name}}
	require.NoError(t, controllerutil.SetControllerReference(site, configMap, s.admin.Scheme()))
	require.NoError(t, s.admin.Create(t.Context(), configMap))

	assign(t, s, site)
	s.ready(t, site, metav1.ConditionFalse)
	assign(t, s, configMap)
	s.ready(t, site, metav1.ConditionTrue)
}

func (s *suite) ready(t *testing.T, site *v1alpha1.Website, status metav1.ConditionStatus) {
	t.Helper()
	eventually(t, func() bool {
		require.NoError(t, s.admin.Get(t.Context(), client.ObjectKeyFromObject(site), site))

		return meta.IsStatusConditionPresentAndEqual(site.Status.Conditions, v1alpha1.ConditionReady, status)
	})
}

// get waits until the URL returns success, and returns the body.
func (s *suite) get(address, path string) string {
	s.Helper()

	var body []byte
	eventually(s, func() bool {
		resp, err := http.Get("http://" + address + path)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		defer http.DefaultClient.CloseIdleConnections()

		body, err = io.ReadAll(resp.Body)

		return err == nil && resp.StatusCode == http.StatusOK
	})

	return string(body)
}

// eventually waits until the condition holds. It calls the condition on the goroutine of the test, so the condition may
// fail the test.
func eventually(t testing.TB, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), interval, patience, true, func(context.Context) (bool, error) {
		return condition(), nil
	})
	require.NoError(t, err)
}

func TestBadInput(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(anyCluster), 0o600))
	cluster := []string{"--lease-namespace", "n", "--kubeconfig", file}

	for _, tc := range []struct {
		name, environment string
		args              []string
		want              string
	}{
		{"unknown flag", "", []string{"--rings", "a"}, "unknown flag: --rings; see --help"},
		{"argument", "", []string{"a"}, `unexpected argument "a"`},
		{"controllers", "", []string{"--controllers", "website,fleets"},
			`there is no controller "fleets"; there are website, fleet, checksum`},
		{"concurrency", "", []string{"--concurrency", "0"}, "at least 1"},
		{"log level", "", []string{"--log-level", "loud"}, "debug, info, or error"},
		{"log format", "", []string{"--log-format", "xml"}, "text or json"},
		{"names and slots", "", append(cluster, "--slots", "2", "--slot-names", "a"),
			"--slots and --slot-names both name the slots"},
		{"names and a name", "", append(cluster, "--shard-name", "b", "--slot-names", "a"), `name: remove "b"`},
		{"label", "", append(cluster, "--shard-label", "shard"), `shard label: "shard" is invalid`},
		{"name in the environment", "SHARD_NAME", cluster, `slots: "From" is invalid`},
		{"label in the environment", "SHARD_LABEL", cluster, `shard label: "From" is invalid`},
		{"a name counts more", "SHARD_NAME", append(cluster, "--slot-names", "Green"), `slots: "Green" is invalid`},
		{"a label counts more", "SHARD_LABEL", append(cluster, "--shard-label", "label"), `shard label: "label" is invalid`},
		{"kubeconfig", "", []string{"--kubeconfig", "/no/such/file"}, "/no/such/file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.environment != "" {
				t.Setenv(tc.environment, "From")
			}

			o, err := parse(tc.args, &bytes.Buffer{})
			if err == nil {
				err = try(t.Context(), o)
			}
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// anyCluster is a kubeconfig of an API server that does not answer.
const anyCluster = `{"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],` +
	`"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`

// try runs a shard without the logs of libraries, which belong to the whole process.
func try(ctx context.Context, o options) error {
	log, err := o.logger()
	if err != nil {
		return err
	}

	return run(ctx, o, log)
}
