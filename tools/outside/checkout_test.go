package outside_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// checkout is a repository with one commit, which contains the source as it is.
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
		if !strings.HasPrefix(variable, "MAKE") && !strings.HasPrefix(variable, "MFLAGS") && !strings.HasPrefix(variable, "GIT_") {
			c.env = append(c.env, variable)
		}
	}

	c.env = append(c.env, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a",
		"GIT_COMMITTER_EMAIL=a@example.org", "GIT_AUTHOR_DATE=1767225600 +0000", "GIT_COMMITTER_DATE=1767225600 +0000")

	for _, image := range []string{"assigner", "example", "leasemonitor", "rebalancer", "ringquery"} {
		text := fmt.Sprintf(`{"name": "sbom-sha256:%s"}`, digest(image))
		require.NoError(t, os.WriteFile(filepath.Join(c.sboms, image+"-index.spdx.json"), []byte(text), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(c.sboms, image+"-linux-amd64.spdx.json"), []byte(strings.Replace(text, digest(image), digest("amd64"), 1)), 0o600))
	}

	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	list.Dir = root
	files, err := list.Output()
	require.NoError(t, err)

	for name := range strings.SplitSeq(strings.TrimRight(string(files), "\x00"), "\x00") {
		from := filepath.Join(root, name)

		info, err := os.Stat(from)
		if os.IsNotExist(err) { // removed, but not yet from the index
			continue
		}

		require.NoError(t, err)

		content, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(c.dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(c.dir, name), content, info.Mode()))
	}

	c.git("init", "--quiet")
	c.git("add", "--all")
	c.git("commit", "--quiet", "--message", "all")

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
		"release", "VERSION=" + version, "RELEASE_IMAGES=", "RELEASE_SBOMS=" + c.sboms, "PLUGIN_PLATFORMS=" + strings.Join(platforms, " "),
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

// tags returns the tags, which are those of all released modules, in which the modules require each other at the version.
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
