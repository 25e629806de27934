package scenario

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/testkit/history"
)

func TestExcerpt(t *testing.T) {
	const text = "1\n2\n3\n4\n5\n"
	require.Equal(t, "1\n2\n3\n4\n5", excerpt(text, "", 5))
	require.Equal(t, "1\n2\n… 3 more lines", excerpt(text, "", 2))
	require.Equal(t, "… 2 lines\n3\n4\n… 1 more lines", excerpt(text, "3", 2))
	require.Equal(t, "… 3 lines\n4\n5", excerpt(text, "4", 9))
	require.Equal(t, "1\n… 4 more lines", excerpt(text, "nowhere", 1))
}

func TestQueryArgs(t *testing.T) {
	require.Equal(t, []string{"-plaintext", "a:1", "list"}, Query{}.Args("a:1"))
	require.Equal(t, []string{"-plaintext", "a:1", "s/M"}, Query{Method: "s/M"}.Args("a:1"))
	require.Equal(t, []string{"-plaintext", "-d", "{}", "a:1", "s/M"}, Query{Method: "s/M", Request: "{}"}.Args("a:1"))
}

func TestWrong(t *testing.T) {
	require.NoError(t, wrong[string]("nothing", nil))
	err := wrong("bad things", []string{"1", "2", "3", "4", "5", "6", "7"})
	require.EqualError(t, err, "bad things: 7 times\n1\n2\n3\n4\n5")
}

func TestCuts(t *testing.T) {
	require.Equal(t, "none interrupted", cuts(nil))
	require.Equal(t, "2 interrupted by the kill, 1 interrupted by the freeze", cuts(map[string]int{frozen: 1, killed: 2}))
}

func TestSpansOf(t *testing.T) {
	of := func(pid int, end time.Duration) history.Span {
		return history.Span{Worker: history.Worker{PID: pid}, Start: 1, End: end}
	}
	spans, open := spansOf([]history.Span{of(7, 0), of(8, 0), of(7, 2), of(7, 0)}, 7)
	require.Equal(t, []history.Span{of(7, 0), of(7, 2), of(7, 0)}, spans)
	require.Equal(t, 2, open)
}

func TestModesNamed(t *testing.T) {
	s := &Story{}
	all, err := s.ModesNamed(nil)
	require.NoError(t, err)
	require.Len(t, all, len(s.ModeNames()))

	some, err := s.ModesNamed([]string{"standby", "slots"})
	require.NoError(t, err)
	require.Len(t, some, 2)
	require.Equal(t, "slots", some[0].Name, "in their order")

	_, err = s.ModesNamed([]string{"slots", "magic"})
	require.ErrorContains(t, err, `there is no mode "magic": the modes are slots, named, `)
}
