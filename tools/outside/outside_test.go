package outside_test

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
	"sigs.k8s.io/yaml"
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

// others is what those do who import pkg/shard, or install kubectl-ring. They get what is tagged, for nothing in these
// modules needs this repository around it.
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
	o.run("get", repository+"pkg/shard/compat/controller@"+version, repository+"pkg/shard/compat/lease@"+version,
		repository+"tools/testkit/history@"+version)
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

	proxies := []string{"file://" + publish(t, tagged), "file://" +
		filepath.Join(known["GOMODCACHE"], "cache", "download"), known["GOPROXY"]}
	o := outsider{T: t, dir: t.TempDir()}
	o.env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw", "GOSUMDB=off", "GOPRIVATE=", "GONOPROXY=",
		"GOPROXY="+strings.Join(proxies, ","),
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
		require.NoError(t, zip.CreateFromVCS(file, module.Version{Path: repository + dir, Version: version}, tagged.dir, tag,
			dir))
		require.NoError(t, file.Close())

		for name, text := range map[string]string{
			version + ".mod": tagged.git("show", tag+":"+dir+"/go.mod"), version +
				".info": `{"Version":"` + version + `"}`, "list": version + "\n",
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

// checkout is a clone whose last commit contains the source as it is, but for files that git does not know.
type checkout struct {
	t   *testing.T
	dir string
	// sboms is the directory of SBOMs, as if images had been built.
	sboms string
	env   []string
}

func newCheckout(t *testing.T) checkout {
	t.Helper()

	c := checkout{t: t, dir: t.TempDir(), sboms: t.TempDir()}

	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "MAKE") && !strings.HasPrefix(variable, "MFLAGS") &&
			!strings.HasPrefix(variable, "GIT_") {
			c.env = append(c.env, variable)
		}
	}

	c.env = append(c.env, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org",
		"GIT_COMMITTER_NAME=a",
		"GIT_COMMITTER_EMAIL=a@example.org", "GIT_AUTHOR_DATE=1767225600 +0000", "GIT_COMMITTER_DATE=1767225600 +0000")

	for _, image := range []string{"assigner", "example", "leasemonitor", "rebalancer", "ringquery"} {
		text := fmt.Sprintf(`{"name": "sbom-sha256:%s"}`, digest(image))
		require.NoError(t, os.WriteFile(filepath.Join(c.sboms, image+"-index.spdx.json"), []byte(text), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(c.sboms, image+"-linux-amd64.spdx.json"),
			[]byte(strings.Replace(text, digest(image), digest("amd64"), 1)), 0o600))
	}

	top, err := filepath.Abs(root)
	require.NoError(t, err)
	c.git("clone", "--quiet", "--no-tags", "--depth=1", "file://"+top, ".")

	changes := c.git("-C", top, "diff", "--binary", "HEAD") // what is not committed yet
	if changes != "" {
		file := filepath.Join(t.TempDir(), "changes")
		require.NoError(t, os.WriteFile(file, []byte(changes), 0o600))
		c.git("apply", "--index", file)
		c.git("commit", "--quiet", "--message", "changes")
	}

	return c
}

// git returns what git prints.
func (c checkout) git(args ...string) string {
	cmd := exec.CommandContext(c.t.Context(), "git", args...)
	cmd.Dir, cmd.Env = c.dir, c.env
	out, err := cmd.CombinedOutput()
	require.NoError(c.t, err, "git %v: %s", args, out)

	return string(out)
}

// release makes a release, and returns what make prints.
func (c checkout) release(version string, settings ...string) (string, error) {
	cmd := exec.CommandContext(c.t.Context(), "make", append([]string{
		"release", "VERSION=" + version, "RELEASE_IMAGES=", "RELEASE_SBOMS=" + c.sboms, "PLUGIN_PLATFORMS=" +
			strings.Join(platforms, " "),
	}, settings...)...)
	cmd.Dir, cmd.Env = c.dir, c.env
	out, err := cmd.CombinedOutput()

	return string(out), err
}

func (c checkout) refused(version, reason string) {
	out, err := c.release(version)
	require.Error(c.t, err)
	require.Contains(c.t, out, reason)
}

// change adds text to a file.
func (c checkout) change(name, text string) {
	file, err := os.OpenFile(filepath.Join(c.dir, name), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(c.t, err)
	_, err = file.WriteString(text)
	require.NoError(c.t, err)
	require.NoError(c.t, file.Close())
}

// read returns a file of the release.
func (c checkout) read(name string) string {
	content, err := os.ReadFile(filepath.Join(c.dir, "dist", "release", name))
	require.NoError(c.t, err)

	return string(content)
}

func digest(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// tags returns the tags, which are those of all released modules, in which the modules require each other at the
// version.
func (c checkout) tags(t *testing.T) []string {
	t.Helper()

	want := []string{version}

	for _, dir := range released(t) {
		tag := dir + "/" + version
		want = append(want, tag)

		for line := range strings.Lines(c.git("show", tag+":"+dir+"/go.mod")) {
			if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[0], repository) && fields[1] != "=>" {
				require.Equal(t, version, fields[1], "%s in %s", fields[0], tag)
			}
		}
	}

	require.ElementsMatch(t, want, strings.Fields(c.git("tag")))

	return want
}

// version is a version that nobody has released.
const version = "v0.99.1-rc.1"

// downloads is where a release reports that its files are.
const downloads = "https://github.com/clusterring/clusterring/releases/download/" + version + "/"

// TestRelease makes the release of a commit, and then makes it again elsewhere.
func TestRelease(t *testing.T) {
	first, second := newCheckout(t), newCheckout(t)

	first.refused(version, "CHANGELOG.md has no section")

	for _, c := range []checkout{first, second} {
		c.change("CHANGELOG.md", "\n## [0.99.1-rc.1] - 2026-01-02\n\nA test.\n\n[0.99.1-rc.1]: https://example.org\n")
	}

	first.refused(version, "commit everything first")

	for _, c := range []checkout{first, second} {
		c.git("commit", "--quiet", "--all", "--message", "docs: what is new")
	}

	first.refused("0.99.1", "is not a version")
	first.refused("v2.0.0", "is not a version")

	before := first.git("rev-parse", "HEAD")

	out, err := first.release(version)
	require.NoError(t, err, out)

	tags := first.tags(t)
	for _, tag := range tags {
		require.Contains(t, out, "refs/tags/"+tag, "how to push it")
	}

	require.Equal(t, before, first.git("rev-parse", "HEAD"), "the branch is as before")
	require.Equal(t, before, first.git("rev-parse", version+"^{commit}"))
	require.Equal(t, before, first.git("rev-parse", "pkg/"+version+"~1"))
	first.refused(version, "tag "+version+" exists")

	out, err = second.release(version, "DRY_RUN=1")
	require.NoError(t, err, out)
	require.Empty(t, second.git("tag"))

	sums := first.read("checksums.txt")

	t.Run("Reproducible", func(t *testing.T) { require.Equal(t, sums, second.read("checksums.txt")) })
	t.Run("Checksums", func(t *testing.T) { checksums(t, first, sums) })
	t.Run("Krew", func(t *testing.T) { krew(t, first) })
	t.Run("Manifests", func(t *testing.T) { installs(t, first) })
	t.Run("SBOM", func(t *testing.T) { describes(t, first) })
	t.Run("Others", func(t *testing.T) { others(t, first) })
	require.Equal(t, "\nA test.\n\n", first.read("notes.md"))
}

// checksums verifies that each file is listed with its digest.
func checksums(t *testing.T, c checkout, sums string) {
	t.Helper()

	files, err := filepath.Glob(filepath.Join(c.dir, "dist", "release", "*"))
	require.NoError(t, err)
	require.Len(t, strings.Split(strings.TrimSpace(sums), "\n"), len(files)-1, "all files but the list")

	for line := range strings.Lines(sums) {
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		require.True(t, ok, line)
		require.Equal(t, digest(c.read(name)), sum, name)
	}
}

// plugin has the fields of a manifest that krew documents.
type plugin struct {
	APIVersion, Kind string
	Metadata         map[string]string
	Spec             struct {
		Version, Homepage, ShortDescription, Description, Caveats string
		Platforms                                                 []struct {
			Selector         struct{ MatchLabels map[string]string }
			URI, SHA256, Bin string
			Files            []krewFile
		}
	}
}

type krewFile struct{ From, To string }

// krew does what krew does with the manifest: it finds the archive of a platform, verifies it, and finds the files in
// it.
func krew(t *testing.T, c checkout) {
	t.Helper()

	var p plugin
	require.NoError(t, yaml.UnmarshalStrict([]byte(c.read("ring.yaml")), &p))
	require.Equal(t, "krew.googlecontainertools.github.com/v1alpha2 Plugin ring "+version,
		strings.Join([]string{p.APIVersion, p.Kind, p.Metadata["name"], p.Spec.Version}, " "))
	require.LessOrEqual(t, len(p.Spec.ShortDescription), 50, "krew shows it in a line")
	require.NotEmpty(t, p.Spec.Description)

	var found []string

	for _, platform := range p.Spec.Platforms {
		labels := platform.Selector.MatchLabels
		found = append(found, labels["os"]+"/"+labels["arch"])
		name, ok := strings.CutPrefix(platform.URI, downloads)
		require.True(t, ok, platform.URI)
		require.Equal(t, digest(c.read(name)), platform.SHA256)

		modes := unpack(t, filepath.Join(c.dir, "dist", "release", name))
		for _, file := range platform.Files {
			require.Contains(t, modes, file.From)
			delete(modes, file.From)
		}

		require.Empty(t, modes, "files that krew would not install")
		require.Contains(t, platform.Files, krewFile{platform.Bin, "."})
	}

	require.Equal(t, platforms, found)
}

// unpack returns the modes of the files in an archive, the program of which is executable.
func unpack(t *testing.T, name string) map[string]os.FileMode {
	t.Helper()

	modes := map[string]os.FileMode{}

	file, err := os.Open(name)
	require.NoError(t, err)

	defer file.Close()

	compressed, err := gzip.NewReader(file)
	require.NoError(t, err)

	archive := tar.NewReader(compressed)
	for header, err := archive.Next(); err != io.EOF; header, err = archive.Next() {
		require.NoError(t, err)
		require.Empty(t, header.Uname+header.Gname, "no user of the machine that made it")
		require.Equal(t, strings.HasPrefix(header.Name, "kubectl-ring"), header.Mode == 0o755, header.Name)

		modes[header.Name] = header.FileInfo().Mode()
	}

	return modes
}

// imageLine matches what a manifest names as an image.
var imageLine = regexp.MustCompile(`(?m)^ +(?:- )?image: (\S+)$`)

// installs verifies that every manifest refers to images by the digests that the SBOMs name.
func installs(t *testing.T, c checkout) {
	t.Helper()

	for name, images := range map[string][]string{
		"crds.yaml": nil, "install.yaml": {"assigner", "leasemonitor", "rebalancer",
			"ringquery"}, "example.yaml": {"example"},
	} {
		var found, want []string

		for _, m := range imageLine.FindAllStringSubmatch(c.read(name), -1) {
			found = append(found, m[1])
		}

		for _, image := range images {
			want = append(want, "clusterring/"+image+"@sha256:"+digest(image))
		}

		require.ElementsMatch(t, want, found, name)
	}
}

// describes verifies that the SBOM of an archive lists the modules of the plugin.
func describes(t *testing.T, c checkout) {
	t.Helper()

	var sbom struct {
		SPDXVersion string
		Packages    []struct{ Name, VersionInfo string }
	}
	require.NoError(t,
		json.Unmarshal([]byte(c.read("kubectl-ring_"+version+"_"+strings.ReplaceAll(native, "/", "_")+".spdx.json")), &sbom))
	require.Equal(t, "SPDX-2.3", sbom.SPDXVersion)

	versions := map[string]string{}
	for _, p := range sbom.Packages {
		versions[p.Name] = p.VersionInfo
	}

	require.Equal(t, version, versions[repository+"pkg"])
	require.Equal(t, version, versions[repository+"tools/kubectl-ring"])
	require.Equal(t, strings.TrimPrefix(runtime.Version(), "go"), versions["stdlib"])

	for _, r := range parse(t, "tools/kubectl-ring").Require {
		if r.Mod.Path == "k8s.io/client-go" {
			require.Equal(t, r.Mod.Version, versions[r.Mod.Path])
		}
	}
}

// native is the platform that the test builds the plugin for. Another one takes minutes of CPU; make test-release
// builds all.
var (
	native    = runtime.GOOS + "/" + runtime.GOARCH
	platforms = []string{native}
)
