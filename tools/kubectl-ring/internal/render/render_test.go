package render_test

import (
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
)

// TestTableGrows verifies that rows are aligned with the rows of earlier flushes, as far as they fit.
func TestTableGrows(t *testing.T) {
	var out strings.Builder

	table := &render.Table{W: &out}
	table.Header("A", "B")
	table.Reserve(0, "reserved")
	table.Row("x", render.Good.In("y"))
	require.NoError(t, table.Flush())
	table.Row("lang genug, um größer zu werden", "")
	table.Row("ä\x1b[31m\n", 7)
	require.NoError(t, table.Flush())
	require.Equal(t, ""+
		"A          B\n"+
		"x          y\n"+
		"lang genug, um größer zu werden   -\n"+
		"ä?[31m                            7\n", out.String())
	require.NoError(t, table.Flush(), "nothing is added")
	require.Equal(t, 4, strings.Count(out.String(), "\n"))
}

// Whatever names and messages contain, a terminal gets one line for each row, and no character that it obeys: no
// control character of any kind, and none that reorders or hides what follows.
func FuzzTerminal(f *testing.F) {
	f.Add("name", "a message")
	f.Add("\x1b]0;title\x07", "\x1b[2J\r\n\t\v\f\x00\x7f")
	f.Add("\u009b31m\u0085", "\u202egnp.exe\u2066\u200b\ufeff\u2028")
	f.Add("\xff\xfe\x9b31m", "\xc2")

	f.Fuzz(func(t *testing.T, name, message string) {
		var out strings.Builder

		table := &render.Table{W: &out}
		table.Header("NAME", "MESSAGE")
		table.Row(name, render.Bad.In(message))
		require.NoError(t, table.Flush())

		require.Equal(t, 2, strings.Count(out.String(), "\n"))
		safe(t, strings.ReplaceAll(out.String(), "\n", ""))
		safe(t, failure.Clean(message))
	})
}

func safe(t *testing.T, text string) {
	t.Helper()

	for _, r := range text {
		require.False(t, unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp), "%q", text)
	}

	require.Equal(t, strings.ToValidUTF8(text, ""), text)
}
