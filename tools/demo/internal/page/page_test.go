package page_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clusterring/clusterring/tools/demo/internal/page"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// markdown writes a page, in which three quotes stand for a fence.
func markdown(text string) string { return strings.ReplaceAll(text, "'''", "```") }

const before = `# A page

'''console
$ greeting=hello
$ echo "$greeting" && \
  echo world >&2
old
$ printf 'no line feed'
'''

'''sh
$ this is not run
'''

'''console
$ echo "$greeting again"
hello again
$ cat nowhere; echo "exit code $?"
'''
The end.
`

const after = `# A page

'''console
$ greeting=hello
$ echo "$greeting" && \
  echo world >&2
hello
world
$ printf 'no line feed'
no line feed
'''

'''sh
$ this is not run
'''

'''console
$ echo "$greeting again"
hello again
$ cat nowhere; echo "exit code $?"
cat: nowhere: No such file or directory
exit code 1
'''
The end.
`

// shell returns a shell with nothing but a path.
func shell(t *testing.T) *page.Shell {
	t.Helper()
	sh, err := page.NewShell(t.TempDir(), []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sh.Close()) })

	return sh
}

func TestUpdate(t *testing.T) {
	p, err := page.Parse(markdown(before))
	require.NoError(t, err)
	require.Equal(t, markdown(before), p.String(), "nothing is lost")

	differ, err := p.Update(t.Context(), shell(t), 0)
	require.NoError(t, err)
	require.Equal(t, markdown(after), p.String())
	require.Len(t, differ, 3)
	require.Equal(t, "line 5: $ echo \"$greeting\" && \\\n  echo world >&2\nprints:\nhello\nworld\n"+
		"and not what the page says:\nold\n", differ[0])

	differ, err = p.Update(t.Context(), shell(t), 0)
	require.NoError(t, err)
	require.Empty(t, differ)
}

func TestUpdateIsPatient(t *testing.T) {
	p, err := page.Parse(markdown("'''console\n$ echo x >>runs; wc -l <runs | tr -d ' '\n3\n'''\n"))
	require.NoError(t, err)
	differ, err := p.Update(t.Context(), shell(t), time.Minute)
	require.NoError(t, err)
	require.Empty(t, differ)
}

func TestPagesThatCannotBe(t *testing.T) {
	for text, want := range map[string]string{
		"'''console\n$ true\n":         "not closed",
		"'''console\nthis\n'''\n":      "line 2: a console block must begin with a command",
		"'''console\n$ true \\\n'''\n": "not closed",
	} {
		_, err := page.Parse(markdown(text))
		require.ErrorContains(t, err, want)
	}

	p, err := page.Parse(markdown("'''console\n$ echo '$ x'\n'''\n"))
	require.NoError(t, err)
	_, err = p.Update(t.Context(), shell(t), 0)
	require.ErrorContains(t, err, "a line that the page cannot show")
}

func TestNothingIsLeftInTheBackground(t *testing.T) {
	dir := t.TempDir()
	sh, err := page.NewShell(dir, []string{"PATH=" + os.Getenv("PATH")})
	require.NoError(t, err)

	fifo := filepath.Join(dir, "fifo")
	_, err = sh.Run(t.Context(), "mkfifo "+fifo+"; sleep 3600 >"+fifo+" & true")
	require.NoError(t, err)
	reader, err := os.Open(fifo) // which waits until somebody writes

	require.NoError(t, err)
	defer func() { require.NoError(t, reader.Close()) }()
	require.NoError(t, sh.Close())

	n, _ := reader.Read(make([]byte, 1))
	require.Zero(t, n, "its end is seen: nobody writes any more")
}

func TestStable(t *testing.T) {
	for output, want := range map[string]string{
		"":  "",
		"x": "x\n",
		`"uid": "4a0f3a5e-8d58-4a0c-9d4a-7e2f1b2c3d4e"`: `"uid": "01234567-89ab-cdef-0123-456789abcdef"` + "\n",
		`"createTime": "2031-11-21T19:55:47.5Z"`:        `"createTime": "2026-01-02T15:04:05Z"` + "\n",
		"09:10:11  3 of 3 shards available":             "15:04:05  3 of 3 shards available\n",
		"since 2031-11-21T19:55:47Z":                    "since 2026-01-02T15:04:05Z\n",
		"ready     33.3%   12s ago   -":                 "ready     33.3%   1s ago   -\n",
		"at least 1m5s ago":                             "1s ago\n",
		"renewed 2 s ago. It":                           "renewed 1 s ago. It\n",
		"asked 1 h 5 min ago":                           "asked 1 s ago\n",
		`"renewalAge": "0.312456s"`:                     `"renewalAge": "1s"` + "\n",
		"websites > configmaps   3m7s":                  "websites > configmaps   1s\n",
		"It is only 12 s old.":                          "It is only 1 s old.\n",
		"deleted, for 5 min now:":                       "deleted, for 1 s now:\n",
		`"nextPageToken": "OTA0MjIx"`:                   `"nextPageToken": "b3BhcXVl"` + "\n",
		`"nextPageToken": ""`:                           `"nextPageToken": ""` + "\n",
		"at the shard s":                                "at the shard s\n",
		"asked: 127.0.0.1:41235 without TLS":            "asked: 127.0.0.1:8090 without TLS\n",
		"partition 5461, hash 1234567890":               "partition 5461, hash 1234567890\n",
		"its Lease (6s)":                                "its Lease (6s)\n",
	} {
		require.Equal(t, want, page.Stable(output))
		require.Equal(t, want, page.Stable(want), "what is stable stays so")
	}
}
