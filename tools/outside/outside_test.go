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

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/shard"
)

func main() {
	var options shard.Options
	fmt.Println(contract.ShardLabel("example"), options.Ring == "")
}
`

// others is what those do who import pkg/shard, or install kubectl-ring. They get what is tagged, for nothing in these modules needs this
// repository around it.
func others(t *testing.T, tagged checkout) {
	t.Helper()

	o := newOutsider(t, tagged)

	require.NoError(t, os.WriteFile(filepath.Join(o.dir, "main.go"), []byte(controller), 0o600))
	o.run("mod", "init", "example.org/controller")
	o.run("get", repository+"pkg@"+version)
	o.run("mod", "tidy")
	o.run("build", "-trimpath", "-o", "controller", ".")

	out, err := exec.CommandContext(t.Context(), filepath.Join(o.dir, "controller")).Output()
	require.NoError(t, err)
	require.Equal(t, "shard.alpha.sharding.timebertt.dev/clusterring-50d858e0-example true\n", string(out))

	// A program that was written for the prior art, with our import paths.
	guide, err := os.ReadFile(filepath.Join(root, "tools", "guide", "cmd", "guide", "main.go"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(o.dir, "main.go"), guide, 0o600))
	o.run("get", repository+"pkg/shard/compat/controller@"+version, repository+"pkg/shard/compat/lease@"+version, repository+"tools/testkit/history@"+version)
	o.run("build", "-trimpath", "-mod=mod", "-o", "guide", ".")

	// A program with the embedded sharder has no laboratory among its modules, and nothing of the test kit in it.
	o.run("get", repository+"services/embedded@"+version)
	require.NotRegexp(t, repository+"(tools|tools/example|services/lab) ", o.run("list", "-m", "all"))
	require.NotContains(t, o.run("list", "-mod=mod", "-deps", repository+"services/embedded"), "/testkit")

	o.run("install", "-trimpath", repository+"tools/kubectl-ring@"+version)

	out, err = exec.CommandContext(t.Context(), filepath.Join(o.dir, "bin", "kubectl-ring"), "version").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "kubectl-ring "+version+" ")
}

// A module that others install is refused by the go command if it has a directive that changes what it requires.
func TestReleasedModulesRequireOnlyReleasedModules(t *testing.T) {
	modules := released(t)

	for _, dir := range modules {
		for _, r := range parse(t, dir).Require {
			if sibling, ok := strings.CutPrefix(r.Mod.Path, repository); ok {
				require.Contains(t, modules, sibling, "%s/go.mod requires what is not released", dir)
			}
		}
	}

	for _, dir := range []string{"pkg", "proto", "tools/kubectl-ring"} {
		require.Empty(t, parse(t, dir).Replace, "%s/go.mod", dir)
	}
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

	dir string
	env []string
}

func newOutsider(t *testing.T, tagged checkout) outsider {
	t.Helper()

	known := map[string]string{}
	out, err := exec.CommandContext(t.Context(), "go", "env", "-json", "GOMODCACHE", "GOPROXY").Output()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, &known))

	proxies := []string{"file://" + publish(t, tagged), "file://" + filepath.Join(known["GOMODCACHE"], "cache", "download"), known["GOPROXY"]}
	o := outsider{T: t, dir: t.TempDir()}
	o.env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw", "GOSUMDB=off", "GOPRIVATE=", "GONOPROXY=", "GOPROXY="+strings.Join(proxies, ","),
		"GOMODCACHE="+t.TempDir(), "GOBIN="+filepath.Join(o.dir, "bin"), "CGO_ENABLED=0")

	return o
}

// publish lays out what the tags contain as a module proxy does, and returns the directory.
func publish(t *testing.T, tagged checkout) string {
	t.Helper()

	proxy := t.TempDir()

	for _, dir := range released(t) {
		at := filepath.Join(proxy, filepath.FromSlash(repository+dir), "@v")
		require.NoError(t, os.MkdirAll(at, 0o700))

		tag := dir + "/" + version
		file, err := os.Create(filepath.Join(at, version+".zip"))
		require.NoError(t, err)
		require.NoError(t, zip.CreateFromVCS(file, module.Version{Path: repository + dir, Version: version}, tagged.dir, tag, dir))
		require.NoError(t, file.Close())

		for name, text := range map[string]string{
			version + ".mod": tagged.git("show", tag+":"+dir+"/go.mod"), version + ".info": `{"Version":"` + version + `"}`, "list": version + "\n",
		} {
			require.NoError(t, os.WriteFile(filepath.Join(at, name), []byte(text), 0o600))
		}
	}

	return proxy
}

// run runs the go command, and returns what it prints.
func (o outsider) run(args ...string) string {
	cmd := exec.CommandContext(o.Context(), "go", args...)
	cmd.Dir, cmd.Env = o.dir, o.env
	out, err := cmd.CombinedOutput()
	require.NoError(o, err, "go %s:\n%s", strings.Join(args, " "), out)

	return string(out)
}
