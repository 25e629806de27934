package manifests_test

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	// rejected finds a section of a comment, or a paragraph.
	rejected = regexp.MustCompile(`(?m)^\s*// (?:# Rejected alternatives?\n\s*//\n((?:\s*//.*\n)+)` +
		`|Rejected alternatives?: (.*\n(?:\s*// .+\n)*))`)
	comment  = regexp.MustCompile(`(?m)^\s*// ?`)
	sentence = regexp.MustCompile(`^(.+?)(?:: |\. [A-Z]|\.? $)`)
)

// TestRejectedAlternatives compares the index in docs/development.md with the comments of the code.
func TestRejectedAlternatives(t *testing.T) {
	repository := os.DirFS(root)

	var b strings.Builder

	b.WriteString("| package | rejected |\n|---|---|\n")

	require.NoError(t, fs.WalkDir(repository, ".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && len(d.Name()) > 1 && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go"):
			return nil
		}

		content, err := fs.ReadFile(repository, file)
		for _, m := range rejected.FindAllStringSubmatch(string(content), -1) {
			fmt.Fprintf(&b, "| [%s](../%s) | %s |\n", path.Dir(file), file, summary(comment.ReplaceAllString(m[1]+m[2], "")))
		}

		return err
	}))
	replaceBlock(t, "docs/development.md", "rejected", b.String())
}

// summary returns the beginning of each item of a list, or of each paragraph up to a list.
func summary(text string) string {
	var begins []string

	items := strings.Split(strings.TrimSpace(text), "\n\n")
	if list, ok := strings.CutPrefix(items[0], "- "); ok {
		items = strings.Split(list, "\n  - ")
	}

	for _, item := range items {
		if strings.HasPrefix(item, "  - ") {
			break
		}

		if m := sentence.FindStringSubmatch(strings.Join(strings.Fields(item), " ") + " "); m != nil {
			begins = append(begins, m[1])
		}
	}

	return strings.ReplaceAll(strings.Join(begins, "; "), "|", `\|`)
}

func TestSummary(t *testing.T) {
	for text, want := range map[string]string{
		"  - One thing (by A. et al. 2016): it is\n    slow.\n  - another one.": "One thing (by A. et al. 2016); another one",
		"A Lease for each ring,\nwhich costs. And more.\n\nNone. At all.":       "A Lease for each ring, which costs; None",
		"The other way.\n\n  - It is slow.":                                     "The other way",
	} {
		require.Equal(t, want, summary(text))
	}
}
