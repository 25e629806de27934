package outside_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

const (
	repository = "github.com/clusterring/clusterring/"
	root       = "../.."
)

// releasedLine matches the Makefile's list of the modules that a release tags.
var releasedLine = regexp.MustCompile(`(?m)^RELEASED\s*:=(.*)$`)

// released returns the directories of the modules that a release tags, as the Makefile lists them.
func released(t *testing.T) []string {
	t.Helper()

	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)

	line := releasedLine.FindSubmatch(makefile)
	require.NotNil(t, line, "the Makefile has no line that matches %s", releasedLine)

	return strings.Fields(string(line[1]))
}

// controller is what somebody writes who shards a controller.
const controller = `package main

import (
	"fmt"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/pkg/shard"
)

func main() {
	var options shard.Options
	fmt.Println(v1alpha1.ShardLabel("example"), options.Ring == "")
}
`

// Those who import pkg/shard, or install kubectl-ring, get what is tagged, for nothing in these modules needs this repository around it.
func TestTaggedModulesServeOthers(t *testing.T) {
	o := newOutsider(t, version(t))

	require.NoError(t, os.WriteFile(filepath.Join(o.dir, "main.go"), []byte(controller), 0o600))
	o.run("mod", "init", "example.org/controller")
	o.run("get", repository+"pkg/shard@"+o.version)
	o.run("build", "-trimpath", "-o", "controller", ".")

	out, err := exec.CommandContext(t.Context(), filepath.Join(o.dir, "controller")).Output()
	require.NoError(t, err)
	require.Equal(t, "shard.alpha.sharding.timebertt.dev/clusterring-50d858e0-example true\n", string(out))

	// A program that was written for the prior art, with our import paths.
	guide, err := os.ReadFile(filepath.Join(root, "tools", "guide", "cmd", "guide", "main.go"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(o.dir, "main.go"), guide, 0o600))
	o.run("get", repository+"pkg/shard/controller@"+o.version, repository+"pkg/shard/lease@"+o.version, repository+"tools/example/history@"+o.version)
	o.run("build", "-trimpath", "-mod=mod", "-o", "guide", ".")

	o.run("install", "-trimpath", repository+"tools/kubectl-ring@"+o.version)

	out, err = exec.CommandContext(t.Context(), filepath.Join(o.dir, "bin", "kubectl-ring"), "--help").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "kubectl ring")
}

// A module that others install is refused by the go command if it has a directive that changes what it requires.
func TestReleasedModulesRequireEachOtherAtOneVersion(t *testing.T) {
	want, modules := version(t), released(t)

	for _, dir := range modules {
		mod := parse(t, dir)
		for _, r := range mod.Require {
			if strings.HasPrefix(r.Mod.Path, repository) {
				require.Equal(t, want, r.Mod.Version, "%s in %s/go.mod", r.Mod.Path, dir)
				require.Contains(t, modules, strings.TrimPrefix(r.Mod.Path, repository), "%s/go.mod requires what is not released", dir)
			}
		}
	}

	for _, dir := range []string{"pkg", "proto", "tools/kubectl-ring"} {
		require.Empty(t, parse(t, dir).Replace, "%s/go.mod", dir)
	}
}

// version returns the version of the next release: that which kubectl-ring requires of pkg.
func version(t *testing.T) string {
	t.Helper()

	for _, r := range parse(t, "tools/kubectl-ring").Require {
		if r.Mod.Path == repository+"pkg" {
			return r.Mod.Version
		}
	}

	require.FailNow(t, "tools/kubectl-ring/go.mod does not require pkg")

	return ""
}

func parse(t *testing.T, dir string) *modfile.File {
	t.Helper()

	name := filepath.Join(root, filepath.FromSlash(dir), "go.mod")
	content, err := os.ReadFile(name)
	require.NoError(t, err)

	mod, err := modfile.Parse(name, content, nil)
	require.NoError(t, err)

	return mod
}

// outsider is somebody with the go command and an empty directory.
type outsider struct {
	*testing.T

	dir     string
	version string
	env     []string
}

func newOutsider(t *testing.T, version string) outsider {
	t.Helper()

	known := map[string]string{}
	out, err := exec.CommandContext(t.Context(), "go", "env", "-json", "GOMODCACHE", "GOPROXY").Output()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, &known))

	o := outsider{T: t, dir: t.TempDir(), version: version}
	proxies := []string{"file://" + o.publish(), "file://" + filepath.Join(known["GOMODCACHE"], "cache", "download"), known["GOPROXY"]}
	o.env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw", "GOSUMDB=off", "GOPRIVATE=", "GONOPROXY=", "GOPROXY="+strings.Join(proxies, ","),
		"GOMODCACHE="+t.TempDir(), "GOBIN="+filepath.Join(o.dir, "bin"), "CGO_ENABLED=0")

	return o
}

// publish lays the modules of the repository out as a module proxy has them, and returns the directory.
func (o outsider) publish() string {
	proxy := o.TempDir()

	for _, dir := range released(o.T) {
		at := filepath.Join(proxy, filepath.FromSlash(repository+dir), "@v")
		require.NoError(o, os.MkdirAll(at, 0o700))

		source := filepath.Join(root, filepath.FromSlash(dir))
		content, err := os.ReadFile(filepath.Join(source, "go.mod"))
		require.NoError(o, err)

		file, err := os.Create(filepath.Join(at, o.version+".zip"))
		require.NoError(o, err)
		require.NoError(o, zip.CreateFromDir(file, module.Version{Path: repository + dir, Version: o.version}, source))
		require.NoError(o, file.Close())

		for name, text := range map[string]string{
			o.version + ".mod": string(content), o.version + ".info": `{"Version":"` + o.version + `"}`, "list": o.version + "\n",
		} {
			require.NoError(o, os.WriteFile(filepath.Join(at, name), []byte(text), 0o600))
		}
	}

	return proxy
}

// run runs the go command.
func (o outsider) run(args ...string) {
	cmd := exec.CommandContext(o.Context(), "go", args...)
	cmd.Dir, cmd.Env = o.dir, o.env
	out, err := cmd.CombinedOutput()
	require.NoError(o, err, "go %s:\n%s", strings.Join(args, " "), out)
}
