package chart_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

const (
	root   = "../.."
	dir    = root + "/charts/clusterring"
	system = "sharding-system"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// program builds Helm if it is not in the cache, and returns its path.
var program = sync.OnceValues(func() (string, error) {
	build := exec.Command(filepath.Join(root, "hack", "tool"), "helm")
	build.Stderr = os.Stderr
	path, err := build.Output()

	return strings.TrimSpace(string(path)), err
})

// helm runs Helm, without the settings of whoever runs the test, and returns its output, and its errors as an error.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()

	path, err := program()
	require.NoError(t, err)

	var stdout, stderr bytes.Buffer

	home := t.TempDir()
	command := exec.CommandContext(t.Context(), path, args...)
	command.Stdout, command.Stderr = &stdout, &stderr

	command.Env = append(os.Environ(), "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "HELM_CACHE_HOME="+home, "HELM_NAMESPACE=")

	if err := command.Run(); err != nil {
		return stdout.String(), fmt.Errorf("helm %s: %w: %s", args[0], err, stderr.String())
	}

	return stdout.String(), nil
}

// objects are objects by kind, namespace, and name.
type objects map[string]*unstructured.Unstructured

func key(o *unstructured.Unstructured) string {
	return strings.TrimSuffix(o.GetKind()+" "+o.GetNamespace(), " ") + " " + o.GetName()
}

// render returns the objects of the chart with these values, without hooks.
func render(t *testing.T, namespace string, values ...string) objects {
	t.Helper()

	args := []string{"template", "clusterring", dir, "--namespace", namespace, "--no-hooks"}
	for _, value := range values {
		args = append(args, "--set-json", value)
	}

	out, err := helm(t, args...)
	require.NoError(t, err)

	found := objects{}

	documents := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(out)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return found
		}

		require.NoError(t, err)

		o := &unstructured.Unstructured{}
		require.NoError(t, yaml.UnmarshalStrict(document, &o.Object), string(document))

		if len(o.Object) == 0 {
			continue
		}
		require.NotContains(t, found, key(o))
		found[key(o)] = o
	}
}
