package manifests_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/clusterring/clusterring/tools/manifests"
)

// root is that of the repository.
const root = "../.."

// programs are the images of the Deployments and StatefulSets, and where the programs in them come from.
var programs = map[string]string{
	"leasemonitor": "./services/leasemonitor/cmd/leasemonitor",
	"assigner":     "./services/assigner/cmd/assigner",
	"rebalancer":   "./services/rebalancer/cmd/rebalancer",
	"ringquery":    "./services/ringquery/cmd/ringquery",
	"example":      "./tools/example/cmd/example",
}

// binaries builds the programs once, and returns the directory they are in.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "manifests-")
	if err != nil {
		return "", err
	}

	built = dir
	for name, path := range programs {
		build := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, name), path)
		build.Dir = root

		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return "", err
		}
	}

	return dir, nil
})

// built is the directory of the binaries, "" until they are needed.
var built string

func TestMain(m *testing.M) {
	code := m.Run()

	if err := os.RemoveAll(built); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// eachKustomization runs check on what every kustomization of deploy/ that has Deployments puts on a cluster.
func eachKustomization(t *testing.T, check func(t *testing.T, in *manifests.Installation)) {
	t.Helper()

	dirs, err := manifests.Find(filepath.Join(root, "deploy"))
	require.NoError(t, err)
	require.Greater(t, len(dirs), 10)

	for _, dir := range dirs {
		t.Run(strings.TrimPrefix(dir, root+"/"), func(t *testing.T) {
			objects, err := manifests.Build(dir)
			require.NoError(t, err)
			require.NotEmpty(t, objects)
			in, err := manifests.Read(objects)
			require.NoError(t, err)
			check(t, in)
		})
	}
}

// TestPodsAreHardened: as restricted as it gets, probed, with requests and limits, and with the time to stop that they need.
func TestPodsAreHardened(t *testing.T) {
	eachKustomization(t, func(t *testing.T, in *manifests.Installation) {
		t.Helper()

		for _, d := range in.Deployments {
			problems, err := manifests.Problems(d)
			require.NoError(t, err)
			require.Empty(t, problems, d.Name)
		}
	})
}

// TestNothingDangles: selectors find pods, ports have names that pods know, rights go to accounts that are there.
func TestNothingDangles(t *testing.T) {
	objects, err := manifests.Build(filepath.Join(root, "deploy", "base"))
	require.NoError(t, err)
	base, err := manifests.Read(objects)
	require.NoError(t, err)

	eachKustomization(t, func(t *testing.T, in *manifests.Installation) {
		t.Helper()

		if len(in.Deployments) == 1 && !strings.HasPrefix(in.Deployments[0].Namespace, "example") {
			t.Skip("a part of deploy/base, whose namespace is elsewhere")
		}

		if len(in.Deployments) == 1 {
			in.Beside(base)
		}
		require.Empty(t, in.Dangling())
	})
}

// TestProgramsTakeTheirArguments runs each program with the arguments of its Deployment, and a kubeconfig that does not exist,
// which it sees after it has judged all else.
func TestProgramsTakeTheirArguments(t *testing.T) {
	dir, err := binaries()
	require.NoError(t, err)
	eachKustomization(t, func(t *testing.T, in *manifests.Installation) {
		t.Helper()

		for _, d := range in.Deployments {
			c := d.Spec.Template.Spec.Containers[0]
			require.Contains(t, programs, image(d), d.Name)
			command := exec.Command(filepath.Join(dir, image(d)), append(c.Args, "--kubeconfig=/does/not/exist")...) //nolint:gosec // built above
			output, err := command.CombinedOutput()
			require.Error(t, err)
			// A port may be taken on the machine of the test; the arguments were judged before.
			require.Regexp(t, `/does/not/exist|cannot listen on`, string(output), "%s %v", d.Name, c.Args)
		}
	})
}

func image(d *appsv1.Deployment) string {
	return strings.TrimPrefix(d.Spec.Template.Spec.Containers[0].Image, "clusterring/")
}

func help(t *testing.T, program string) string {
	t.Helper()

	dir, err := binaries()
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	output, err := exec.CommandContext(ctx, filepath.Join(dir, program), "--help").Output() //nolint:gosec // built above
	require.NoError(t, err)

	return string(output)
}
