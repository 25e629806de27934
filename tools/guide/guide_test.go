package guide_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/lab/program"
	"github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/manifests"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

// name is that of the ring, and of the namespace of its shards and objects.
const name = "guide"

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// installation returns a file with the base and the component sharder, which docs/from-prior-art.md installs.
func installation(t *testing.T, dir string) string {
	t.Helper()

	built, err := manifests.Combine(localplane.Root(), nil, "sharder")
	require.NoError(t, err)

	var all []byte

	for _, o := range built {
		content, err := yaml.Marshal(o.Object)
		require.NoError(t, err)

		all = append(append(all, "---\n"...), content...)
	}

	file := filepath.Join(dir, "manifests.yaml")
	require.NoError(t, os.WriteFile(file, all, 0o600))

	return file
}

// start builds everything, installs it, and runs the services. The rebalancer has the service account that the guide
// grants its rights to.
func start(t *testing.T) *system.System {
	t.Helper()

	plane, dir := localplane.Shared(t), t.TempDir()

	for _, pkg := range []string{
		"services/leasemonitor/cmd/leasemonitor", "services/assigner/cmd/assigner", "services/rebalancer/cmd/rebalancer",
		"tools/guide/cmd/guide",
	} {
		build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o",
			filepath.Join(dir, filepath.Base(pkg)), "./"+pkg)
		build.Dir = localplane.Root()
		output, err := build.CombinedOutput()
		require.NoError(t, err, string(output))
	}

	require.NoError(t, plane.Install(t.Context(), installation(t, dir)))

	free, err := process.FreePorts(1)
	require.NoError(t, err)

	s := system.New(plane.Client, dir, services.Options{Plane: plane, BinDir: dir, ShownLines: 20})
	t.Cleanup(func() {
		select {
		case err := <-s.Died():
			t.Error(err)
		default:
		}
		require.NoError(t, s.Stop())
	})

	sharder := "--rebalancer-username=system:serviceaccount:" + v1alpha1.NamespaceSystem + ":sharder"
	require.NoError(t, s.Start(t.Context(),
		services.Spec{Name: services.LeaseMonitor, Binary: services.LeaseMonitor},
		services.Spec{Name: services.Assigner, Binary: services.Assigner,
			Args: append(services.Webhook(free[0], free[0]), sharder)},
		services.Spec{
			Name: services.Rebalancer, Binary: services.Rebalancer, Namespace: v1alpha1.NamespaceSystem, Account: "sharder",
			Args: []string{"--settle-period=" + services.SettlePeriod.String()},
		},
	))

	return s
}

func TestProgramOfTheGuideRuns(t *testing.T) {
	s := start(t)
	stage := program.Stage{
		System: s, BinDir: s.Dir, OK: t.Logf,
		Until: func(ctx context.Context, part func(context.Context)) { must.Until(ctx, time.Minute, part) },
	}
	require.NoError(t, must.Attempt(func() {
		stage.Play(t.Context(), program.Program{
			Name: name, Manifests: []string{"tools/guide/testdata/rbac.yaml"}, Objects: 60,
			Object:   `{apiVersion: v1, kind: ConfigMap, metadata: {namespace: guide}}`,
			Edit:     `{"data":{"value":"%s"}}`,
			Children: []schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("Secret")},
		})
	}))

	var leases coordinationv1.LeaseList
	require.NoError(t, s.Client.List(t.Context(), &leases, client.InNamespace(name)))

	for _, l := range leases.Items {
		require.True(t, l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity != l.Name, "%s has released its Lease", l.Name)
	}

	requireLimited(t, s.Plane)
}

// requireLimited requires that the account of the guide may do no more than move objects, whatever its roles grant.
func requireLimited(t *testing.T, plane *localplane.Plane) {
	t.Helper()

	config := rest.CopyConfig(plane.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + v1alpha1.NamespaceSystem +
		":sharder"}
	sharder, err := client.New(config, client.Options{Scheme: plane.Client.Scheme()})
	require.NoError(t, err)

	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "object-0"}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"data":{"value":"stolen"}}`))
	require.ErrorContains(t, sharder.Patch(t.Context(), cm, patch), "the rebalancer may not change data")

	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.NamespaceSystem, Name: "assigner-0"}}
	require.ErrorContains(t, sharder.Create(t.Context(), lease), "only the Lease of its own leader election")
}
