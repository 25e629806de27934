package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clusterring/clusterring/tools/dev/toolcache"
)

func TestListNamesEveryTool(t *testing.T) {
	var out strings.Builder
	if err := (dev{out: &out}).run(t.Context(), []string{"-list"}); err != nil {
		t.Fatal(err)
	}

	for _, name := range []string{"buf", "controller-gen", "go-licenses", "golangci-lint", "gotestsum", "grpcurl", "protoc-gen-go-grpc"} {
		if !strings.Contains(out.String(), name+" ") {
			t.Errorf("%s is missing in:\n%s", name, out.String())
		}
	}
}

func TestUnknownToolIsReported(t *testing.T) {
	d := dev{out: &strings.Builder{}, builder: &toolcache.Builder{Cache: t.TempDir()}}

	err := d.run(t.Context(), []string{"hammer"})
	if err == nil || !strings.Contains(err.Error(), `unknown tool "hammer"`) {
		t.Errorf("got %v", err)
	}
}

func TestNameLeavesOutTheMajorVersion(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hammer.mod")

	content := "module x\n\ntool example.org/hammer/v2\n\nrequire example.org/hammer/v2 v2.0.1\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}

	got, err := readTool(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}

	want := tool{name: "hammer", modfile: filepath.ToSlash(file), pkg: "example.org/hammer/v2", version: "v2.0.1"}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestFileMustPinItsTool(t *testing.T) {
	cases := map[string]string{
		"module x\n": "one tool directive",
		"module x\n\ntool example.org/other\n\nrequire example.org v1.0.0\n":      "for a package named hammer",
		"module x\n\ntool example.org/cmd/hammer\n\nrequire example.com v1.0.0\n": "requires no module that contains",
	}
	for content, want := range cases {
		file := filepath.Join(t.TempDir(), "hammer.mod")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}

		if _, err := readTool(t.Context(), file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("for %q got %v, want: ...%s...", content, err, want)
		}
	}
}
