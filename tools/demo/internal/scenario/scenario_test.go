package scenario

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/demo/internal/history"
)

func TestExcerpt(t *testing.T) {
	const text = "1\n2\n3\n4\n5\n"
	require.Equal(t, "1\n2\n3\n4\n5", excerpt(text, "", 5))
	require.Equal(t, "1\n2\n… 3 more lines", excerpt(text, "", 2))
	require.Equal(t, "… 2 lines\n3\n4\n… 1 more lines", excerpt(text, "3", 2))
	require.Equal(t, "… 3 lines\n4\n5", excerpt(text, "4", 9))
	require.Equal(t, "1\n… 4 more lines", excerpt(text, "nowhere", 1))
}

func TestFamilies(t *testing.T) {
	spans := []history.Span{{Object: "Website web-1/a"}, {Object: "ConfigMap web-1/a"}, {Object: "Website web-2/a"}}
	renamed := families(spans)
	require.Equal(t, renamed[0].Object, renamed[1].Object)
	require.NotEqual(t, renamed[0].Object, renamed[2].Object)
	require.Equal(t, "Website web-1/a", spans[0].Object, "the argument is unchanged")
}

func TestQueryArgs(t *testing.T) {
	require.Equal(t, []string{"-plaintext", "a:1", "list"}, Query{}.Args("a:1"))
	require.Equal(t, []string{"-plaintext", "a:1", "s/M"}, Query{Method: "s/M"}.Args("a:1"))
	require.Equal(t, []string{"-plaintext", "-d", "{}", "a:1", "s/M"}, Query{Method: "s/M", Request: "{}"}.Args("a:1"))
}

func TestWrong(t *testing.T) {
	require.NoError(t, wrong("nothing", nil))
	err := wrong("bad things", []string{"1", "2", "3", "4", "5", "6", "7"})
	require.EqualError(t, err, "bad things: 7 times\n1\n2\n3\n4\n5")
}
