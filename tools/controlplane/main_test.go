package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clusterring/clusterring/tools/dev/toolcache"
)

// A builder that cannot build: these tests must not need one.
var idle = &toolcache.Builder{Cache: "/nowhere", Go: "/no/go"}

func TestAssetsAreUsedAsTheyAre(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(assetsVariable, dir)

	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager"} {
		var out strings.Builder

		err := run(t.Context(), nil, &out, idle)
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), dir) {
			t.Fatalf("without %s: %v", name, err)
		}

		if out.Len() > 0 {
			t.Errorf("printed %q with an error", out.String())
		}

		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}

	var out strings.Builder
	if err := run(t.Context(), nil, &out, idle); err != nil || out.String() != dir+"\n" {
		t.Errorf("printed %q, %v", out.String(), err)
	}
}

func TestArgumentsAreRefused(t *testing.T) {
	if err := run(t.Context(), []string{"please"}, &strings.Builder{}, idle); err == nil || !strings.Contains(err.Error(), `"please"`) {
		t.Errorf("got %v", err)
	}
}

func TestVersionIsThatOfTheModule(t *testing.T) {
	content, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}

	if !strings.Contains(string(content), "k8s.io/kubernetes "+kubernetesVersion+"\n") {
		t.Errorf("go.mod requires another k8s.io/kubernetes than %s, which the binaries say they are", kubernetesVersion)
	}
}
