package walls

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// wrong are words that the repository does not use, each with what stands in its place: words that docs/development.md
// rules out as far as text alone shows it, and phrases that make a reader read twice.
var wrong = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\bwhoever`), "name who it is; everyone who; no matter who"},
	{regexp.MustCompile(`(?i)\bsays that\b`), "reports that, or what it says"},
	{regexp.MustCompile(`(?i)\b(what|that) is to be\b`), "what has to be, or the verb"},
	{regexp.MustCompile(`(?i)\bone's own\b`), "your own"},
	{regexp.MustCompile(`(?i)\b(astray|hasten)`), "a word of the vocabulary in docs/development.md"},
	{regexp.MustCompile(`(?i)\blease[- ]health\b`), "lease monitor"},
	{regexp.MustCompile(`(?i)\bring[- ]query\b( [^s])`), "ring query service, or the name ringquery"},
	{regexp.MustCompile(`(?i)\bhand over\b`), "hand-over, or move"},
}

func TestWords(t *testing.T) {
	root := filepath.Join("..", "..")
	listed, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "*.go", "*.md", "*.yaml",
		"*.proto").Output()
	require.NoError(t, err)

	for name := range strings.FieldsSeq(string(listed)) {
		if name == "tools/walls/words_test.go" || name == "docs/development.md" {
			continue
		}

		file, err := os.Open(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, not committed yet
		}

		require.NoError(t, err)

		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<20)

		for number := 1; lines.Scan(); number++ {
			for _, w := range wrong {
				if at := w.pattern.FindString(lines.Text()); at != "" {
					t.Errorf("%s:%d: %q: write %s", name, number, at, w.instead)
				}
			}
		}

		require.NoError(t, lines.Err())
		require.NoError(t, file.Close())
	}
}
