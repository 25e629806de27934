// Package transcript runs tests whose cases are tables in files: each line is an event, followed by its results. A test
// plays the events, and compares the results with those of the file. With -update, it writes them.
package transcript

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gotest.tools/v3/golden"
)

// columns are separated by at least two blanks.
var columns = regexp.MustCompile(` {2,}`)

// Player plays one transcript. Each function gets a line, or its parts, and returns the line with the results.
type Player struct {
	// Header returns the line with the titles of the columns, which begins with "time".
	Header func() string
	// Setting is the first word of lines that Set handles, and that have no results. Empty: there are none.
	Setting string
	Set     func(line string)
	// Step plays an event. The time and the event are the first two columns.
	Step func(time, event string) string
}

// Run plays each file of testdata with the ending .txt, as a subtest with a player of its own. Empty lines and lines
// that begin with # are comments.
func Run(t *testing.T, player func(t *testing.T) Player) {
	t.Helper()

	files, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	require.NoError(t, err)
	require.NotEmpty(t, files)

	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			golden.Assert(t, player(t).play(t, string(content)), filepath.Base(file))
		})
	}
}

func (p Player) play(t *testing.T, content string) string {
	t.Helper()

	var out strings.Builder

	for line := range strings.Lines(content) {
		line = strings.TrimSuffix(line, "\n")
		word, _, _ := strings.Cut(line, " ")

		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case word != "" && word == p.Setting:
			p.Set(line)
		case word == "time":
			line = p.Header()
		default:
			fields := columns.Split(line, 3)
			require.GreaterOrEqual(t, len(fields), 2, "line %q", line)
			line = p.Step(fields[0], fields[1])
		}

		out.WriteString(line + "\n")
	}

	return out.String()
}
