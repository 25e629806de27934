package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAssetsAreUsedAsTheyAre(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(assetsVariable, dir)

	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager"} {
		var out strings.Builder

		err := start(t.Context(), nil, &out, io.Discard)
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
	if err := start(t.Context(), nil, &out, io.Discard); err != nil || out.String() != dir+"\n" {
		t.Errorf("printed %q, %v", out.String(), err)
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
