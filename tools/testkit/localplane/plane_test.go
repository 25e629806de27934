package localplane_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// asParent, set in the environment to a state directory, makes the test binary a parent to be killed.
const asParent = "LOCALPLANE_TEST_AS_PARENT"

const (
	soon = 30 * time.Second
	tick = 20 * time.Millisecond
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(asParent); dir != "" {
		if _, err := localplane.Start(localplane.Options{Dir: dir}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Fprintln(os.Stdout, "started")

		select {}
	}
	os.Exit(localplane.Main(m, nil))
}

// TestOrphansAreFound kills a parent, which leaves a control plane without an owner.
func TestOrphansAreFound(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	neighbour := dir + "2" // a name that begins with ours
	bystander := exec.CommandContext(t.Context(), "sleep", "1h")
	bystander.Args[0] = neighbour + "/sleep"
	require.NoError(t, bystander.Start())

	var out bytes.Buffer

	parent := exec.CommandContext(t.Context(), os.Args[0])

	parent.Env = append(os.Environ(), asParent+"="+dir)
	parent.Stdout = writerFunc(func(p []byte) (int, error) {
		out.Write(p)
		return len(p), parent.Process.Kill() // as soon as it reports that it has started
	})
	require.Error(t, parent.Run())
	require.Equal(t, "started\n", out.String())
	require.Len(t, processes(t, dir), 2)

	_, err := localplane.Start(localplane.Options{Dir: dir})
	require.EqualError(t, err,
		"state directory "+dir+" already contains a control plane: stop it and remove the directory, or choose another one")

	require.NoError(t, localplane.RemoveState(dir))
	require.Eventually(t, func() bool { return len(processes(t, dir)) == 0 }, soon, tick)
	require.NoDirExists(t, dir)
	require.NoError(t, localplane.RemoveState(dir), "again")

	require.Len(t, processes(t, neighbour), 1, "others are left alone")
	require.NoError(t, bystander.Process.Kill())
	require.Error(t, bystander.Wait())
}

func TestMissingBinaries(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", t.TempDir())

	_, err := localplane.Start(localplane.Options{})
	require.ErrorContains(t, err, ": [etcd kube-apiserver]; see $KUBEBUILDER_ASSETS")
}

// TestStartFails shows what a person sees when a process does not come up.
func TestStartFails(t *testing.T) {
	bin := t.TempDir()

	for _, name := range []string{"etcd", "kube-apiserver"} {
		script := "#!/bin/sh\ncase $1 in --help) exit 0;; esac\necho " + name + " cannot work here >&2\nexit 1\n"
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700))
	}

	_, err := localplane.Start(localplane.Options{BinDir: bin})
	require.ErrorContains(t, err, "etcd.log: etcd cannot work here")
}

// TestControllerManager needs the deletion of namespaces, and afterwards looks for what is left behind.
func TestControllerManager(t *testing.T) {
	p, err := localplane.Start(localplane.Options{ControllerManager: true})

	require.NoError(t, err)
	defer func() {
		require.NoError(t, p.Stop())
		require.NoError(t, p.Stop(), "again")
		require.Empty(t, processes(t, p.Dir()))
		require.NoDirExists(t, p.Dir())
	}()

	running, err := p.Processes()
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"etcd", "kube-apiserver", "kube-controller-manager"},
		slices.Collect(maps.Keys(running)))
	require.FileExists(t, p.Kubeconfig())
	ctx := t.Context()

	ns := p.Namespace(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
	require.NoError(t, p.Client.Delete(ctx, namespace))
	require.Eventually(t, func() bool {
		return apierrors.IsNotFound(p.Client.Get(ctx, client.ObjectKeyFromObject(namespace), namespace))
	}, soon, tick)
}

// processes returns the arguments of the processes that name dir as a path.
func processes(t *testing.T, dir string) []string {
	t.Helper()

	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)

	var found []string

	for _, file := range files {
		if args, err := os.ReadFile(file); err == nil && strings.Contains(string(args), dir+"/") {
			found = append(found, string(args))
		}
	}

	return found
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
